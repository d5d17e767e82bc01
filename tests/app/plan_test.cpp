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
