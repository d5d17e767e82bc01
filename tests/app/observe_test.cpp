// `isthmus observe`: follows a run that workers started by hand.

#include <algorithm>
#include <set>
#include <sstream>
#include <thread>

#include "by_hand.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

/// The JSON lines of a metrics.jsonl.
std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> out;
  std::istringstream in(read_all(file));
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) out.push_back(std::move(json));
  }
  return out;
}

class Observe : public ByHand {
 protected:
  Observe() { settings = {"network.emulate.rtt=100ms", "network.heartbeat=50ms", "run.steps=240"}; }
  Command observe(const std::string& name, Words flags = {}) {
    Words words = {
        "observe", "--config", site.config().string(), "--coordinator", "127.0.0.1:" + std::to_string(port),
        "--name",  name};
    words.insert(words.end(), flags.begin(), flags.end());
    auto own = settings;
    own.push_back("network.emulate.rtt=0s");  // the workers are slow enough
    return site.start(with_settings(std::move(words), own));
  }
  void expect_good_end(Command& first, Command& second) {
    for (auto* command : {&*coordinator, &first, &second})
      ASSERT_EQ(command->wait().status, 0) << site.logs();
  }
  std::size_t views() const {
    const auto text = coordinator->output();
    std::size_t count = 0;
    for (auto at = text.find("begins with"); at != std::string::npos; at = text.find("begins with", at + 1))
      ++count;
    return count;
  }
  Words settings;
};

TEST_F(Observe, ItFollowsTheRunToItsEndAndEvaluatesWhatTheRunDoes) {
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto watch = observe("watch", {"--parameters", (site / "model.safetensors").string()});
  ASSERT_TRUE(wait_for("watch observes the run")) << site.logs();
  auto us = worker("us-1", settings);
  expect_good_end(eu, us);
  const auto end = watch.wait();
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  EXPECT_THAT(end.output, HasSubstr("the run has ended: global hash " + site.hash()));
  EXPECT_EQ(views(), 1U) << "an observer must not cause a view";
  EXPECT_TRUE(std::filesystem::exists(site / "model.safetensors"));
  // Both evaluate a step to the same loss, except for the order in which batches are summed.
  std::size_t compared = 0;
  const auto evaluations = site.summary()["evaluations"];
  for (const auto& line : lines_of(site.run() / "watch/metrics.jsonl")) {
    if (!line.contains("step")) continue;
    for (const auto& evaluation : evaluations) {
      if (evaluation["step"] != line["step"]) continue;
      EXPECT_NEAR(evaluation["loss"].get<double>(), line["eval_loss"].get<double>(), 1e-5) << line;
      ++compared;
    }
  }
  EXPECT_GT(compared, 0U) << "no step was evaluated by both" << site.logs();
}

TEST_F(Observe, OnceTakesTheStateAndLeaves) {
  settings.push_back("run.steps=100000");
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto us = worker("us-1", settings);
  const auto once = observe("look", {"--once", "--parameters", (site / "now.safetensors").string()}).wait();
  ASSERT_EQ(once.status, 0) << once.report() << site.logs();
  EXPECT_THAT(once.output,
              AllOf(HasSubstr("look: rounds "), HasSubstr("bits per byte"), HasSubstr("wrote ")));
  EXPECT_TRUE(std::filesystem::exists(site / "now.safetensors"));

  auto killed = observe("watch");
  ASSERT_TRUE(eventually([&] { return killed.output().find("bits per byte") != std::string::npos; }))
      << site.logs();
  // From another machine, or another run.out: in one folder, the lock on it comes first.
  const auto second = observe("watch", {"--set", "run.out=" + (site / "elsewhere").string(), "--set",
                                        "network.secret=" + (site.run() / "run.secret").string()})
                          .wait();
  EXPECT_EQ(second.status, 2) << second.report();
  EXPECT_THAT(second.output, HasSubstr("an observer named 'watch' is already here; give this one another"));
  EXPECT_TRUE(killed.running()) << killed.output();
  killed.signal(SIGKILL);
  ASSERT_TRUE(wait_for("watch has stopped observing")) << site.logs();
  auto interrupted = observe("watch");
  ASSERT_TRUE(eventually([&] { return interrupted.output().find("bits per byte") != std::string::npos; }))
      << site.logs();
  interrupted.signal(SIGINT);
  EXPECT_EQ(interrupted.wait(5s).status, 130) << "the observer must leave at once";
  EXPECT_TRUE(eu.running() && us.running()) << "the workers must continue";
  EXPECT_EQ(views(), 1U);
  EXPECT_EQ(coordinator->output().find("stopping"), std::string::npos);
  coordinator->signal(SIGINT);
  EXPECT_EQ(eu.wait().status, 0) << site.logs();
  EXPECT_EQ(us.wait().status, 0) << site.logs();
  EXPECT_EQ(coordinator->wait().status, 130) << site.logs();
}

TEST_F(Observe, AFolderWithTheModelIsReplacedAsAWholeUntilTheEnd) {
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto us = worker("us-1", settings);
  const auto to = site / "model";
  auto watch = observe("watch", {"--out", to.string(), "--every", "20"});
  std::set<int> seen;
  std::size_t incomplete = 0;
  const auto is_complete = [&] {
    const auto note = nlohmann::json::parse(read_all(to / "isthmus.json"), nullptr, false);
    if (!note.is_object()) return false;
    seen.insert(note["step"].get<int>());
    return std::ranges::all_of(note["files"], [&](const auto& name) {
      return std::filesystem::exists(to / name.template get<std::string>());
    });
  };
  while (watch.running()) {
    std::this_thread::sleep_for(2ms);
    if (!std::filesystem::exists(to)) continue;
    // A file may be looked up in the old folder while that is being removed, but not twice.
    if (!is_complete() && !is_complete()) ++incomplete;
  }
  const auto end = watch.wait();
  ASSERT_EQ(end.status, 0) << end.report() << site.logs();
  expect_good_end(eu, us);
  EXPECT_EQ(incomplete, 0U) << end.report();
  EXPECT_GT(seen.size(), 1U) << end.report();
  const auto note = nlohmann::json::parse(read_all(to / "isthmus.json"));
  EXPECT_EQ(note["global_hash"], site.hash());
  const auto loss = site.isthmus({"eval", to.string(), "--data", (site / "corpus.txt").string()});
  EXPECT_EQ(loss.status, 0) << loss.report();
  site.write("full/notes.txt", "");
  const auto refused = observe("again", {"--to", (site / "full").string()}).wait();  // an earlier spelling
  EXPECT_EQ(refused.status, 2) << refused.report();
  EXPECT_THAT(refused.output, HasSubstr("which holds notes.txt; expected a new or empty folder"));
  const auto file = observe("again", {"--out", "now.safetensors"}).wait();
  EXPECT_EQ(file.status, 2) << file.report();
  EXPECT_THAT(file.output, HasSubstr("or `--parameters now.safetensors` for the safetensors file"));
}

TEST_F(Observe, WithoutTheDataHereTheModelIsWrittenAndNotEvaluated) {
  settings.push_back("run.steps=100000");
  start_coordinator(settings);
  auto eu = worker("eu-1", settings);
  auto us = worker("us-1", settings);
  const auto once = observe("look", {"--once", "--out", (site / "model").string(), "--set",
                                     "data.path=" + (site / "elsewhere.bin").string()})
                        .wait();
  ASSERT_EQ(once.status, 0) << once.report() << site.logs();
  EXPECT_THAT(once.output, AllOf(HasSubstr("which is not on this machine: the model is not evaluated"),
                                 HasSubstr("wrote ")));
  EXPECT_TRUE(std::filesystem::exists(site / "model/model.safetensors"));
  coordinator->signal(SIGINT);
  EXPECT_EQ(eu.wait().status, 0) << site.logs();
  EXPECT_EQ(us.wait().status, 0) << site.logs();
  EXPECT_EQ(coordinator->wait().status, 130) << site.logs();
}

TEST_F(Observe, WithAnotherConfigItIsRefused) {
  start_coordinator(settings);
  settings.push_back("inner.lr=0.5");
  const auto wrong = observe("watch").wait();
  EXPECT_EQ(wrong.status, 2) << wrong.report();
  EXPECT_THAT(wrong.output, HasSubstr("inner.lr is 0.01 at the coordinator and 0.5 at watch"));
  coordinator->signal(SIGINT);
  EXPECT_EQ(coordinator->wait(5s).status, 130);
}

}  // namespace
}  // namespace isthmus
