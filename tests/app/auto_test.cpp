// `outer.auto` in a running run with links that get slower and recover.

#include <fstream>

#include "launched.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class Auto : public Launched {
 protected:
  void begin(const Words& more = {}) {
    Words settings = {"run.steps=1000000",
                      "inner.schedule=constant",
                      "run.stop_grace=60s",
                      "run.on_event=cat >> " + events().string() + "; echo >> " + events().string(),
                      "network.rate=200Mbps",
                      "network.heartbeat=200ms",
                      "outer.auto.utilization=0.9",
                      "outer.auto.at_start=false",
                      "outer.auto.min_interval=2s"};
    settings.insert(settings.end(), more.begin(), more.end());
    start(settings);
  }
  /// Replica-0's newest number of inner steps per interval; 0 before its first step.
  [[nodiscard]] std::int64_t sync_every() const {
    std::ifstream in(site.run() / "replica-0/metrics.jsonl");
    std::int64_t out = 0;
    for (std::string line; std::getline(in, line);) {
      const auto json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("inner_steps")) out = json["inner_steps"];
    }
    return out;
  }
  [[nodiscard]] std::vector<Json> lines_with(const std::filesystem::path& file,
                                             const std::string& key) const {
    std::ifstream in(file);
    std::vector<Json> out;
    for (std::string line; std::getline(in, line);) {
      auto json = Json::parse(line, nullptr, false);
      if (json.is_object() && json.contains(key)) out.push_back(std::move(json));
    }
    return out;
  }
  [[nodiscard]] std::filesystem::path events() const { return site / "events.jsonl"; }
};

TEST_F(Auto, ALineThatGetsThinHasALongerIntervalUntilItRecovers) {
  begin();
  set("network.rate=200kbps");  // an exchange now takes longer than ten steps
  ASSERT_TRUE(eventually([&] { return sync_every() > 10; })) << launch->output() << site.logs();
  set("network.rate=200Mbps");
  ASSERT_TRUE(eventually([&] { return sync_every() == 10; })) << launch->output() << site.logs();
  expect_stops_with_equal_hashes();

  const auto log = launch->output();
  EXPECT_THAT(log, HasSubstr("outer.auto requests: outer.sync_every 10 -> "));
  EXPECT_THAT(log, HasSubstr("is 200 kbit/s instead of 200 Mbit/s; predicted "));
  EXPECT_THAT(log, HasSubstr("(outer.auto)")) << "the change must be applied";
  const auto told = lines_with(site.run() / "metrics.jsonl", "replanned");
  ASSERT_GE(told.size(), 2U);
  const auto& first = told.front()["replanned"];
  EXPECT_EQ(first["sync_every_before"], 10);
  EXPECT_GT(first["sync_every"], 10);
  EXPECT_GT(first["predicted_after"], first["predicted_before"]);
  EXPECT_GT(first["after_step"], 10);
  std::size_t heard = 0;
  for (const auto& event : lines_with(events(), "event")) heard += event["event"] == "replanned" ? 1 : 0;
  EXPECT_EQ(heard, told.size()) << "the event command must get the same changes as the metrics file";
}

TEST_F(Auto, WhatSomebodyHasSetByHandIsLeftAlone) {
  begin();
  set("outer.sync_delay=3");
  ASSERT_TRUE(eventually([&] {
    return launch->output().find("outer.auto: outer.sync_delay was set by hand") != std::string::npos;
  })) << launch->output()
      << site.logs();
  set("network.rate=200kbps");
  ASSERT_TRUE(eventually([&] { return sync_every() > 10; })) << launch->output() << site.logs();
  expect_stops_with_equal_hashes();
  EXPECT_THAT(launch->output(), HasSubstr("outer.auto requests: outer.sync_every 10 -> "));
  EXPECT_THAT(launch->output(), Not(HasSubstr("outer.sync_delay 3 ->")));
}

}  // namespace
}  // namespace isthmus
