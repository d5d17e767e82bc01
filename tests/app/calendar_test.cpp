// `network.calendar` in a run: a link that the clock closes, and rates that change by the clock.

#include <chrono>
#include <ctime>

#include "launched.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// HH:MM:SS in UTC, this many seconds from now.
std::string clock_in(int seconds) {
  const auto then = time(nullptr) + seconds;
  tm parts{};
  gmtime_r(&then, &parts);
  char text[16];
  strftime(text, sizeof text, "%H:%M:%S", &parts);
  return text;
}

class Calendar : public Launched {
 protected:
  void begin(const Words& more) {
    // Replicas wait for most of the time, so that a run of many seconds takes little of the processor.
    Words settings = {"run.steps=1000000", "inner.schedule=constant", "run.stop_grace=60s",
                      "network.heartbeat=200ms", "network.emulate.rtt=60ms"};
    settings.insert(settings.end(), more.begin(), more.end());
    start(settings);
  }
  [[nodiscard]] bool says(const std::string& words) {
    return eventually(
               [&] { return launch->output().find(words) != std::string::npos || !launch->running(); }) &&
           launch->running();
  }
};

TEST_F(Calendar, OthersTrainOnWhileALinkIsClosed) {
  begin({"replicas=3", "outer.min_replicas=2"});
  set("network.calendar=closed", {"--member", "replica-2"});
  ASSERT_TRUE(says("calendar of replica-2: closed")) << site.logs();
  ASSERT_TRUE(says("begins with 2 replicas: replica-0, replica-1")) << site.logs();
  const auto closed = status();
  EXPECT_EQ(closed["participating"], 2) << closed.dump(2);
  EXPECT_EQ(closed["members"][2]["state"], "ready");
  EXPECT_EQ(closed["members"][2]["allowance"], "closed");
  EXPECT_FALSE(closed["timetable"].empty()) << closed.dump(2);
  const auto step = closed["step"].get<std::uint64_t>();
  ASSERT_TRUE(eventually([&] { return status()["step"].get<std::uint64_t>() > step + 100; }))
      << "the others continue" << site.logs();
  EXPECT_EQ(status()["members"][2]["state"], "ready");
  EXPECT_THAT(ctl({"status"}).output, AllOf(HasSubstr("calendar replica-2: closed; late results: "),
                                            HasSubstr("next     fragment ")));
  set("network.calendar=\"\"", {"--member", "replica-2"});
  ASSERT_TRUE(eventually([&] { return status()["participating"] == 3; })) << status().dump(2) << site.logs();
  // Its newest report may be older than its return.
  EXPECT_TRUE(eventually([&] { return status()["members"][2]["step"].get<std::uint64_t>() > step; }))
      << status().dump(2) << site.logs();
  expect_stops_with_equal_hashes();
}

TEST_F(Calendar, ARateIsKeptAndLateResultsAreCounted) {
  constexpr double bytes_per_second = 64000.0 / 8;
  begin({});
  ASSERT_TRUE(eventually([&] { return status()["members"][0]["step"].get<std::uint64_t>() > 100; }))
      << site.logs();
  EXPECT_TRUE(status()["timetable"].empty()) << "no member has a calendar";
  const auto late = [&] { return status()["members"][0]["late_results"].get<std::uint64_t>(); };
  const auto sent = [&] { return status()["members"][0]["bytes_sent"].get<std::uint64_t>(); };
  set("network.calendar=64kbps");
  ASSERT_TRUE(says("calendar of replica-0: at most 64 kbit/s")) << site.logs();
  const auto late_before = late();
  ASSERT_TRUE(eventually([&] { return late() > late_before + 2; })) << status().dump(2) << site.logs();
  // The rate has been in force since then. Allow for reports of different age and one chunk at once.
  const auto begin = std::chrono::steady_clock::now();
  const auto first = sent(), late_first = late();
  ASSERT_TRUE(eventually([&] { return late() > late_first + 2; })) << status().dump(2) << site.logs();
  const auto grown = static_cast<double>(sent() - first);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(grown, 0);
  EXPECT_LT(grown, 2 * bytes_per_second * (took.count() + 2)) << took.count() << " s";
  set("network.calendar=\"\"");
  expect_stops_with_equal_hashes();
}

TEST_F(Calendar, TheClockOpensALink) {
  begin({"replicas=3", "outer.min_replicas=2"});
  const auto open = clock_in(1), close = clock_in(6);
  set("network.calendar=" + open + "-" + close + " closed", {"--member", "replica-2"});
  ASSERT_TRUE(says("calendar of replica-2: network.rate until ") ||
              says("calendar of replica-2: closed until "))
      << site.logs();
  ASSERT_TRUE(eventually([&] {
    const auto now = status();
    return now["participating"] == 3 &&
           now["members"][2]["allowance"].get<std::string>().starts_with("network.rate until ");
  })) << status().dump(2)
      << site.logs();
  // The run is stopped while the link is closed: the others end well, and this worker reports why it cannot.
  set("network.calendar=closed", {"--member", "replica-2"});
  ASSERT_TRUE(eventually([&] { return status()["participating"] == 2; })) << site.logs();
  EXPECT_EQ(ctl({"stop"}).status, 0);
  const auto end = launch->wait();
  EXPECT_NE(end.status, 0) << "a worker has failed";
  EXPECT_THAT(site.logs(), HasSubstr("the run has ended without this member"));
  EXPECT_THAT(site.processes(), SizeIs(0));
}

using LongCalendar = Calendar;
TEST_F(LongCalendar, TheIntervalFollowsTheCalendarWithoutBeingConfirmed) {
  // Without a calendar, a change would have to be confirmed for 150 s.
  begin({"network.rate=200Mbps", "outer.auto.utilization=0.9", "outer.auto.at_start=false",
         "outer.auto.min_interval=600s"});
  set("network.calendar=200kbps");
  ASSERT_TRUE(says("calendar of replica-0: at most 200 kbit/s")) << site.logs();
  ASSERT_TRUE(says("outer.auto requests: outer.sync_every 10 -> ")) << site.logs();
  EXPECT_THAT(launch->output(), HasSubstr("is 200 kbit/s instead of 200 Mbit/s"));
  set("network.calendar=\"\"");
  ASSERT_TRUE(says("outer.sync_every 100 -> 10")) << site.logs();
  const auto refused = ctl({"set", "network.calendar=mon maybe"});
  EXPECT_EQ(refused.status, 2) << refused.report();
  EXPECT_THAT(refused.output, HasSubstr("'mon maybe' ends in 'maybe'; expected a rate such as 20Mbps"));
  expect_stops_with_equal_hashes();
}

}  // namespace
}  // namespace isthmus
