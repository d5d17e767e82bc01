// Gathering: lines of remote workers in the coordinator's run folder.

#include <algorithm>
#include <sstream>

#include "by_hand.h"
#include "event_reader.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The file's lines; empty if there is no file.
std::vector<std::string> text_lines(const std::filesystem::path& file) {
  std::vector<std::string> out;
  if (!std::filesystem::exists(file)) return out;
  std::istringstream in(read_all(file));
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// Workers with a run folder of their own.
class Gathered : public ByHand {
 protected:
  Words elsewhere(Words settings = {}) const {
    settings.push_back("run.out=" + (site / "far").string());
    settings.push_back("network.secret=" + (site.run() / "run.secret").string());
    return settings;
  }
  std::vector<std::string> own(const std::string& name, const std::string& file) const {
    return text_lines(site / "far/tiny" / name / file);
  }
  /// The curves in the worker's own folder.
  events::Shown own_curves(const std::string& name) const {
    return events::shown_in(site / "far/tiny" / name);
  }
  events::Shown curves_here(const std::string& name) const { return events::shown_in(site.run() / name); }
  std::vector<std::string> here(const std::string& name, const std::string& file) const {
    return text_lines(site.run() / name / file);
  }
};

TEST_F(Gathered, MetricsAndLogLinesOfWorkersElsewhereLineByLine) {
  std::filesystem::create_directories(site.run() / "eu-1");
  site.write("runs/tiny/eu-1/metrics.jsonl", "{\"of\": \"an older run\"}\n");
  start_coordinator();
  auto eu = worker("eu-1", elsewhere());
  auto us = worker("us-1", elsewhere({"run.gather_limit=0"}));
  expect_reference(eu, us);
  EXPECT_THAT(own("eu-1", "metrics.jsonl"), ::testing::Not(::testing::IsEmpty()));
  EXPECT_EQ(here("eu-1", "metrics.jsonl"), own("eu-1", "metrics.jsonl"));
  EXPECT_THAT(here("eu-1", "gathered.log"), ::testing::Contains(HasSubstr("member 1 of 2")));
  EXPECT_THAT(here("eu-1", "metrics.jsonl.1"), SizeIs(1)) << "the older run's line";
  EXPECT_FALSE(std::filesystem::exists(site.run() / "us-1")) << "us-1 has run.gather_limit=0";
  const auto curves = curves_here("eu-1");
  EXPECT_EQ(curves, own_curves("eu-1"));
  EXPECT_THAT(curves.at("train/loss"), SizeIs(curves.at("train/lr").size()));
  EXPECT_EQ(curves.at("train/loss").begin()->first, 1U);
  EXPECT_THAT(curves, ::testing::Contains(::testing::Key("eval/loss_of_share")));
  // The evaluations of the global parameters are a run of their own in TensorBoard.
  EXPECT_THAT(curves_here("coordinator").at("eval/loss"), SizeIs(reference().evaluations.size()));
}

TEST_F(Gathered, WhoWorksInThatFolderItselfIsLeftAlone) {
  start_coordinator();
  auto eu = worker("eu-1");
  auto us = worker("us-1");
  expect_reference(eu, us);
  EXPECT_FALSE(std::filesystem::exists(site.run() / "eu-1/gathered.log"));
  auto lines = here("eu-1", "metrics.jsonl");
  ASSERT_FALSE(lines.empty());
  std::ranges::sort(lines);
  EXPECT_EQ(std::ranges::adjacent_find(lines), lines.end()) << "a line is in the file twice";
  EXPECT_THAT(event_files_in(site.run() / "eu-1"), SizeIs(1)) << "TensorBoard would show its curves twice";
  EXPECT_FALSE(curves_here("eu-1").empty());
}

TEST_F(Gathered, NothingIsLostWhileTheCoordinatorIsAway) {
  const Words slowly = {"network.emulate.rtt=150ms", "network.heartbeat=100ms"};
  start_coordinator(slowly);
  auto eu = worker("eu-1", elsewhere(slowly));
  auto us = worker("us-1", elsewhere(slowly));
  ASSERT_TRUE(eventually([&] { return !here("us-1", "metrics.jsonl").empty(); })) << site.logs();
  coordinator->signal(SIGKILL);
  coordinator->wait();
  const auto before = own("us-1", "metrics.jsonl").size();
  ASSERT_TRUE(eventually([&] { return own("us-1", "metrics.jsonl").size() > before; })) << site.logs();
  coordinator.emplace(site.start(with_settings(
      {"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:" + std::to_string(port)},
      slowly)));
  for (auto* command : {&*coordinator, &eu, &us}) ASSERT_EQ(command->wait().status, 0) << site.logs();
  // Lines that were on their way when the coordinator was killed may be there twice.
  const auto lines = here("us-1", "metrics.jsonl");
  auto at = lines.begin();
  for (const auto& line : own("us-1", "metrics.jsonl")) {
    at = std::find(at, lines.end(), line);
    ASSERT_NE(at, lines.end()) << "not gathered, or out of order: " << line << site.logs();
  }
  EXPECT_EQ(curves_here("us-1"), own_curves("us-1"));
  EXPECT_THAT(event_files_in(site.run() / "us-1"), SizeIs(2)) << "one for each coordinator";
}

TEST_F(Gathered, CurvesOfAResumedRunGoBackToItsCheckpoint) {
  const auto start = [&](const Words& way, const Words& settings) {
    Words words{"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"};
    words.insert(words.end(), way.begin(), way.end());
    coordinator.emplace(site.start(with_settings(words, settings)));
    EXPECT_TRUE(wait_for("listens at port ")) << site.logs();
    const auto address = "127.0.0.1:" + std::to_string(port_after(coordinator->output(), "listens at port "));
    std::vector<Command> workers;
    for (const auto* name : {"eu-1", "us-1"}) {
      words = {"worker", "--config", site.config().string(), "--coordinator", address, "--name",
               name,     "--listen", "127.0.0.1:0"};
      words.insert(words.end(), way.begin(), way.end());
      workers.push_back(site.start(with_settings(words, elsewhere(settings))));
    }
    return workers;
  };
  const auto has_checkpoint = [&](const std::string& name) {
    const auto folder = site / "far/tiny" / name / "checkpoints";
    return std::filesystem::exists(folder) && !std::filesystem::is_empty(folder);
  };
  {
    auto workers =
        start({}, {"network.emulate.rtt=150ms", "network.heartbeat=100ms", "run.checkpoint_every=5"});
    ASSERT_TRUE(eventually([&] {
      return here("eu-1", "metrics.jsonl").size() > 12 && has_checkpoint("eu-1") && has_checkpoint("us-1");
    })) << site.logs();
    for (auto* command : {&*coordinator, &workers[0], &workers[1]}) command->signal(SIGKILL);
    for (auto* command : {&*coordinator, &workers[0], &workers[1]}) command->wait();
  }
  auto workers = start({"--resume"}, {});
  for (auto* command : {&*coordinator, &workers[0], &workers[1]})
    ASSERT_EQ(command->wait().status, 0) << site.logs();
  const auto own = own_curves("eu-1"), gathered = curves_here("eu-1");
  // Lines on their way when all processes were killed were not gathered.
  for (const auto& [tag, values] : gathered) {
    for (const auto& [step, value] : values) {
      ASSERT_TRUE(own.at(tag).contains(step)) << tag << " of step " << step << site.logs();
      EXPECT_EQ(own.at(tag).at(step), value) << tag << " of step " << step;
    }
  }
  EXPECT_EQ(gathered.at("train/loss").begin()->first, 1U);
  EXPECT_EQ(gathered.at("train/loss").rbegin()->first, 40U);
  EXPECT_EQ(curves_here("coordinator").at("eval/loss").rbegin()->first, 40U);
}

}  // namespace
}  // namespace isthmus
