// `isthmus plan` and `outer.auto` with the real binary.

#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

class Plan : public ::testing::Test {
 protected:
  nlohmann::json plan(Words words) {
    words.insert(words.begin(), "plan");
    words.emplace_back("--json");
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 0) << result.report();
    auto json = nlohmann::json::parse(result.output, nullptr, false);
    EXPECT_TRUE(json.is_object()) << result.report();
    return json;
  }
  std::string refusal(const std::string& links) {
    const auto file = site.write("links.yaml", links).string();
    const auto result = site.isthmus({"plan", "--params", "2M", "--step-time", "1s", "--links", file});
    EXPECT_EQ(result.status, 2) << result.report();
    return result.output;
  }
  Site site;
};

TEST_F(Plan, SaysWhatRateTheRanksOfAReplicaNeed) {
  const auto config = site.write("sites.yaml",
                                 "extends: tiny.yaml\nsites:\n  eu: {replicas: 1}\n  us: {replica.ranks: 4, "
                                 "replica.average_every: 5}\n");
  const auto planned = plan({config.string(), "--step-time", "1s"});
  const auto averages = planned["rank_averages"];
  EXPECT_EQ(averages["site"], "us");
  EXPECT_EQ(averages["every"], 5);
  const double bytes = averages["bytes"];
  EXPECT_EQ(bytes, 2 * 3 / 4.0 * planned["memory"]["global_parameters"].get<double>());
  // Every 5 steps, and twice for each sync, every 10 steps.
  EXPECT_NEAR(averages["bits_per_second"].get<double>(), 20 * 8 * bytes * (1 / 5.0 + 2 / 10.0), 1);
  const auto text = site.isthmus({"plan", config.string(), "--step-time", "1s"}).output;
  EXPECT_THAT(text, HasSubstr("averages over the ranks of a replica of us"));
  EXPECT_FALSE(plan({"--params", "2M", "--step-time", "1s"}).contains("rank_averages"));
}

TEST_F(Plan, CountsExchangesInPairs) {
  const auto of = [&](const char* every) {
    return plan({"--params", "20M", "--step-time", "500ms", "--set", "replicas=4", "--set",
                 "outer.sync_every=100", "--set", "network.emulate.rate=20Mbps", "--set", every});
  };
  const auto without = of("outer.gossip_every=0"), with = of("outer.gossip_every=20");
  EXPECT_FALSE(without.contains("exchanges"));
  const auto exchanges = with["exchanges"];
  EXPECT_EQ(exchanges["between_syncs"], 4);
  EXPECT_EQ(exchanges["room_seconds"], 10.0);
  EXPECT_GT(exchanges["seconds"].get<double>(), 20e6 * 4 / 60e6) << "the model in 4 bits, over three paths";
  // A round sends 2 * 3/4 of each fragment, an exchange the whole of it: four of them 4 / 1.5 times as much.
  const double before = without["configured"]["bytes_per_replica"],
               now = with["configured"]["bytes_per_replica"];
  EXPECT_NEAR(now / before, 1 + 4 / 1.5, 0.15);
  const auto text = site.isthmus({"plan", "--params", "20M", "--step-time", "500ms", "--set", "replicas=4",
                                  "--set", "outer.sync_every=100", "--set", "outer.gossip_every=20", "--set",
                                  "network.emulate.rate=1Mbps"})
                        .output;
  EXPECT_THAT(text, HasSubstr("4 exchanges in pairs between two syncs"));
  EXPECT_THAT(text, HasSubstr("are missed")) << "they do not fit into this link";
}

TEST_F(Plan, SaysWhatHoldsARunBackAndWhatMendsIt) {
  const Words common = {"--params", "20M", "--step-time", "500ms", "--set", "network.emulate.rate=10Mbps"};
  auto words = common;
  words.insert(words.end(), {"--set", "outer.sync_every=20", "--price", "0.1", "--host-memory", "100MB"});
  const auto before = plan(words);
  EXPECT_LT(before["configured"]["utilization"], 0.99) << before.dump(2);
  ASSERT_EQ(before["limits"].size(), 2) << "the delay and the memory: " << before["limits"];
  EXPECT_THAT(before["limits"][1].get<std::string>(), HasSubstr("host-memory does not fit in 100.0 MB"));
  EXPECT_GT(before["configured"]["traffic_cost"], 0);
  EXPECT_EQ(before["timetable"].size(), before["configured"]["num_fragments"]);
  ASSERT_TRUE(before["recommended"].contains("best")) << before["recommended"];
  auto mended = common;
  for (const auto& assignment : before["recommended"]["set"])
    mended.insert(mended.end(), {"--set", assignment});
  const auto after = plan(mended);
  EXPECT_GE(after["configured"]["utilization"], 0.99) << after.dump(2);
  EXPECT_TRUE(after["limits"].empty()) << after["limits"];
}

TEST_F(Plan, ShowsThePartsOfTheWeekThatCalendarsMake) {
  const auto config = site.write("week.yaml", R"(
extends: tiny.yaml
outer: {sync_every: 20, sync_delay: 2, min_replicas: 2}
network.rate: 100Mbps
sites:
  eu: {replicas: 1, network.calendar: "mon-fri 8:00-18:00 2Mbps"}
  us: {replicas: 1, network.calendar: "utc-8; sat closed"}
)");
  const Words words = {"plan", config.string(), "--params", "20M", "--step-time", "500ms"};
  const auto json = plan({words.begin() + 1, words.end()});
  const auto& windows = json["calendar"];
  ASSERT_EQ(windows.size(), 3U) << windows.dump(2);
  EXPECT_EQ(windows[0]["hours_per_week"], 168 - 50 - 24);
  EXPECT_TRUE(windows[0]["links"].empty());
  EXPECT_GT(windows[0]["utilization"], 0.99);
  EXPECT_TRUE(windows[0]["by_auto"].is_null()) << "nothing must change";
  EXPECT_EQ(windows[1]["hours_per_week"], 50);
  EXPECT_EQ(windows[1]["begins"], "Mon 08:00 UTC");
  EXPECT_EQ(windows[1]["links"][0]["allowance"], "at most 2 Mbit/s");
  EXPECT_LT(windows[1]["utilization"], 0.5);
  EXPECT_EQ(windows[2]["begins"], "Sat 08:00 UTC");
  EXPECT_EQ(windows[2]["participating"], 1);
  EXPECT_TRUE(windows[2]["utilization"].is_null()) << "rounds need both";
  const auto text = site.isthmus(words);
  EXPECT_THAT(text.output, HasSubstr("waits"));
  std::istringstream lines(text.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  const auto wrong = site.isthmus({"plan", config.string(), "--set", "network.calendar=5Mbps; noon closed"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.output, HasSubstr("'noon closed' contains 'noon'; expected [DAYS] [HH:MM-HH:MM] RATE"));
}

TEST_F(Plan, RecommendsNothingWithoutALink) {
  const auto json = plan({"--params", "20M", "--step-time", "500ms"});
  EXPECT_FALSE(json["recommended"]["links_are_known"]);
  EXPECT_FALSE(json["recommended"].contains("best")) << json["recommended"];
  const auto text = site.isthmus({"plan", "--params", "20M", "--step-time", "500ms"});
  EXPECT_THAT(text.output, HasSubstr("no settings are recommended, because no link is known"));
}

TEST_F(Plan, AModelIsThatOfTheConfig) {
  const auto json = plan({site.config().string(), "--step-time", "10ms", "--probe"});
  EXPECT_GT(json["parameters"], 0);
  EXPECT_EQ(json["memory"]["moments"], 2 * json["memory"]["outer_momentum"].get<std::uint64_t>());
}

TEST_F(Plan, LinksAreReadStrictly) {
  EXPECT_THAT(refusal("sites: {eu: {up: 5Mb}}"), HasSubstr("links.yaml:1); expected auto, or a rate"));
  EXPECT_THAT(refusal("sites: {eu: {uo: 5Mbps}}"), HasSubstr("did you mean sites.eu.up?"));
  const std::string two = "sites: {eu: {up: 5Mbps}, us: {up: 5Mbps}}\n";
  EXPECT_THAT(refusal(two), HasSubstr("no round trip between eu and us"));
  EXPECT_THAT(refusal(two + "rtt: {eu: {uk: 5ms}}"),
              HasSubstr("links.yaml:2: rtt.eu.uk names an unknown site 'uk'"));
  EXPECT_THAT(refusal(two + "rtt: {eu: 5ms}"), HasSubstr("is not a pair of sites"));
}

TEST_F(Plan, HundredsOfReplicasAreASecondOfArithmetic) {
  const auto json = plan({"--params", "1B", "--step-time", "1s", "--set", "replicas=300", "--set",
                          "network.rate=1Gbps", "--set", "network.emulate.rtt=80ms"});
  EXPECT_EQ(json["replicas"], 300);
  EXPECT_GT(json["configured"]["utilization"], 0);
}

TEST_F(Plan, AutoChoosesBeforeTheRunBegins) {
  const auto file = site.write("auto.yaml",
                               "extends: tiny.yaml\n"
                               "network.emulate: {rate: 100Mbps, rtt: 20ms}\n"
                               "outer.auto: {utilization: .95, step_time: 20ms}\n");
  const auto shown = site.isthmus({"config", file.string()});
  EXPECT_EQ(shown.status, 0) << shown.report();
  EXPECT_THAT(shown.output, HasSubstr("at_start: false\n")) << "the settings must be chosen already";
  const auto without_time = site.isthmus({"config", file.string(), "--set", "outer.auto.step_time=0"});
  EXPECT_EQ(without_time.status, 2) << without_time.report();
  EXPECT_THAT(without_time.output, HasSubstr("outer.auto.step_time is 0; expected"));
  const auto run = site.isthmus({"launch", file.string()});
  EXPECT_EQ(run.status, 0) << run.report();
  EXPECT_THAT(run.output, HasSubstr("outer.auto: sync_every "));
}

}  // namespace
}  // namespace isthmus
