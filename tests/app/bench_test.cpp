// `isthmus bench outer`: real processes under steps that sleep, on one machine and by parts.

#include <algorithm>
#include <numeric>
#include <sstream>

#include "bench/report.h"
#include "site.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// 4.25 bits per parameter in 10 steps, in five fragments that are sent two steps apart.
constexpr std::string_view bench_config = R"(
outer: {num_fragments: 5, sync_every: 10, sync_delay: 2, codec: 4bit}
network: {detect_timeout: 60s} # machines that test are busy
)";

class BenchOuter : public ::testing::Test {
 protected:
  BenchOuter() { config = site.write("bench.yaml", bench_config).string(); }

  /// The command line for a million parameters and steps of 5 ms, unless `more` sets others.
  [[nodiscard]] Words outer(const Words& more = {}) const {
    Words words = {"bench", "outer", "--config", config, "--out", json_file().string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto has = [&](const char* flag) { return std::ranges::find(words, flag) != words.end(); };
    if (!has("--params")) words.insert(words.end(), {"--params", "1M"});
    if (!has("--step-time")) words.insert(words.end(), {"--step-time", "5ms"});
    return words;
  }
  [[nodiscard]] std::filesystem::path json_file() const { return site / "report.json"; }
  [[nodiscard]] nlohmann::json report() const {
    const auto text = read_all(json_file());
    auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) ADD_FAILURE() << "no report: '" << text << "'" << site.logs();
    return json;
  }
  /// Sum of all parts of the time, which must make up the whole.
  static double sum_of_parts(const nlohmann::json& report) {
    double sum = report["compute_utilization"];
    for (const auto& part : report["lost"]) {
      EXPECT_GE(part.get<double>(), 0) << report.dump(2);
      sum += part.get<double>();
    }
    return sum;
  }
  static bool said(const Command& command, const std::string& words) {
    return eventually([&] {
      const auto text = command.output();
      const auto at = text.find(words);
      return at != std::string::npos && text.find('\n', at) != std::string::npos;
    });
  }

  Site site;
  std::string config;
};

TEST_F(BenchOuter, ItsFiguresFitTogether) {
  const auto result = site.isthmus(outer({"--replicas", "2", "--steps", "40"}));
  ASSERT_EQ(result.status, 0) << result.report();
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(result.output, HasSubstr("equal on all replicas"));

  const auto r = report();
  EXPECT_EQ(r["parameters"], 1'000'000);
  EXPECT_EQ(r["steps"], 40);
  EXPECT_EQ(r["measured_steps"], 30) << "the first sync interval fills the pipeline and is not measured";
  EXPECT_GT(r["compute_utilization"], 0.0);
  EXPECT_LE(r["compute_utilization"], 1.0);
  EXPECT_NEAR(sum_of_parts(r), 1, 1e-6) << r.dump(2);
  EXPECT_FALSE(r.contains("link_bits_per_parameter_per_step")) << "the link has no rate";
  ASSERT_THAT(r["members"], SizeIs(2));
  for (const auto& member : r["members"]) {
    EXPECT_EQ(member["rounds"], 40 / 10 * 5) << "each of five fragments every ten steps";
    EXPECT_EQ(member["measured_rounds"], 15) << member.dump(2);
    EXPECT_LE(member["late_rounds"], member["measured_rounds"]);
    EXPECT_EQ(member["global_hash"], r["global_hash"]);
    EXPECT_NEAR(member["compute_seconds"].get<double>(), 30 * 0.005, 1e-9);
    EXPECT_GT(member["fragment_seconds_median"], 0.0);
    EXPECT_GE(member["fragment_seconds_p99"], member["fragment_seconds_median"]);
    EXPECT_GT(member["total_bytes"], member["payload_bytes"]);
    // Two replicas send 4.25 bits per parameter in ten steps, except for bytes still under way at the end.
    const double bits = 8 * member["payload_bytes"].get<double>() / 1e6 / 40;
    EXPECT_LE(bits, 0.4251);
    EXPECT_GT(bits, 0.38);
  }
  EXPECT_THAT(r["global_hash"].get<std::string>(), SizeIs(64));
}

TEST_F(BenchOuter, WhatItIsToldIsAppliedToTheLastBit) {
  const Words words = outer({"--replicas", "2", "--steps", "20"});
  ASSERT_EQ(site.isthmus(words).status, 0) << site.logs();
  const auto first = report()["global_hash"];
  auto far = with_settings(words, {"network.emulate.rtt=20ms", "network.emulate.jitter=10ms"});
  ASSERT_EQ(site.isthmus(far).status, 0) << site.logs();
  EXPECT_EQ(report()["global_hash"], first) << "the link must not change any bit";
  ASSERT_EQ(site.isthmus(with_settings(words, {"run.seed=2"})).status, 0) << site.logs();
  EXPECT_NE(report()["global_hash"], first) << "another seed must give other outer gradients";
}

TEST_F(BenchOuter, ALinkThatIsTooSlowIsWaitedFor) {
  // A tenth of the rate that 4.25 bits per parameter in ten steps of 5 ms need.
  const auto result = site.isthmus(
      with_settings(outer({"--replicas", "2", "--steps", "20"}), {"network.emulate.rate=8.5Mbps"}));
  ASSERT_EQ(result.status, 0) << result.report();
  const auto r = report();
  EXPECT_LT(r["compute_utilization"], 0.5) << r.dump(2);
  EXPECT_GT(r["lost"]["waiting"], 0.0);
  EXPECT_GT(r["late_rounds"], 0);
  EXPECT_NEAR(r["link_bits_per_parameter_per_step"].get<double>(), 0.0425, 1e-9);
  EXPECT_NEAR(sum_of_parts(r), 1, 1e-6);
}

TEST_F(BenchOuter, ByPartsItNeedsNoTrainerAndOneSetting) {
  const auto start = [&](const Words& more) {
    auto words = outer(more);
    words.insert(words.begin(), coordinator_program);
    return Command(std::move(words), site / (more[1] + (more.size() > 3 ? more[3] : "") + ".log"));
  };
  auto coordinator = start({"--role", "coordinator", "--listen", "127.0.0.1:0"});
  const std::string words = "listens at port ";
  ASSERT_TRUE(said(coordinator, words)) << site.logs();
  const auto text = coordinator.output();
  const auto address = "127.0.0.1:" + std::to_string(std::stoi(text.substr(text.find(words) + words.size())));
  const auto replica = [&](const std::string& name, const Words& more = {}) {
    Words flags = {"--role", "replica", "--name", name, "--coordinator", address};
    flags.insert(flags.end(), more.begin(), more.end());
    return start(flags);
  };
  const auto other = replica("other", {"--params", "2M"}).wait();
  EXPECT_EQ(other.status, 2) << other.report();
  EXPECT_THAT(other.output, HasSubstr("bench.params is 1000000 at the coordinator and 2000000 at other"));
  const auto slower = replica("slower", {"--step-time", "6ms"}).wait();
  EXPECT_EQ(slower.status, 2) << slower.report();
  EXPECT_THAT(slower.output,
              HasSubstr(R"(bench.step_time is "0.005s" at the coordinator and "0.006s" at slower)"));
  auto a = replica("a");
  auto b = replica("b");
  for (auto* command : {&a, &b, &coordinator}) {
    const auto result = command->wait();
    ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  }
  const auto r = report();
  EXPECT_EQ(r["measured_steps"], 20) << "two intervals, if no number of steps is given";
  EXPECT_THAT(a.output(), HasSubstr("a: computed "));
  EXPECT_THAT(b.output(), HasSubstr(r["global_hash"].get<std::string>()));
}

TEST_F(BenchOuter, CtrlCStopsAllAndReportsWhatThereIs) {
  auto bench = site.start(outer({"--replicas", "2", "--steps", "1000000"}));
  ASSERT_TRUE(said(bench, "view 1 begins")) << site.logs();
  bench.signal(SIGINT);
  const auto result = bench.wait();
  EXPECT_EQ(result.status, 130) << result.report();
  EXPECT_THAT(result.output, HasSubstr("stop"));
}

TEST_F(BenchOuter, ALostReplicaEndsIt) {
  auto bench = site.start(outer({"--replicas", "2", "--steps", "1000000"}));
  ASSERT_TRUE(said(bench, "view 1 begins")) << site.logs();
  kill(site.process("--name replica-1"), SIGKILL);
  const auto result = bench.wait();
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output, HasSubstr("replica-1 was killed by signal 9"));
  EXPECT_FALSE(std::filesystem::exists(json_file())) << "half a run must not write a report";
}

TEST_F(BenchOuter, WhatCannotBeMeasuredIsRefused) {
  struct Case {
    Words words;
    std::string message;
  };
  for (const auto& [words, message] : std::vector<Case>{
           {{"--params", "lots"}, "--params is 'lots'; expected a number of parameters"},
           {{"--params", "0"}, "--params is '0'"},
           {{"--params", "20Mb"}, "--params is '20Mb'"},
           {{"--params", "2000B"}, "--params is '2000B'"},
           {{"--params", "nan"}, "--params is 'nan'"},
           {{"--params", "64"}, "--params is 64 and outer.num_fragments is 5; expected at least 16"},
           {{"--params", "900B"}, "expected fewer parameters, or run each replica on its own machine"},
           {{"--step-time", "soon"}, "--step-time"},
           {{"--step-time", "0"}, "--step-time"},
           {{"--steps", "10"}, "--steps is 10; expected more than 10, the steps that fill the pipeline"},
           {{"--name", "a"}, "--name needs --role replica"},
           {{"--role", "replica"}, "--role replica needs a --name"},
           {{"--role", "trainer"}, "--role"},
           {{"--replicas", "0"}, "--replicas"},
           {{"--set", "outer.method=data_parallel"},
            "outer.method is data_parallel, which has no outer loop"},
           {{"--set", "reducers=1"}, "reducers is 1; expected 0"},
           {{"--set", "outer.sync_delay=10"}, "expected sync_delay < sync_every"},
           {{"--set", "outer.sync_evry=10"}, "outer.sync_every"},
       }) {
    const auto result = site.isthmus(outer(words));
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(message)) << result.command;
  }
}

TEST(BenchReport, QuantilesAreOfTheNearestRank) {
  std::vector<double> hundred(100);
  std::iota(hundred.rbegin(), hundred.rend(), 1);
  EXPECT_EQ(app::quantile(hundred, 0.5), 50);
  EXPECT_EQ(app::quantile(hundred, 0.99), 99);
  EXPECT_EQ(app::quantile(hundred, 1), 100);
  EXPECT_EQ(app::quantile({7}, 0.01), 7);
  EXPECT_EQ(app::quantile({}, 0.5), 0);
}

TEST(BenchLoader, SaysHowFastAConfigsDataComes) {
  Site site;
  site.write("text.txt", std::string(100'000, 'x'));
  const auto config = site.write("data.yaml", "data: {path: text.txt, seq_len: 64}\n").string();
  const Words words = {"bench",     "loader", config,
                       "--seconds", "0.2",    "--step-time",
                       "1ms",       "--out",  (site / "loader.json").string()};
  const auto result = site.isthmus(words);
  ASSERT_EQ(result.status, 0) << result.report();
  EXPECT_THAT(result.output, HasSubstr("tokens/s"));
  const auto figures = nlohmann::json::parse(read_all(site / "loader.json"));
  EXPECT_GT(figures["tokens_per_second"].get<double>(), 0);
  EXPECT_GE(figures["gpu_queue_wait"].get<double>(), 0);
  const auto missing = site.isthmus({"bench", "loader", config, "--set", "data.path=\"nowhere.txt\""});
  EXPECT_EQ(missing.status, 3) << missing.report();
  EXPECT_THAT(missing.output + missing.report(), HasSubstr("nowhere.txt"));
}

}  // namespace
}  // namespace isthmus
