// The dashboard: its figures, the rules for reading it, and the page of a real coordinator.

#include <sys/stat.h>

#include <limits>

#include "coordinator/dashboard/curve.h"
#include "coordinator/dashboard/dashboard.h"
#include "coordinator/dashboard/dashboard_page.h"
#include "coordinator/dashboard/recent_lines.h"
#include "coordinator/dashboard/run_figures.h"
#include "isthmus/base/error.h"
#include "site.h"
#include "socket.h"

namespace isthmus {
namespace {

using app::Curve;
using outer_sync::Address;
using outer_sync::answer_to;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

// ---- figures ----

TEST(DashboardCurve, StaysBoundedAndCoversTheWholeRun) {
  constexpr std::uint64_t steps = 100'000;
  Curve curve;
  for (std::uint64_t step = 1; step <= steps; ++step) curve.add(step, static_cast<double>(step));
  const auto points = curve.json();
  EXPECT_LE(points.size(), Curve::max_points + 1);
  EXPECT_GE(points.size(), Curve::max_points / 2);
  EXPECT_EQ(points.front()[0], 1U);
  EXPECT_EQ(points.back()[0], steps) << "the newest point is always there";
  std::uint64_t widest = 0;
  for (std::size_t i = 1; i < points.size(); ++i)
    widest = std::max(widest, points[i][0].get<std::uint64_t>() - points[i - 1][0].get<std::uint64_t>());
  EXPECT_LE(widest, 2 * steps / points.size()) << "points must be spread evenly";
}

TEST(DashboardCurve, ForgetsStepsThatTheRunHasUndone) {
  Curve curve;
  for (const std::uint64_t step : {10, 20, 30, 40}) curve.add(step, 1.0);
  curve.add(25, 2.0);
  curve.add(35, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(curve.json(), Json::parse("[[10, 1.0], [20, 1.0], [25, 2.0]]"));
}

TEST(DashboardCurve, IsFineAgainWhenARunStartsAnew) {
  Curve curve;
  for (std::uint64_t step = 1; step <= 10 * Curve::max_points; ++step) curve.add(step, 1.0);
  for (const std::uint64_t step : {1, 2, 3}) curve.add(step, 2.0);
  EXPECT_EQ(curve.json(), Json::parse("[[1, 2.0], [2, 2.0], [3, 2.0]]"));
}

TEST(DashboardCurve, EvaluationsAreThinnedOutUpToTheNewest) {
  std::map<std::uint64_t, double> values;
  for (std::uint64_t step = 1; step <= 100; ++step) values[step] = 2.0;
  const auto points = app::curve_json(values, 10);
  EXPECT_THAT(points, SizeIs(11));
  EXPECT_EQ(points.back()[0], 100U);
  values = {{5, 3.0}, {10, std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(app::curve_json(values, 10), Json::parse("[[5, 3.0]]"));
}

TEST(DashboardFigures, TheNextCheckpointHasAStepOrATime) {
  EXPECT_EQ(app::to_json({}, 40, 100), Json::parse(R"({"step": 100, "seconds": null})"));
  EXPECT_EQ(app::to_json({.every = 30}, 40, 100), Json::parse(R"({"step": 60, "seconds": null})"));
  EXPECT_EQ(app::to_json({.every = 30, .seconds = 5.0}, 40, 100),
            Json::parse(R"({"step": 60, "seconds": 5.0})"));
  EXPECT_EQ(app::to_json({.ordered = 44, .seconds = 5.0}, 40, 100),
            Json::parse(R"({"step": 44, "seconds": null})"));
  EXPECT_EQ(app::to_json({}, 100, 100), Json::parse(R"({"step": null, "seconds": null})"));
}

TEST(DashboardFigures, SlowLinksComeFirstAndTheRestIsBounded) {
  const std::vector<outer_sync::protocol::Path> paths = {
      {.from = "a", .to = "b", .round_trip = 20ms, .shortest = 10ms, .bytes_per_second = 0},
      {.from = "a", .to = "c", .round_trip = 80ms, .shortest = 80ms, .bytes_per_second = 500},
      {.from = "b", .to = "c", .round_trip = 80ms, .shortest = 80ms, .bytes_per_second = 900}};
  const auto links = app::links_json(paths, {{.from = "", .to = "c"}}, 2);
  ASSERT_THAT(links, SizeIs(2));
  EXPECT_EQ(links[0],
            Json::parse(R"({"from": "a", "to": "c", "round_trip_ms": 80.0, "shortest_round_trip_ms": 80.0,
                                      "bytes_per_second": 500, "slow": true})"));
  const auto all = app::links_json(paths, {}, 10);
  EXPECT_EQ(all[0]["round_trip_ms"], 20.0);
  EXPECT_TRUE(all[0]["bytes_per_second"].is_null());
}

TEST(DashboardLines, AreTheNewestAndAlwaysValidJson) {
  app::RecentLines lines;
  for (std::size_t i = 0; i < 2 * app::RecentLines::kept; ++i) lines.add(1, "line " + std::to_string(i));
  lines.add(2.5, "bad \xff byte, \x1b and " + std::string(10'000, 'x'));
  const auto document = Json::parse(app::dashboard_json(0.25, lines.json(), "null"), nullptr, false);
  ASSERT_TRUE(document.is_object());
  EXPECT_TRUE(document["run"].is_null());
  ASSERT_THAT(document["lines"], SizeIs(app::RecentLines::kept));
  EXPECT_EQ(document["lines"][0]["time"], 2.5);
  EXPECT_LE(document["lines"][0]["text"].get<std::string>().size(), app::RecentLines::max_bytes + 8);
  EXPECT_EQ(document["lines"][1]["text"], "line 119");
}

// ---- rules for reading it ----

const std::string page_token(64, '7');

std::string answer_at(const std::string& address, const std::string& target, const std::string& more = {}) {
  const auto pages = app::dashboard_pages(outer_sync::parse_address(address, "test"), page_token, "n0nce",
                                          [] { return std::string("{}"); });
  return answer_to("GET " + target + " HTTP/1.1\r\n" + more + "\r\n", pages);
}

TEST(DashboardToken, IsNeededUnlessTheAddressIsLoopback) {
  for (const auto* own : {"127.0.0.1:9500", "[::1]:9500", "localhost:9500"})
    EXPECT_THAT(answer_at(own, "/status.json"), StartsWith("HTTP/1.1 200 OK")) << own;
  for (const auto* open : {"0.0.0.0:9500", "[::]:9500", "10.0.0.5:9500", "eu.example:9500"}) {
    for (const auto* path : {"/", "/status.json", "/other"}) {
      for (const auto& query :
           {std::string(), std::string("?token="), "?token=" + page_token.substr(1),
            "?token=" + page_token + "7", "?token=" + std::string(64, '8'), "?other=" + page_token,
            "?token=wrong&token=" + page_token, "?xtoken=" + page_token})
        EXPECT_THAT(answer_at(open, path + query), StartsWith("HTTP/1.1 403 Forbidden"))
            << open << path << query;
    }
    EXPECT_THAT(answer_at(open, "/?token=" + page_token),
                AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("<!doctype html>")));
    EXPECT_THAT(answer_at(open, "/status.json?a=b&token=" + page_token), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(answer_at(open, "/other?token=" + page_token), StartsWith("HTTP/1.1 404 Not Found"));
  }
}

TEST(DashboardToken, OnLoopbackAForeignNameOfThisMachineIsRefused) {
  for (const std::string host : {"127.0.0.1:9500", "localhost:9500", "localhost", "[::1]:9500", "127.8.0.1"})
    EXPECT_THAT(answer_at("127.0.0.1:9500", "/", "Host: " + host + "\r\n"), StartsWith("HTTP/1.1 200"))
        << host;
  for (const auto* host :
       {"evil.example:9500", "evil.example", "127.0.0.1.evil.example", "10.0.0.5:9500", ""})
    EXPECT_THAT(answer_at("127.0.0.1:9500", "/", "Accept: */*\r\nhOST:  " + std::string(host) + "\r\n"),
                StartsWith("HTTP/1.1 403"))
        << host;
  EXPECT_THAT(answer_at("eu.example:9500", "/?token=" + page_token, "Host: other.example\r\n"),
              StartsWith("HTTP/1.1 200"))
      << "the token is enough, through any name";
}

TEST(DashboardAnswers, ForbidWhatThePageDoesNotNeed) {
  for (const auto* path : {"/", "/status.json", "/other"})
    EXPECT_THAT(
        answer_at("127.0.0.1:9500", path),
        AllOf(HasSubstr("\r\nContent-Security-Policy: default-src 'none'; script-src 'nonce-n0nce'; "),
              HasSubstr("connect-src 'self'"), HasSubstr("frame-ancestors 'none'"),
              HasSubstr("\r\nX-Content-Type-Options: nosniff\r\n"),
              HasSubstr("\r\nReferrer-Policy: no-referrer\r\n"), HasSubstr("\r\nCache-Control: no-store\r\n"),
              Not(HasSubstr("Access-Control")), Not(HasSubstr(page_token))));
  const auto pages = app::dashboard_pages({"127.0.0.1", 9500}, "", "n", [] { return std::string("{}"); });
  EXPECT_THAT(answer_to("POST / HTTP/1.1\r\n\r\n", pages), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(answer_to("GET /\r\n\r\n", pages), StartsWith("HTTP/1.1 400"));
  const auto head = answer_to("HEAD /status.json HTTP/1.1\r\n\r\n", pages);
  EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 2\r\n")));
  EXPECT_EQ(head.substr(head.size() - 4), "\r\n\r\n");
}

TEST(DashboardUrl, NamesTheMachineWhereAllItsAddressesAreServed) {
  EXPECT_EQ(app::dashboard_url({"127.0.0.1", 9500}, page_token, "eu"), "http://127.0.0.1:9500/");
  EXPECT_EQ(app::dashboard_url({"0.0.0.0", 9500}, page_token, "eu"), "http://eu:9500/?token=" + page_token);
  EXPECT_EQ(app::dashboard_url({"fd00::5", 9500}, page_token, "eu"),
            "http://[fd00::5]:9500/?token=" + page_token);
}

TEST(DashboardToken, IsKeptInAFileForThisAccountAlone) {
  const TemporaryFolder folder;
  const auto file = folder / "dashboard.token";
  const auto made = app::dashboard_token(file);
  EXPECT_EQ(made.size(), 64U);
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(app::dashboard_token(file), made) << "a coordinator that is restarted keeps it";
  folder.write("dashboard.token", "short\n");
  try {
    (void)app::dashboard_token(file);
    ADD_FAILURE() << "a token of five characters was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.string()), HasSubstr("expected 64 hexadecimal digits")));
  }
}

TEST(DashboardConfig, AnAddressIsNeeded) {
  Site site;
  const auto result = site.isthmus({"config", site.config().string(), "--set", "dashboard.listen=here"});
  EXPECT_EQ(result.status, 2) << result.report();
  EXPECT_THAT(result.output, HasSubstr("dashboard.listen is 'here'; expected HOST:PORT"));
}

// ---- a real coordinator ----

class Served : public ::testing::Test {
 protected:
  void start_coordinator(const std::string& listen) {
    coordinator.emplace(site.start({"coordinator", "--config", site.config().string(), "--listen",
                                    "127.0.0.1:0", "--set", "dashboard.listen=" + listen}));
    const std::string phrase = "dashboard at http://";
    ASSERT_TRUE(coordinator->says(phrase)) << site.logs();
    const auto text = coordinator->output();
    const auto begin = text.find(phrase) + phrase.size();
    url = text.substr(begin, text.find('\n', begin) - begin);
    const auto slash = url.find('/');
    port = static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':', slash) + 1)));
    query = url.substr(slash + 1);
    address = coordinator->coordinator_address();
  }
  [[nodiscard]] std::string get(const std::string& target) const {
    return answer_from(port, "GET " + target + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  }
  [[nodiscard]] Json document() const {
    const auto text = get("/status.json" + query);
    const auto body = text.find("\r\n\r\n");
    return body == text.npos ? Json() : Json::parse(text.substr(body + 4), nullptr, false);
  }

  Site site;
  std::optional<Command> coordinator;
  std::string url, query, address;
  std::uint16_t port = 0;
};

TEST_F(Served, ThePageAndTheStateOfTheRun) {
  start_coordinator("0");
  EXPECT_EQ(query, "") << "on loopback there is no token";
  EXPECT_FALSE(std::filesystem::exists(site.run() / "dashboard.token"));
  EXPECT_THAT(get("/"), AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("text/html"), HasSubstr("</html>")));
  EXPECT_THAT(get("/metrics"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(get("/index.html"), StartsWith("HTTP/1.1 404"));
  auto reducer = site.start({"worker", "--reduce-only", "--config", site.config().string(), "--coordinator",
                             address, "--name", "third"});
  Json seen;
  ASSERT_TRUE(eventually([&] {
    seen = document();
    return seen.is_object() && seen["run"].is_object() && !seen["run"]["status"]["members"].empty();
  })) << site.logs();
  const auto& status = seen["run"]["status"];
  EXPECT_EQ(status["run"], "tiny");
  EXPECT_EQ(status["phase"], "joining");
  EXPECT_EQ(status["members"][0]["name"], "third");
  EXPECT_EQ(status["members"][0]["kind"], "reducer");
  EXPECT_EQ(seen["run"]["next_checkpoint"]["step"], 40) << "the end of the run";
  EXPECT_TRUE(seen["run"]["evaluations"].is_array() && seen["run"]["training"].is_array());
  EXPECT_LT(seen["age_seconds"].get<double>(), 60);
  EXPECT_THAT(seen["lines"].dump(), AllOf(HasSubstr("third joined"), HasSubstr("listens at port")));
}

TEST_F(Served, ElsewhereOnlyWithTheToken) {
  start_coordinator("0.0.0.0:0");
  ASSERT_THAT(query, StartsWith("?token="));
  for (const auto* target : {"/", "/status.json", "/status.json?token=1", "/other"})
    EXPECT_THAT(get(target), StartsWith("HTTP/1.1 403")) << target;
  EXPECT_THAT(get("/" + query), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(get("/other" + query), StartsWith("HTTP/1.1 404"));
  const auto seen = document();
  ASSERT_TRUE(seen.is_object());
  const auto secret = query.substr(query.find('=') + 1);
  EXPECT_THAT(seen.dump(), Not(HasSubstr(secret)));
  const auto before = query;
  coordinator->signal(SIGKILL);
  coordinator->wait();
  start_coordinator("0.0.0.0:0");
  EXPECT_EQ(query, before) << "an open page continues with the next coordinator";
}

TEST_F(Served, NoPageUnlessItIsAskedFor) {
  coordinator.emplace(
      site.start({"coordinator", "--config", site.config().string(), "--listen", "127.0.0.1:0"}));
  ASSERT_FALSE(coordinator->coordinator_address().empty()) << site.logs();
  EXPECT_THAT(coordinator->output(), Not(HasSubstr("dashboard at")));
}

}  // namespace
}  // namespace isthmus
