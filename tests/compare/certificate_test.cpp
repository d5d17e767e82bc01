// `compare --certify` on recorded runs: verdicts of gates, certificates, and plain comparisons.

#include "compare/report/certificate.h"

#include <fmt/format.h>

#include "command.h"
#include "compare/report/page.h"
#include "compare/report/verdicts.h"
#include "compare/runs/run_state.h"
#include "recorded.h"
#include "run/output/version.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Outcome = app::GateVerdict::Outcome;

constexpr const char* gated = R"(
base: base.yaml
seeds: [1, 2, 3]
arms:
  data_parallel: {outer.method: data_parallel}
  two: {inner.lr: 0.5}
gates:
  parity: {arm: two, against: data_parallel, at_most: 1.0, bits: 0.44}
)";

/// Bytes that a replica of `Recorded` sends in total at this many payload bits per parameter and step.
constexpr double bytes_of(double bits) { return bits * 1e4; }

class Certificate : public ::testing::Test {
 protected:
  /// The verdict on `two` with these losses of its runs; the baseline's are 1.0, 1.1 and 1.2.
  app::GateVerdict verdict(const std::vector<double>& losses, double bits = 0.4) {
    folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, bytes_of(20));
    folder.finish_arm(comparison, 1, losses, bytes_of(bits));
    return verdict();
  }
  app::GateVerdict verdict() const {
    const auto records = records_of(comparison);
    return app::judge(comparison.gates.at(0), app::gate_figures(records.of_arm[1], records.of_arm[0]));
  }
  nlohmann::ordered_json report() const { return app::report_json(comparison, records_of(comparison)); }
  nlohmann::ordered_json certificate() const { return report()["certificate"]; }
  const app::RunPlan& run(std::size_t arm, std::int64_t seed) const {
    return *std::ranges::find_if(comparison.runs,
                                 [&](const auto& r) { return r.arm == arm && r.seed == seed; });
  }

  Recorded folder;
  app::Comparison comparison = folder.comparison(gated);
};

TEST_F(Certificate, PassesWhereTheWholeIntervalIsWithinTheBound) {
  EXPECT_EQ(verdict({1.001, 1.102, 1.202}).outcome, Outcome::passed);
  const auto json = certificate();
  EXPECT_TRUE(json["passed"]);
  const auto& gate = json["gates"][0];
  EXPECT_EQ(gate["verdict"], "passed");
  EXPECT_NEAR(gate["difference"], 0.005 / 3.3, 1e-9);
  EXPECT_LT(gate["low"], gate["difference"]);
  EXPECT_LE(gate["high"], 0.01);
  EXPECT_EQ(gate["seeds"], nlohmann::ordered_json::parse("[1, 2, 3]"));
  EXPECT_NEAR(gate["bits_per_parameter_per_step"], 0.4, 1e-9);
}

TEST_F(Certificate, FailsWhereTheWholeIntervalIsAboveTheBound) {
  EXPECT_EQ(verdict({1.02, 1.12, 1.221}).outcome, Outcome::failed);
  const auto json = certificate();
  EXPECT_FALSE(json["passed"]);
  EXPECT_EQ(json["gates"][0]["verdict"], "failed");
  EXPECT_GT(json["gates"][0]["low"], 0.01);
}

TEST_F(Certificate, SaysHowManySeedsWouldShowIt) {
  // Mean .27 %, deviation .48 %: half of the interval is .77 % with 4 seeds and .60 % with 5, while .73 % are
  // left.
  const auto above = verdict({1.001, 1.109, 1.199});
  EXPECT_EQ(above.outcome, Outcome::not_shown);
  EXPECT_EQ(above.more_seeds, 2U);
  EXPECT_EQ(app::to_string(above), "not shown, needs 2 more seeds");
  EXPECT_FALSE(certificate()["passed"]);
  EXPECT_EQ(app::to_string({Outcome::not_shown, 1}), "not shown, needs 1 more seed");
}

TEST_F(Certificate, AMeanOnTheBoundIsNeverShown) {
  comparison.gates[0].at_most = 0.0;
  const auto on_it = verdict({0.75, 1.1, 1.45});
  EXPECT_EQ(on_it.outcome, Outcome::not_shown);
  EXPECT_EQ(app::to_string(on_it), "not shown, needs more than 1000 seeds");
}

TEST_F(Certificate, FailsWhereTheArmSendsMore) {
  EXPECT_EQ(verdict({1.001, 1.102, 1.202}, 0.4399).outcome, Outcome::passed);
  EXPECT_EQ(verdict({1.001, 1.102, 1.202}, 0.45).outcome, Outcome::failed);
  EXPECT_EQ(certificate()["gates"][0]["max_bits"], 0.44);
  comparison.gates[0].bits.reset();
  EXPECT_EQ(verdict().outcome, Outcome::passed);
}

TEST_F(Certificate, TheRunThatSendsMostCounts) {
  static_cast<void>(verdict({1.001, 1.102, 1.202}));
  folder.finish(run(1, 2), {{0, 3}, {20, 2}, {40, 1.102}}, bytes_of(0.5));
  EXPECT_EQ(verdict().outcome, Outcome::failed);
}

TEST_F(Certificate, FewerThanThreeSeedsShowNothing) {
  EXPECT_EQ(verdict().more_seeds, 3U);
  EXPECT_EQ(verdict({1.001}).more_seeds, 2U);
  const auto two = verdict({1.001, 1.101});
  EXPECT_EQ(two.outcome, Outcome::not_shown);
  EXPECT_EQ(two.more_seeds, 1U);
  EXPECT_EQ(verdict({1.1, 1.2}, 4).outcome, Outcome::not_shown)
      << "nor may it be shown to be worse and to send more";
  EXPECT_GT(verdict({1.0, 1.15}).more_seeds, 1U)
      << "two seeds that differ a lot must require more than one further seed";
}

TEST_F(Certificate, ARunThatDivergedFailsIt) {
  ASSERT_EQ(verdict({1.001, 1.102, 1.202}).outcome, Outcome::passed);
  app::mark_ended(run(1, 2), {"diverged", "diverged: the loss is nan"});
  EXPECT_EQ(verdict().outcome, Outcome::failed);
  EXPECT_THAT(app::gate_cells(certificate()["gates"][0]).verdict,
              HasSubstr("failed; seed 2 diverged: the loss is nan"));
  app::mark_ended(run(0, 2), {"diverged", "diverged: the loss is nan"});
  EXPECT_EQ(verdict().outcome, Outcome::not_shown) << "the baseline diverged with this seed too";
}

TEST_F(Certificate, SaysWhatItWasMadeOf) {
  static_cast<void>(verdict({1.001, 1.102, 1.202}));
  const auto json = certificate();
  EXPECT_EQ(json["commit"], app::commit());
  EXPECT_GT(json["protocol"], 0);
  EXPECT_GT(json["numerics"], 0);
  ASSERT_THAT(json["arms"], SizeIs(2));
  EXPECT_NE(json["arms"][0]["config_fingerprint"], json["arms"][1]["config_fingerprint"]);
  EXPECT_EQ(app::config_fingerprint(run(1, 1)), app::config_fingerprint(run(1, 3)));
  ASSERT_THAT(json["runs"], SizeIs(6));
  for (const auto& entry : json["runs"]) {
    EXPECT_EQ(entry["global_hash"], Recorded::global_hash);
    EXPECT_EQ(entry["commit"], Recorded::commit);
  }
  EXPECT_THAT(json["notes"].dump(), HasSubstr(std::string("by other commits: ") + Recorded::commit));

  const auto file = run(0, 1).folder() / "summary.json";
  auto summary = nlohmann::json::parse(read_all(file));
  summary.erase("commit");
  summary.erase("global_hash");
  std::ofstream(file) << summary.dump();
  const auto older = certificate();
  EXPECT_TRUE(older["runs"][0]["global_hash"].is_null());
  EXPECT_THAT(older["notes"].dump(), HasSubstr("an unknown commit"));
}

TEST_F(Certificate, StandsInThePageAndOnTheTerminal) {
  comparison.gates[0].name = "<b>parity</b>";
  static_cast<void>(verdict({1.001, 1.109, 1.199}, 0.4));
  const auto json = report();
  const auto text = app::terminal_report(json), page = app::report_page(json);
  EXPECT_THAT(
      text, AllOf(HasSubstr("certificate: 0 of 1 gate passed"),
                  HasSubstr("<b>parity</b>: not shown, needs 2 more seeds"),
                  HasSubstr("\n  two against data_parallel: +0.27 %"), HasSubstr("0.4000 bits"),
                  HasSubstr("\n  seed 3: global hash " + std::string(Recorded::global_hash).substr(0, 16))));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(page, AllOf(HasSubstr("<h2>Certificate: 0 of 1 gate passed</h2>"),
                          HasSubstr("&lt;b&gt;parity&lt;/b&gt;"), HasSubstr("not shown, needs 2 more seeds"),
                          HasSubstr(Recorded::global_hash)));
  comparison.gates.clear();
  EXPECT_FALSE(report().contains("certificate"));
  EXPECT_THAT(app::report_page(report()), Not(HasSubstr("Certificate")));
}

TEST(Gates, BadOnesAreRefusedByName) {
  const Recorded folder;
  folder.write("theirs.csv", "0,3\n10240,1\n");
  const auto with = [](const std::string& gates) {
    return "base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}, large: {inner.batch: 8}, theirs: "
           "{curve: theirs.csv}}\ngates: " +
           gates;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{x: {arm: c}}", "comparison.yaml:3: gates.x.arm is c, which is not an arm; did you mean"},
      {"{x: {arm: b, against: c}}", "gates.x.against is c, which is not an arm; did you mean"},
      {"{x: {at_most: 1}}", "gates.x.arm is empty; expected the name of the arm"},
      {"{x: {arm: a}}", "compares a with itself"},
      {"{x: {arm: b}, y: {arm: b, against: a}}", "the gates x and y both judge b against a"},
      {"{x: {arm: b, at_most: -1}}", "gates.x.at_most is -1"},
      {"{x: {arm: b, at_most: much}}", "expected a number from 0 to 100"},
      {"{x: {arm: b, bits: -0.4}}", "gates.x.bits is -0.4"},
      {"{x: {arm: b, atmost: 1}}", "unknown key gates.x.atmost"},
      {"{x: {arm: b, arm: a}}", "gates.x.arm is given twice"},
      {"{x: 1}", "the gate x is a plain value"},
      {"[b]", "gates is a plain value"},
      {"{x: {arm: theirs}}", "gates.x.arm is theirs, which is a curve"},
      {"{x: {arm: large}}",
       "gate x: large is trained on 20480 tokens and a on 10240; expected equal numbers"},
  };
  for (const auto& [gates, said] : cases)
    EXPECT_THAT(error_of([&] { static_cast<void>(folder.comparison(with(gates))); }), HasSubstr(said))
        << gates;
  EXPECT_THAT(
      error_of([&] { static_cast<void>(folder.comparison(with("{x: {arm: b}}\nbaseline: theirs"))); }),
      HasSubstr("gates.x.against is theirs, which is a curve"));
  EXPECT_THAT(folder.comparison(with("{x: {arm: b}}")).gates, SizeIs(1));
}

TEST(Gates, DefaultsAreOnePercentAgainstTheBaseline) {
  const Recorded folder;
  const auto comparison = folder.comparison(
      "base: base.yaml\nbaseline: b\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}\ngates: {x: {arm: a}}");
  ASSERT_THAT(comparison.gates, SizeIs(1));
  EXPECT_EQ(comparison.gates[0].arm, 0U);
  EXPECT_EQ(comparison.gates[0].against, 1U);
  EXPECT_DOUBLE_EQ(comparison.gates[0].at_most, 0.01);
  EXPECT_FALSE(comparison.gates[0].bits);
}

TEST(Gates, RunsOfOneArmMustHaveOneConfig) {
  const Recorded folder;
  const auto made =
      folder.comparison("base: base.yaml\nseeds: [1, 2]\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}");
  for (std::size_t arm = 0; arm < 2; ++arm) folder.finish_arm(made, arm, {1.0, 1.1}, 1000);
  const auto text = [&](std::size_t first, std::size_t second) {
    return fmt::format("arms:\n  x: {{runs: [{}]}}\n  y: {{runs: [{}, {}]}}\ngates: {{g: {{arm: y}}}}\n",
                       made.runs[0].folder().string(), made.runs[first].folder().string(),
                       made.runs[second].folder().string());
  };
  EXPECT_THAT(folder.comparison(text(1, 3)).gates, SizeIs(1));
  EXPECT_THAT(error_of([&] { static_cast<void>(folder.comparison(text(1, 2))); }),
              HasSubstr("of the arm y have different configs"));
}

class PlainExperiment : public ::testing::Test {
 protected:
  app::Comparison certified(std::vector<std::string> assignments = {}) const {
    assignments.push_back("out=" + (folder / "out").string());
    return app::load_certified(folder / "base.yaml", {}, assignments);
  }
  const Recorded folder;
};

TEST_F(PlainExperiment, IsComparedWithItsBaselines) {
  const auto comparison = certified();
  EXPECT_EQ(comparison.folder, folder / "out/base-certificate");
  std::vector<std::string> names;
  for (const auto& arm : comparison.arms) names.push_back(arm.name);
  EXPECT_THAT(names, ElementsAre("data_parallel", "one_replica", "experiment"));
  EXPECT_EQ(comparison.baseline, 0U);
  EXPECT_THAT(comparison.keys.seeds, ElementsAre(1, 2, 3));
  ASSERT_THAT(comparison.runs, SizeIs(9));
  for (const auto& run : comparison.runs) {
    EXPECT_EQ(app::tokens_per_step(run.experiment), 256) << run.name();
    EXPECT_EQ(run.experiment.run.steps, 40);
    EXPECT_EQ(run.experiment.outer.data_parallel(), run.arm == 0);
    EXPECT_EQ(run.experiment.replicas, run.arm == 1 ? 1 : 2);
    EXPECT_EQ(run.experiment.outer.sync_every, config::Stepped(10));
  }
  ASSERT_THAT(comparison.gates, SizeIs(1));
  EXPECT_EQ(comparison.gates[0].arm, 2U);
  EXPECT_EQ(comparison.gates[0].against, 0U);
  EXPECT_DOUBLE_EQ(comparison.gates[0].at_most, 0.01);
}

TEST_F(PlainExperiment, WithMuonIsComparedWithTheWholeBatchOnOneReplica) {
  const auto comparison = certified(
      {"settings.inner.optimizer=muon", "settings.outer.min_replicas=2", "settings.outer.quorum=2"});
  ASSERT_THAT(comparison.runs, SizeIs(9));
  EXPECT_THAT(comparison.arms[0].about, HasSubstr("one replica"));
  for (const auto& run : comparison.runs) {
    EXPECT_TRUE(run.experiment.inner.is_muon());
    EXPECT_EQ(app::tokens_per_step(run.experiment), 256) << run.name();
    EXPECT_EQ(run.experiment.outer.data_parallel(), run.arm == 0);
    EXPECT_EQ(run.experiment.replicas, run.arm == 2 ? 2 : 1);
  }
}

TEST_F(PlainExperiment, TakesAssignmentsAsAComparisonDoes) {
  const auto comparison = certified({"seeds=[7, 8]", "settings.inner.batch=6", "settings.replicas=3",
                                     "gates.parity={at_most: 2, bits: 0.44}"});
  EXPECT_THAT(comparison.keys.seeds, ElementsAre(7, 8));
  ASSERT_THAT(comparison.runs, SizeIs(6));
  for (const auto& run : comparison.runs)
    EXPECT_EQ(app::tokens_per_step(run.experiment), 18 * 32) << run.name();
  EXPECT_DOUBLE_EQ(comparison.gates.at(0).at_most, 0.02);
  EXPECT_EQ(comparison.gates.at(0).bits, 0.44);
  EXPECT_THAT(error_of([&] { static_cast<void>(certified({"base=other.yaml"})); }),
              HasSubstr("--set base: leave it out"));
}

TEST_F(PlainExperiment, OneReplicaIsNotComparedWithItself) {
  const auto comparison = certified({"settings.replicas=1"});
  EXPECT_THAT(comparison.arms, SizeIs(2));
  EXPECT_EQ(comparison.arms[1].name, "experiment");
}

TEST_F(PlainExperiment, WithoutBaselinesItIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"settings.outer.method=data_parallel",
       "base.yaml: outer.method is data_parallel, which is the baseline"},
      {"settings.sites={eu: {replicas: 2}}", "base.yaml: sites has eu; expected no sites"},
      {"settings.inner.lr=fast", "inner.lr is fast"},
      {"run.steps=3", "unknown key run.steps"},
  };
  for (const auto& [assignment, said] : cases)
    EXPECT_THAT(error_of([&] { static_cast<void>(certified({assignment})); }), HasSubstr(said)) << assignment;
}

TEST_F(PlainExperiment, IsNoComparisonWithoutCertify) {
  EXPECT_THAT(error_of([&] { static_cast<void>(app::load_comparison(folder / "base.yaml", {}, {})); }),
              HasSubstr("base.yaml has neither base nor arms; expected a comparison"));
}

TEST(Certify, AComparisonNeedsGates) {
  const Recorded folder;
  folder.write("comparison.yaml", "base: base.yaml\narms: {a: {inner.lr: 1}, b: {inner.lr: 2}}");
  EXPECT_THAT(error_of([&] { static_cast<void>(app::load_certified(folder.file(), {}, {})); }),
              HasSubstr("gates is missing; expected the gates that --certify judges"));
  folder.write("comparison.yaml", "base: base.yaml\nseeds: [1]");
  EXPECT_THAT(error_of([&] { static_cast<void>(app::load_certified(folder.file(), {}, {})); }),
              HasSubstr("has no arms"));
}

TEST(Certify, TheExitStatusSaysWhetherAllPassed) {
  const Recorded folder;
  const std::string out = "out=" + (folder / "out").string();
  const auto comparison = app::load_certified(folder / "base.yaml", {}, {out});
  std::filesystem::create_directories(comparison.folder);
  std::ofstream(comparison.folder / "comparison.json") << R"({"name":"base-certificate","size":""})";
  const auto certify = [&](std::vector<std::string> more = {}) {
    std::vector<std::string> words = {
        coordinator_program, "compare", folder / "base.yaml", "--no-run", "--certify", "--set", out};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words, folder / "command.log");
  };
  folder.finish_arm(comparison, 0, {1.0, 1.1, 1.2}, bytes_of(20));
  const auto early = certify();
  EXPECT_EQ(early.status, 5) << early.report();
  EXPECT_THAT(early.output, HasSubstr("not shown, needs 3 more seeds"));

  folder.finish_arm(comparison, 1, {1.0, 1.1, 1.2}, 0);
  folder.finish_arm(comparison, 2, {1.001, 1.102, 1.202}, bytes_of(0.4));
  const auto passed = certify({"--json"});
  ASSERT_EQ(passed.status, 0) << passed.report();
  EXPECT_TRUE(nlohmann::json::parse(passed.output)["certificate"]["passed"]);

  const auto strict = certify({"--set", "gates.parity.at_most=0"});
  EXPECT_EQ(strict.status, 5) << strict.report();
  EXPECT_THAT(strict.output, HasSubstr("not certified: 0 of 1 gate passed"));
}

}  // namespace
}  // namespace isthmus
