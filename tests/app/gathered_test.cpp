// Gathering: lines of remote workers in the coordinator's run folder.

#include <algorithm>
#include <sstream>

#include "by_hand.h"

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
}

}  // namespace
}  // namespace isthmus
