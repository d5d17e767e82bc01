// A replica's trace shows that training continues while fragments are in flight.

#include <algorithm>
#include <map>

#include "site.h"

namespace isthmus {
namespace {

struct Interval {
  double begin = 0, end = 0;
  [[nodiscard]] bool overlaps(const Interval& other) const { return begin < other.end && other.begin < end; }
};

struct Timeline {
  std::vector<Interval> train;
  std::map<std::pair<int, int>, Interval> in_flight;  ///< by fragment and round
  std::map<std::string, int> count;                   ///< "row/name"
};

Timeline timeline(const nlohmann::json& events) {
  Timeline line;
  std::map<int, std::string> rows;
  std::map<std::string, Interval> open;
  std::map<std::string, nlohmann::json> args;
  for (const auto& event : events) {
    const auto name = event["name"].get<std::string>();
    const auto phase = event["ph"].get<std::string>();
    if (name == "thread_name") rows[event["tid"]] = event["args"]["name"];
    if (phase == "M") continue;
    const auto ts = event["ts"].get<double>();
    ++line.count[rows[event["tid"]] + "/" + name];
    if (phase == "X" && name == "train") line.train.push_back({ts, ts + event["dur"].get<double>()});
    if (name != "fragment in flight") continue;
    const auto id = event["id"].get<std::string>();
    if (phase == "b") {
      open[id].begin = ts;
      args[id] = event["args"];
    } else {
      open[id].end = ts;
      line.in_flight[{args[id]["fragment"], args[id]["round"]}] = open[id];
    }
  }
  return line;
}

Timeline timeline_of(const Site& site, const std::string& replica) {
  return timeline(nlohmann::json::parse(read_all(site.run() / replica / "trace.json")));
}

/// Rounds 4 and 5 of each fragment: after three warm-up steps, with further steps when their results are
/// applied.
bool streamed(int round) { return round > 3 && round <= 5; }

TEST(Trace, StepsGoOnWhileFragmentsAreInFlight) {
  Site site;
  const auto result = site.launch({"run.steps=23", "outer.warmup_steps=3", "outer.sync_every=9",
                                   "outer.sync_delay=2", "network.emulate.rtt=80ms"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  std::map<std::pair<int, int>, double> longest;
  for (const auto* replica : {"replica-0", "replica-1"}) {
    auto line = timeline_of(site, replica);
    EXPECT_EQ(line.train.size(), 23U);
    for (const auto& [key, way] : line.in_flight) {
      if (!streamed(key.second)) continue;
      longest[key] = std::max(longest[key], way.end - way.begin);
      const auto during = std::ranges::count_if(
          line.train, [&on_the_way = way](const auto& step) { return step.overlaps(on_the_way); });
      EXPECT_GE(during, 2) << "steps while fragment " << key.first << " was in flight in round "
                           << key.second;
    }
    for (const auto* what : {"reduce/reduce", "send/chunk", "receive/chunk", "outer/encode", "outer/apply",
                             "train/inner_step", "train/evaluate", "train/checkpoint", "writer/checkpoint"}) {
      EXPECT_GT(line.count[what], 0) << what << " of " << replica;
    }
  }
  EXPECT_EQ(longest.size(), 3U * 2U);
  // An owner may have had the other's chunk when it sent its own; the other replica must have waited for a
  // round trip.
  for (const auto& [key, microseconds] : longest) EXPECT_GE(microseconds, 80e3) << "fragment " << key.first;
}

TEST(Trace, ShowsAsManyStepsAsAskedFor) {
  Site site;
  const Words short_run = {"run.steps=6", "outer.warmup_steps=2", "run.trace_steps=4"};
  ASSERT_EQ(site.launch(short_run).status, 0) << site.logs();
  EXPECT_EQ(timeline_of(site, "replica-0").train.size(), 4U);
  Site other;
  ASSERT_EQ(other.launch({"run.steps=6", "outer.warmup_steps=2", "run.trace_steps=0"}).status, 0)
      << other.logs();
  EXPECT_EQ(timeline_of(other, "replica-0").train.size(), 0U);
}

}  // namespace
}  // namespace isthmus
