// An unattended run: checkpoints by time, workers that are asked to leave, events, and a stop from elsewhere.

#include <csignal>
#include <cstring>
#include <set>
#include <sstream>

#include "elastic_run.h"

namespace isthmus {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

/// A run that continues until it is stopped.
const Words without_end = {"run.steps=1000000", "run.eval_every=0", "inner.schedule=constant",
                           "network.emulate.rtt=50ms", "network.heartbeat=100ms"};

/// Steps of a replica's checkpoints, ascending.
std::vector<std::uint64_t> checkpoints(const Site& site, const std::string& replica) {
  std::vector<std::uint64_t> steps;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(site.run() / replica / "checkpoints", none)) {
    const auto name = entry.path().filename().string();
    if (name.ends_with(".ckpt")) steps.push_back(std::stoull(name.substr(5)));
  }
  std::ranges::sort(steps);
  return steps;
}

/// Events written by the coordinator's hook, by kind.
class Events {
 public:
  explicit Events(const Site& site) : file_(site / "events") {}
  [[nodiscard]] std::string setting() const { return "run.on_event=cat >> " + file_.string(); }
  [[nodiscard]] std::vector<Json> of(const std::string& kind) const {
    std::istringstream text(read_all(file_));
    std::vector<Json> events;
    for (std::string line; std::getline(text, line);) {
      auto json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.value("event", "") == kind) events.push_back(std::move(json));
    }
    return events;
  }
  [[nodiscard]] bool come(const std::string& kind) const {
    return eventually([&] { return !of(kind).empty(); });
  }
  [[nodiscard]] std::string all() const { return read_all(file_); }

 private:
  std::filesystem::path file_;
};

// ---- checkpoints by time ----

class CheckpointsByTime : public ::testing::TestWithParam<Words> {};
INSTANTIATE_TEST_SUITE_P(Week, CheckpointsByTime,
                         ::testing::Values(Words{"network.emulate.rtt=20ms", "run.steps=300",
                                                 "outer.warmup_steps=50", "outer.error_feedback=true"}));
INSTANTIATE_TEST_SUITE_P(LongWeek, CheckpointsByTime,
                         ::testing::Values(Words{"run.steps=500", "outer.method=data_parallel"}));

TEST_P(CheckpointsByTime, AreCommonAndChangeNoBit) {
  Words settings = {"network.heartbeat=100ms", "run.eval_every=0", "run.keep_checkpoints=0",
                    "run.stop_grace=60s"};  // for busy test machines
  settings.insert(settings.end(), GetParam().begin(), GetParam().end());
  Site with, without;
  auto by_time = settings;
  by_time.emplace_back("run.checkpoint_interval=300ms");
  const auto result = with.launch(by_time);
  ASSERT_EQ(result.status, 0) << result.report() << with.logs();
  EXPECT_THAT(result.output, HasSubstr("(run.checkpoint_interval)"));
  const auto first = checkpoints(with, "replica-0"), second = checkpoints(with, "replica-1");
  std::vector<std::uint64_t> common;
  std::ranges::set_intersection(first, second, std::back_inserter(common));
  EXPECT_GT(common.size(), 1U) << "at least one common checkpoint besides the final one\n" << result.report();
  const auto plain = without.launch(settings);
  ASSERT_EQ(plain.status, 0) << plain.report() << without.logs();
  EXPECT_THAT(plain.output, Not(HasSubstr("all write a checkpoint")))
      << "the run must end before the default interval";
  EXPECT_EQ(checkpoints(without, "replica-0").size(), 1U);
  EXPECT_EQ(with.hash(), without.hash());
}

// ---- leaving ----

class Leaving : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(BySignal, Leaving, ::testing::Values(SIGTERM, SIGINT));

TEST_P(Leaving, OneWorkerLeavesWithACheckpointOfAllAndTheOthersGoOn) {
  ElasticRun run(without_end);
  run.start({"a", "b"});
  ASSERT_TRUE(run.reaches("a", 12) && run.reaches("b", 12)) << run.logs();
  run.signal("b", GetParam());
  const auto end = run.end_of("b");
  EXPECT_EQ(end.status, 128 + GetParam()) << end.report() << run.logs();
  EXPECT_THAT(end.output, HasSubstr("first all write a checkpoint"));
  const auto left = checkpoints(run.site(), "b");
  ASSERT_THAT(left, Not(IsEmpty())) << run.logs();
  EXPECT_TRUE(eventually([&] {
    const auto others = checkpoints(run.site(), "a");
    return std::ranges::find(others, left.back()) != others.end();
  })) << run.logs();
  const auto lines = run.metrics("a").size();
  EXPECT_TRUE(eventually([&] { return run.metrics("a").size() > lines + 10; })) << run.logs();
  run.stop();
}

TEST(Week, AWorkerThatIsNotYetInTheRunEndsAtOnce) {
  ElasticRun run(without_end);
  run.start({"a"});
  ASSERT_TRUE(run.coordinator_says("a joined")) << run.logs();
  run.signal("a", SIGTERM);
  const auto end = run.end_of("a");
  EXPECT_EQ(end.status, 143) << end.report();
  EXPECT_THAT(end.output, HasSubstr("before it joined the run"));
}

TEST(Week, WithoutItsCoordinatorAWorkerWaitsForNoCheckpoint) {
  ElasticRun run(without_end);
  run.start({"a", "b"});
  ASSERT_TRUE(run.reaches("a", 12) && run.reaches("b", 12)) << run.logs();
  run.kill_coordinator();
  ASSERT_TRUE(eventually([&] {
    return run.output("b").find("training continues while rounds commit") != std::string::npos;
  })) << run.logs();
  const auto steps = run.metrics("b").size();
  run.signal("b", SIGTERM);
  const auto end = run.end_of("b");
  EXPECT_EQ(end.status, 143) << end.report() << run.logs();
  // The steps until nothing is in flight. If it waited in vain, it would make several times as many.
  EXPECT_LE(run.metrics("b").size(), steps + 150) << end.report() << run.logs();
}

// ---- events ----

TEST(Week, TheHookHearsWhatHappensToTheRun) {
  auto settings = without_end;
  Site place;  // a separate folder for the events, since the run's folder does not exist yet
  const Events events(place);
  for (const auto& more :
       {events.setting(), std::string("run.disk_low=1000000TB"), std::string("run.checkpoint_interval=500ms"),
        std::string("outer.min_replicas=2"), std::string("outer.max_local_rounds=1000")})
    settings.push_back(more);
  ElasticRun run(settings);
  run.start({"a", "b"});
  ASSERT_TRUE(events.come("checkpoint_written")) << events.all() << run.logs();
  const auto written = events.of("checkpoint_written").front();
  EXPECT_EQ(written["run"], "tiny");
  ASSERT_EQ(written["checkpoints"].size(), 2U) << written;
  for (const auto& one : written["checkpoints"]) {
    const auto name = one["name"].get<std::string>(), file = one["file"].get<std::string>();
    EXPECT_TRUE(file.starts_with("tiny/" + name + "/checkpoints/step_")) << file;
    EXPECT_EQ(one["path"], (run.site() / ("runs/" + file)).string());
  }
  ASSERT_TRUE(events.come("disk_low"));
  std::set<std::string> low;
  EXPECT_TRUE(eventually([&] {
    for (const auto& event : events.of("disk_low")) low.insert(event["name"].get<std::string>());
    return low == std::set<std::string>{"a", "b", "coordinator"};
  })) << events.all();
  EXPECT_GT(events.of("disk_low").front()["free_bytes"], 0);
  ASSERT_TRUE(run.reaches("a", 30) && run.reaches("b", 30))
      << run.logs();  // no newcomer joins during the warm-up
  run.kill("b");
  ASSERT_TRUE(events.come("member_lost") && events.come("suspended")) << events.all() << run.logs();
  EXPECT_EQ(events.of("member_lost").front()["name"], "b");
  EXPECT_THAT(events.of("suspended").front()["reason"].get<std::string>(),
              HasSubstr("1 of at least 2 replicas"));
  run.add("b");
  ASSERT_TRUE(events.come("resumed")) << events.all() << run.logs();
  EXPECT_EQ(events.of("resumed").front()["after"], "suspension");
  run.stop();
  ASSERT_TRUE(events.come("stopped")) << events.all();
}

TEST(Week, TheHookHearsOfAResumedRunAndOfItsLastCheckpoint) {
  Site site;
  const Events events(site);
  const auto first = site.launch({events.setting(), "run.stop_after=20"});
  ASSERT_EQ(first.status, 0) << first.report() << site.logs();
  ASSERT_EQ(events.of("checkpoint_written").size(), 1U) << events.all();
  EXPECT_EQ(events.of("checkpoint_written")[0]["step"], 20);
  const auto second = site.resume({events.setting(), "run.stop_after=0"});
  ASSERT_EQ(second.status, 0) << second.report() << site.logs();
  ASSERT_EQ(events.of("resumed").size(), 1U) << events.all();
  EXPECT_EQ(events.of("resumed")[0]["after"], "stop");
  EXPECT_EQ(events.of("resumed")[0]["step"], 20);
  ASSERT_EQ(events.of("checkpoint_written").size(), 2U) << events.all();
  EXPECT_EQ(events.of("checkpoint_written")[1]["step"], 40);
  EXPECT_EQ(events.of("finished").size(), 2U);
}

TEST(Week, TheHookHearsOfALossThatIsNotFinite) {
  Site site;
  const Events events(site);
  ASSERT_EQ(site.launch({"run.steps=1", "outer.warmup_steps=1"}).status, 0) << site.logs();
  const auto model = (site / "model").string();
  const auto exported = site.isthmus({"export", site.run().string(), "--out", model});
  ASSERT_EQ(exported.status, 0) << exported.report();
  // Finite values that are too large to compute with.
  auto bytes = read_all(site / "model/model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const float huge = 3e38F;
  for (auto at = sizeof header + header; at + sizeof huge <= bytes.size(); at += sizeof huge)
    std::memcpy(bytes.data() + at, &huge, sizeof huge);
  site.write("model/model.safetensors", bytes);
  const auto end = site.launch({events.setting(), "trainer.init_from=" + model});
  EXPECT_EQ(end.status, 5) << end.report() << site.logs();
  ASSERT_FALSE(events.of("non_finite").empty()) << events.all() << end.report() << site.logs();
  EXPECT_TRUE(events.of("non_finite")[0]["name"].get<std::string>().starts_with("replica-"));
}

// ---- a stop from elsewhere ----

TEST(Week, AnOperatorStopsTheRunOverTlsAndOneCommandResumesIt) {
  Site site;
  const auto certs = (site / "certs").string();
  for (const Words& words : {Words{"init", "tiny"},
                             {"issue", "tiny", "coordinator"},
                             {"issue", "tiny", "replica-0"},
                             {"issue", "tiny", "replica-1"},
                             {"issue", "tiny", "operator"}}) {
    auto command = Words{"certs"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--dir", certs});
    const auto done = site.isthmus(command);
    ASSERT_EQ(done.status, 0) << done.report();
  }
  auto settings = without_end;
  settings.push_back("network.certs=" + certs + "/tiny");
  settings.emplace_back("run.stop_grace=60s");
  const auto stop_at = [&](Command& launch, std::size_t lines) {
    ASSERT_TRUE(eventually([&] { return site.metric_lines() > lines || !launch.running(); })) << site.logs();
    const auto stopped = site.isthmus(
        {"ctl", "stop", "--coordinator", launch.coordinator_address(), "--certs", certs + "/tiny"});
    ASSERT_EQ(stopped.status, 0) << stopped.report() << site.logs();
    EXPECT_THAT(stopped.output, HasSubstr("stopping"));
    const auto end = launch.wait();
    EXPECT_EQ(end.status, 130) << end.report() << site.logs();
    EXPECT_THAT(end.output, HasSubstr("isthmus launch --resume " + site.run().string()));
    EXPECT_THAT(site.processes(), IsEmpty());
  };
  auto launch = site.start_launch(settings);
  ASSERT_NO_FATAL_FAILURE(stop_at(launch, 12));
  const auto step = site.summary()["steps"].get<std::uint64_t>();
  for (const auto* replica : {"replica-0", "replica-1"})
    EXPECT_THAT(checkpoints(site, replica), Contains(step));
  const auto lines = site.metric_lines();
  auto again = site.start({"launch", "--resume", site.run().string()});
  ASSERT_NO_FATAL_FAILURE(stop_at(again, lines + 5));
  EXPECT_THAT(again.output(), HasSubstr("resuming from the checkpoint of step " + std::to_string(step)));
}

}  // namespace
}  // namespace isthmus
