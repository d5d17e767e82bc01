// Sites of unequal speed: with pace time, the slow site does not hold up the fast one.

#include "elastic_run.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

/// Figures of the second half of a worker's steps.
struct Course {
  double seconds = 0;        ///< time in these steps
  double stall_seconds = 0;  ///< part of `seconds` spent waiting for late results
  double steps = 0;          ///< number of inner steps
  double inner_steps = 0;    ///< H_m at the end
  [[nodiscard]] double busy_per_step() const { return (seconds - stall_seconds) / steps; }
  [[nodiscard]] double wait_share() const { return stall_seconds / seconds; }
};

Course course_of(const ElasticRun& run, const std::string& worker, std::uint64_t from) {
  Course course;
  double stalled_before = 0;
  for (const auto& line : run.metrics(worker)) {
    if (!line.contains("loss")) continue;
    const double stalled = line["stall_seconds"];
    if (line["step"].get<std::uint64_t>() > from) {
      course.seconds += line["step_seconds"].get<double>();
      course.stall_seconds += stalled - stalled_before;
      ++course.steps;
      course.inner_steps = line["inner_steps"];
    }
    stalled_before = stalled;
  }
  EXPECT_GT(course.steps, 0) << worker << run.logs();
  return course;
}

/// Settings for work per step that differs by more than the machine's speed varies, with intervals of several
/// heartbeats.
Words unequal(const std::string& pace) {
  return {"outer.pace=" + pace,      "outer.sync_every=20", "outer.sync_delay=6", "outer.warmup_steps=5",
          "network.heartbeat=100ms", "run.eval_every=0",    "run.sample_tokens=0"};
}

TEST(PaceByTime, TheSlowOneDoesNotHoldUpTheFastOne) {
  constexpr std::uint64_t steps = 240, half = 120;
  std::map<std::string, Course> fast, slow;
  for (const std::string pace : {"steps", "time"}) {
    auto settings = unequal(pace);
    settings.push_back("run.steps=" + std::to_string(steps));
    ElasticRun run(settings);
    run.start({});
    run.add("fast", {"--set", "inner.batch=4"});
    run.add("slow", {"--set", "inner.batch=32"});
    run.finish();
    fast[pace] = course_of(run, "fast", half);
    slow[pace] = course_of(run, "slow", half);
    for (const auto& member : run.summary()["members"]) {
      EXPECT_EQ(member["last_step"], steps);
      EXPECT_EQ(member["inner_steps"],
                member["name"] == "fast" ? fast[pace].inner_steps : slow[pace].inner_steps);
    }
    EXPECT_EQ(run.hash().size(), 64U);  // the hash is equal on both
  }
  EXPECT_EQ(fast["steps"].inner_steps, 20);
  EXPECT_EQ(slow["steps"].inner_steps, 20);
  ASSERT_GT(fast["steps"].wait_share(), 0.3) << "with pace steps the fast one waits for the slow one";
  EXPECT_LT(fast["time"].wait_share(), fast["steps"].wait_share() / 2);
  // The numbers of steps, which are the sums of H_m, are proportional to the speeds within their variation.
  EXPECT_GT(fast["time"].inner_steps, slow["time"].inner_steps);
  EXPECT_GT(fast["time"].steps, half);
  EXPECT_LT(slow["time"].steps, half);
  const double speeds = slow["time"].busy_per_step() / fast["time"].busy_per_step();
  const double numbers = fast["time"].steps / slow["time"].steps;
  EXPECT_GT(numbers, speeds / 2);
  EXPECT_LT(numbers, speeds * 2);
}

TEST(PaceByTime, StopsAtOneStepAndGoesOn) {
  auto settings = unequal("time");
  settings.push_back("run.steps=100000");
  settings.push_back("run.checkpoint_every=50");
  ElasticRun run(settings);
  run.start({});
  run.add("fast", {"--set", "inner.batch=8"});
  run.add("slow", {"--set", "inner.batch=64"});
  ASSERT_TRUE(run.reaches("slow", 120) && run.reaches("fast", 120)) << run.logs();
  run.stop();
  const auto members = run.summary()["members"];
  ASSERT_EQ(members.size(), 2U);
  const std::uint64_t step = members[0]["last_step"];
  EXPECT_EQ(members[1]["last_step"], step);
  EXPECT_EQ(run.hash().size(), 64U);
  for (const auto* worker : {"fast", "slow"}) {
    const auto folder = run.site().run() / worker / "checkpoints";
    char name[64];
    for (const auto at : {std::uint64_t{50}, std::uint64_t{100}, step}) {
      std::snprintf(name, sizeof name, "step_%012llu_replica_0.ckpt", static_cast<unsigned long long>(at));
      EXPECT_TRUE(std::filesystem::exists(folder / name)) << folder / name;
    }
  }
  run.resume({"run.steps=" + std::to_string(step + 60)});
  run.add("fast", {"--set", "inner.batch=8"});
  run.add("slow", {"--set", "inner.batch=64"});
  run.finish();
  for (const auto& member : run.summary()["members"]) {
    EXPECT_EQ(member["first_step"], step);
    EXPECT_EQ(member["last_step"], step + 60);
  }
  EXPECT_EQ(run.hash().size(), 64U);
}

TEST(PaceByTime, IsRefusedWithTheBaseline) {
  Site site;
  const auto result = site.launch({"outer.pace=time", "outer.method=data_parallel"});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output,
              HasSubstr("outer.pace is time and outer.method is data_parallel; expected pace steps"));
}

}  // namespace
}  // namespace isthmus
