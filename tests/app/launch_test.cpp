// `isthmus launch` from a config file to a summary.

#include <algorithm>
#include <sstream>

#include "site.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* replicas[] = {"replica-0", "replica-1"};

void expect_summary(const nlohmann::json& s) {
  for (const auto* key : {"replicas", "parameters", "steps", "tokens", "initial_eval_loss", "final_eval_loss",
                          "wall_seconds", "compute_utilization", "stall_seconds", "wan_bytes_sent",
                          "bits_per_parameter_per_step", "rounds_committed", "global_hash"}) {
    EXPECT_TRUE(s.contains(key)) << "summary.json has no " << key << ": " << s.dump(2);
  }
  EXPECT_EQ(s["replicas"], 2);
  EXPECT_EQ(s["steps"], 40);
  EXPECT_EQ(s["tokens"], 2 * 40 * 4 * 32);
  EXPECT_LT(s["final_eval_loss"].get<double>(), s["initial_eval_loss"].get<double>() - 1);
  EXPECT_GT(s["compute_utilization"].get<double>(), 0);
  EXPECT_LE(s["compute_utilization"].get<double>(), 1);
  // Three fragments: one round each in ten warm-up steps, three rounds each in the 30 steps after them, and
  // one at the end.
  EXPECT_EQ(s["warmup_rounds"], 30);
  EXPECT_EQ(s["rounds_committed"], 30 + 9 + 3);
  for (const auto* name : replicas) {
    const auto& sent = s["wan_bytes_sent"][name];
    EXPECT_GT(sent["payload"].get<std::uint64_t>(), 0U);
    EXPECT_GT(sent["total"].get<std::uint64_t>(), sent["payload"].get<std::uint64_t>());
  }
}

TEST(Launch, ReportsWhyAWorkerFailedBeforeTheOthersStop) {
  Site site;
  const auto result = site.launch({R"(worker.command=[sh, -c, "echo out of luck; exit 2"])"});
  EXPECT_EQ(result.status, 2) << result.report();
  const auto cause = result.output.find("failed with exit status 2; the end of ");
  ASSERT_NE(cause, std::string::npos) << result.report();
  EXPECT_THAT(result.output, HasSubstr("out of luck"));
  EXPECT_LT(cause, result.output.find("stopping: ")) << result.report();
}

TEST(Launch, TrainsAndLeavesAWholeRunFolder) {
  Site site;
  const auto result = site.launch();
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  EXPECT_THAT(site.processes(), ::testing::SizeIs(0)) << "processes left after the launch";
  expect_summary(site.summary());
  EXPECT_THAT(result.output, AllOf(HasSubstr("eval loss"), HasSubstr("equal on all replicas"),
                                   HasSubstr(site.hash().substr(0, 16)), HasSubstr(site.run().string())));
  for (const auto* name : replicas) {
    const auto folder = site.run() / name;
    EXPECT_GE(site.metric_lines(name), 40U);
    EXPECT_TRUE(std::filesystem::exists(folder / "checkpoints/step_000000000040_replica_0.ckpt"));
    EXPECT_TRUE(nlohmann::json::accept(read_all(folder / "trace.json"))) << folder / "trace.json";
    const auto is_event_file = [](const auto& entry) {
      return entry.path().filename().string().starts_with("events.out.tfevents.") &&
             entry.file_size() > 40 * 100;
    };
    EXPECT_EQ(std::ranges::count_if(std::filesystem::directory_iterator(folder), is_event_file), 1);
  }
}

/// The figures of outer steps in a metrics.jsonl, except for figures that differ by replica.
std::vector<nlohmann::json> agreed_figures(const std::filesystem::path& file) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(read_all(file));
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text);
    if (!line.contains("outer_steps")) continue;
    for (auto figures : line["outer_steps"]) {
      EXPECT_GT(figures["spread_at_send"], 0);
      EXPECT_GT(figures["spread_at_apply"], 0);
      figures.erase("spread_at_send");
      figures.erase("spread_at_apply");
      figures["step"] = line["step"];
      out.push_back(std::move(figures));
    }
  }
  return out;
}

TEST(Launch, ReplicasAgreeOnTheFiguresOfOuterSteps) {
  Site site;
  const auto result = site.launch({"outer.sync_every=3", "outer.sync_delay=1"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  const auto figures = agreed_figures(site.run() / "replica-0/metrics.jsonl");
  EXPECT_THAT(figures, ::testing::SizeIs(3)) << "rounds 16, 15 and 14 of the three fragments";
  EXPECT_EQ(figures, agreed_figures(site.run() / "replica-1/metrics.jsonl"));
  double gains = 0;
  for (const auto& of_one : figures) gains += of_one["gain"].get<double>();
  EXPECT_NEAR(site.summary()["outer_steps"]["gain"], gains / 3, 1e-12);
  EXPECT_THAT(result.output, HasSubstr("outer steps"));
}

TEST(Launch, Gpt2TrainsInMicroBatchesAndLayersThatAreRecomputed) {
  Site site;
  const auto result = site.launch({"model.architecture=gpt2", "trainer.micro_batch=3", "inner.z_loss=1e-4",
                                   "trainer.activation_checkpointing=true"});
  ASSERT_EQ(result.status, 0) << result.report() << site.logs();
  expect_summary(site.summary());
}

TEST(Launch, ConfigInTheRunFolderReadsBack) {
  Site site;
  const auto settings = Words{"run.steps=2", "outer.warmup_steps=1", "inner.lr=0.0123"};
  ASSERT_EQ(site.launch(settings).status, 0) << site.logs();
  const auto written = read_all(site.run() / "config.yaml");
  EXPECT_THAT(written, HasSubstr("lr: 0.0123"));
  const auto read_back = site.isthmus({"config", (site.run() / "config.yaml").string()});
  EXPECT_EQ(read_back.output, written) << read_back.report();
}

TEST(Launch, ARerunKeepsTheOldRun) {
  Site site;
  const Words short_run = {"run.steps=2", "outer.warmup_steps=1"};
  ASSERT_EQ(site.launch(short_run).status, 0) << site.logs();
  const auto old_summary = read_all(site.run() / "summary.json");
  const auto again = site.launch(short_run);
  ASSERT_EQ(again.status, 0) << again.report() << site.logs();
  EXPECT_EQ(read_all(site / "runs/tiny.1/summary.json"), old_summary);
  EXPECT_TRUE(std::filesystem::exists(site / "runs/tiny.1/replica-1/checkpoints"));
  EXPECT_THAT(again.output, HasSubstr(" to " + (site / "runs/tiny.1").string()));
  EXPECT_NE(read_all(site.run() / "summary.json"), old_summary) << "two runs with the same times?";
}

TEST(CommandLine, VersionNamesWhatWasBuilt) {
  Site site;
  const auto result = site.isthmus({"--version"});
  EXPECT_EQ(result.status, 0);
  for (const auto* word : {"isthmus ", "commit ", "torch ", "CUDA ", "protocol ", "numerics "}) {
    EXPECT_THAT(result.output, HasSubstr(word));
  }
}

TEST(CommandLine, HelpOfEachVerbHasAnExample) {
  Site site;
  const auto all = site.isthmus({"--help"});
  EXPECT_EQ(all.status, 0);
  EXPECT_THAT(all.output, HasSubstr("Exit status:"));
  for (const auto* verb : {"launch", "coordinator", "worker", "config"}) {
    EXPECT_THAT(all.output, HasSubstr(verb));
    const auto result = site.isthmus({verb, "--help"});
    EXPECT_EQ(result.status, 0) << result.report();
    EXPECT_THAT(result.output, HasSubstr(std::string("Example:\n  isthmus ") + verb));
  }
}

}  // namespace
}  // namespace isthmus
