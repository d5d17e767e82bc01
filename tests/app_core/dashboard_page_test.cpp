// The dashboard's page in a browser: it draws what the JSON says, and foreign text stays text.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "browser.h"
#include "coordinator/dashboard/dashboard_page.h"
#include "isthmus/outer_sync/net/link/page_server.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr const char* hostile = R"(<img src=x onerror=alert(1)></script><script>alert(2)</script>)";

Json member_json(const std::string& name, const std::string& kind, std::uint64_t step) {
  return {{"name", name},
          {"site", "eu"},
          {"kind", kind},
          {"state", "member"},
          {"step", step},
          {"loss", 2.5},
          {"utilization", 0.75},
          {"tokens_per_second", 12'000},
          {"bytes_sent", 5},
          {"wire_bytes_per_second", 250'000},
          {"uplink_bytes_per_second", name == "eu-1" ? Json(12'500'000) : Json()},
          {"rounds_lag", {0, name == "eu-2" ? 1 : 0}},
          {"checkpoint", 20},
          {"silent_seconds", name == hostile ? 7 : 0},
          {"build", "x"},
          {"address", "127.0.0.1:1"}};
}

Json round_json(std::uint64_t fragment, std::uint64_t number, const Json& took) {
  return {{"fragment", fragment},          {"round", number},         {"sent_step", 10 * number},
          {"apply_step", 10 * number + 2}, {"sent_seconds_ago", 1.5}, {"took_seconds", took},
          {"late_seconds", took}};
}

Json answer_json() {
  const Json status{{"run", hostile},
                    {"phase", "running"},
                    {"obstacle", "two of three replicas are away"},
                    {"view", 3},
                    {"step", 40},
                    {"steps", 100},
                    {"replicas", 3},
                    {"participating", 2},
                    {"checkpoint", 20},
                    {"evaluation", {{"step", 30}, {"loss", 2.25}}},
                    {"outer_steps", nullptr},
                    {"members",
                     {member_json("eu-1", "trainer", 42), member_json("eu-2", "trainer", 40),
                      member_json(hostile, "reducer", 0)}},
                    {"relays", Json::array({{{"between", {"eu-1", "us-1"}}, {"by", hostile}}})},
                    {"slow_paths", Json::array({{{"from", ""}, {"to", "eu-2"}}})},
                    {"settings", {{"changes", Json::array()}, {"paused_after", nullptr}}},
                    {"rounds", {round_json(0, 3, 0.25), round_json(0, 4, nullptr), round_json(1, 3, 0.5)}}};
  const auto evaluations = Json::parse("[[10, 2.5], [20, 2.375], [30, 2.25]]");
  auto training = Json::array();
  for (int step = 1; step <= 30; ++step) training.push_back({step, 3.0 - step * 0.02});
  return {{"age_seconds", 0.2},
          {"lines", Json::array({{{"time", 1'700'000'000.5}, {"text", hostile}}})},
          {"run",
           {{"status", status},
            {"evaluations", evaluations},
            {"training", training},
            {"links", Json::array({{{"from", "eu-1"},
                                    {"to", "eu-2"},
                                    {"round_trip_ms", 20.0},
                                    {"shortest_round_trip_ms", 10.0},
                                    {"bytes_per_second", nullptr},
                                    {"slow", true}}})},
            {"links_left_out", 0},
            {"next_checkpoint", {{"step", 100}, {"seconds", 90.0}}}}}};
}

/// Waits until the page has drawn an answer.
constexpr const char* page_probe = R"(
const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map((r) => [...r.children].map((c) => c.textContent));
const look = () => {
  if (rows("members").length === 0) return setTimeout(look, 50);
  const [chart] = Object.values(Chart.instances);
  const canvas = chart.canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i] > 0) ++drawn;
  const lacking = [...document.querySelectorAll("th")].filter((th) => !th.scope).length;
  report({
    drawn, sets: chart.data.datasets.map((set) => set.data), colours: chart.data.datasets.map((set) => set.borderColor),
    title: document.title, heading: texts("h1"), headings: texts("h2"), alerts: texts(".alert"), lines: texts("#lines span"),
    tiles: texts("#now div"), members: rows("members"), rounds: rows("rounds"), links: rows("links"),
    evaluations: rows("evaluations"), foreign: document.querySelectorAll("img").length, lacking,
    live: texts("[aria-live]").length, described: document.getElementById("loss-text").textContent,
    progress: document.getElementById("progress").value, ground: getComputedStyle(document.body).backgroundColor,
    wide: document.documentElement.scrollWidth > innerWidth,
  });
};
look();
)";

/// Serves the page with the probe, under the page's own Content-Security-Policy, and opens it.
Json seen_at(int width, const std::vector<std::string>& more = {}) {
  const TemporaryFolder folder;
  const std::string nonce = "0123456789abcdef";
  auto pages = app::dashboard_pages({"127.0.0.1", 0}, "", nonce, [] { return answer_json().dump(); });
  pages.pages.front().text = [&] {
    auto page = app::dashboard_page(nonce);
    page.insert(page.rfind("</body>"),
                "<script nonce=\"" + nonce + "\">" + report_function + page_probe + "</script>");
    return page;
  };
  const outer_sync::PageServer server({"127.0.0.1", 0}, "test", pages);
  std::vector<std::string> flags = {"--virtual-time-budget=4000"};
  flags.insert(flags.end(), more.begin(), more.end());
  return seen_in_browser(folder, "http://127.0.0.1:" + std::to_string(server.port()) + "/", width, flags);
}

TEST(DashboardPage, ABrowserShowsTheRun) {
  const auto seen = seen_at(1280);
  ASSERT_TRUE(seen.is_object());
  EXPECT_GT(seen["drawn"], 1000) << "the chart is empty";
  ASSERT_EQ(seen["sets"][0].size(), 3U);
  EXPECT_EQ(seen["sets"][0][2], Json::parse(R"({"x": 30, "y": 2.25})"));
  EXPECT_EQ(seen["sets"][1].size(), 30U);
  EXPECT_EQ(seen["described"],
            "Evaluation: from 2.5000 at step 10 to 2.2500 at step 30. "
            "Training: from 2.9800 at step 1 to 2.4000 at step 30.");
  EXPECT_EQ(seen["evaluations"][0], Json({"30", "2.2500", "2.4000"}));
  EXPECT_EQ(seen["progress"], 0.4);
  const auto& members = seen["members"];
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[0], Json({"eu-1", "eu", "trainer", "in the view", "42", "none", "2.5000", "75 %", "12 k",
                              "2.0 Mbit/s", "100 Mbit/s", "20"}));
  EXPECT_EQ(members[1][5], "2 steps, 1 round");
  EXPECT_EQ(members[2][2], "reducer");
  EXPECT_EQ(members[2][3], "silent for 7 s");
  ASSERT_EQ(seen["rounds"].size(), 2U);
  EXPECT_EQ(seen["rounds"][0], Json({"0", "4", "40", "42", "2 s ago", "in flight"}));
  EXPECT_EQ(seen["rounds"][1][5], "took 0.50 s, 0.50 s late");
  ASSERT_EQ(seen["links"].size(), 1U);
  EXPECT_EQ(seen["links"][0][5], "slow");
  EXPECT_EQ(seen["alerts"][0], "Rounds do not commit: two of three replicas are away");
  EXPECT_THAT(seen["tiles"].dump(), testing::AllOf(HasSubstr("Next checkpointin 90 sor at step 100"),
                                                   HasSubstr("Last checkpointstep 20")));
  EXPECT_FALSE(seen["wide"]) << "the page itself must not scroll sideways";
}

TEST(DashboardPage, TextFromMembersStaysText) {
  const auto seen = seen_at(1280);
  ASSERT_TRUE(seen.is_object());
  EXPECT_EQ(seen["foreign"], 0) << "an element came from a member's text";
  EXPECT_EQ(seen["heading"][0], hostile);
  EXPECT_EQ(seen["members"][2][0], hostile);
  EXPECT_EQ(seen["lines"][0], hostile);
  EXPECT_EQ(seen["alerts"][2], std::string(hostile) + " relays between eu-1 and us-1.");
}

TEST(DashboardPage, AScreenReaderFindsItsWay) {
  const auto seen = seen_at(1280);
  ASSERT_TRUE(seen.is_object());
  EXPECT_THAT(
      seen["headings"].get<std::vector<std::string>>(),
      ElementsAre("Now", "Loss over steps", "Newest log lines and events", "Members", "Rounds", "Links"));
  EXPECT_EQ(seen["lacking"], 0) << "each heading of a table needs a scope";
  EXPECT_EQ(seen["live"], 2) << "the phase and alerts are read out when they change, and nothing else";
}

TEST(DashboardPage, EveryoneCanUseIt) {
  const TemporaryFolder folder;
  std::uint64_t step = 40;  // of the server's thread
  const auto pages = app::dashboard_pages({"127.0.0.1", 0}, "", "0123456789abcdef", [&step] {
    auto answer = answer_json();
    answer["run"]["status"]["step"] = ++step;
    answer["run"]["status"]["members"][2]["silent_seconds"] = step;
    answer["age_seconds"] = step - 30;
    return answer.dump();
  });
  const outer_sync::PageServer server({"127.0.0.1", 0}, "test", pages);
  expect_usable_by_everyone(folder, "http://127.0.0.1:" + std::to_string(server.port()) + "/",
                            "document.querySelector('#members tbody tr')", 3);
}

TEST(DashboardPage, DarkAndNarrow) {
  const auto light = seen_at(500), dark = seen_at(500, {"--blink-settings=preferredColorScheme=0"});
  ASSERT_TRUE(light.is_object() && dark.is_object());
  EXPECT_FALSE(light["wide"]);
  EXPECT_FALSE(dark["wide"]);
  EXPECT_NE(light["ground"], dark["ground"]);
  EXPECT_NE(light["colours"], dark["colours"]);
  EXPECT_GT(dark["drawn"], 1000);
}

}  // namespace
}  // namespace isthmus
