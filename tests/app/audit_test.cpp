// `isthmus audit` on real runs: honest ones, and ones with a false record, a replaced checkpoint or a flipped
// bit.

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "audited_run.h"
#include "elastic_run.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "process_memory.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(AuditOf, HonestReplicasFindsEveryByteEqual) {
  run();
  const auto found = audit(site);
  ASSERT_EQ(found.result.status, 0) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 0), 3U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  for (const auto& interval : found.intervals) {
    EXPECT_TRUE(interval["like_machine"]) << interval;
    EXPECT_EQ(interval["steps"], 10);
    EXPECT_GT(interval["rounds"].size(), 0U);
    EXPECT_THAT(interval["sections"], IsEmpty()) << "the state at the end is that of the checkpoint";
    for (const auto& round : interval["rounds"]) EXPECT_EQ(round["equal"], round["chunks"]) << round;
  }
  ASSERT_EQ(found.owners.size(), 2U) << "both own chunks";
  for (const auto& owner : found.owners) {
    EXPECT_EQ(owner["status"], 0) << owner;
    EXPECT_GE(owner["results"], 4) << owner;
    EXPECT_EQ(owner["shares"].size(), 2U) << owner;
    EXPECT_NEAR(owner["gain"].get<double>(), 1, 0.2) << owner;
    EXPECT_LT(owner["distance"].get<double>(), 0.5) << owner;
  }
}

TEST_F(AuditOf, RecordsTakeTheRoomThatIsPlanned) {
  run();
  double written = 0;
  std::ifstream in(site.run() / "replica-0/audit.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto record = json::parse(line);
    if (record.contains("received") || record.contains("trained") || record.contains("applied"))
      written += static_cast<double>(line.size() + 1);
  }
  const auto plan =
      isthmus(site, {"plan", (site.run() / "config.yaml").string(), "--step-time", "1s", "--json"});
  ASSERT_EQ(plan.status, 0) << plan.report();
  const auto figures = json::parse(plan.output);
  const auto planned = figures["memory"]["audit_records"].get<double>();
  EXPECT_GT(written, 0.7 * planned);
  EXPECT_LT(written, 1.3 * planned);
  EXPECT_EQ(figures["gathered_audit_records"]["bytes"].get<double>(), planned);
  EXPECT_TRUE(figures["gathered_audit_records"]["all"]);
  const auto limited = isthmus(site, {"plan", (site.run() / "config.yaml").string(), "--step-time", "1s",
                                      "--set", "run.gather_limit=1000"});
  EXPECT_THAT(limited.output, HasSubstr("raise run.gather_limit"));
}

TEST_F(AuditOf, ASampleTakesAsManyIntervalsAsItsShareNeeds) {
  run();
  const auto draw = [&](const Words& words) {
    Words all = {"audit", site.run().string()};
    all.insert(all.end(), words.begin(), words.end());
    return site.isthmus(all).output;
  };
  EXPECT_THAT(draw({"--seed", "7"}), HasSubstr("1 of 6 intervals")) << "the default is 1 % of the rounds";
  EXPECT_THAT(draw({"--sample", "0.5", "--seed", "7"}),
              AllOf(HasSubstr("of 6 intervals"), Not(HasSubstr("1 of 6 intervals"))));
  EXPECT_THAT(draw({"--member", "replica-1", "--seed", "7"}), HasSubstr("1 of 3 intervals"));
}

TEST_F(AuditOf, OtherPacesCodecsAndOwnersIsExactToo) {
  run({"outer.pace=time", "outer.error_feedback=true", "outer.topology=hub", "reducers=1",
       "outer.merge=alpha"});
  const auto found = audit(site);
  ASSERT_EQ(found.result.status, 0) << found.result.report();
  EXPECT_EQ(found.intervals.size(), 6U) << found.result.report();
}

/// Ranks average their state for every checkpoint, also if its file is gone.
using LongAuditOf = AuditOf;
TEST_F(LongAuditOf, RanksThatAverageTheirParametersIsExactToo) {
  run({"replica.ranks=3", "replica.average_every=4", "inner.batch=6", "outer.pace=time"});
  const auto found = audit(site);
  ASSERT_EQ(found.result.status, 0) << found.result.report();
  EXPECT_EQ(found.intervals.size(), 6U) << found.result.report();
  for (const auto& interval : found.intervals) EXPECT_TRUE(interval["like_machine"]) << interval;
  for (const auto* member : {"replica-0", "replica-1"})
    std::filesystem::remove(trainer::checkpoint_file(site.run() / member / "checkpoints", 30, 0));
  const auto joined = audit(site);
  ASSERT_EQ(joined.result.status, 0) << joined.result.report();
  EXPECT_EQ(joined.intervals.size(), 4U) << joined.result.report();
}

TEST_F(AuditOf, AnUnlikeMachineComparesByDistance) {
  run({"inner.precision=fp32"});
  const auto found = audit(site, {"--set", "inner.precision=bf16"});
  ASSERT_EQ(found.result.status, 0) << found.result.report();
  EXPECT_THAT(found.result.output, HasSubstr("precision fp32 (here bf16)"));
  for (const auto& interval : found.intervals) EXPECT_FALSE(interval["like_machine"]) << interval;
}

TEST_F(AuditOf, AFalseContributionNamesItsMemberAndTheRound) {
  run();
  const auto falsify = [](json& record) {
    if (!record.contains("received") || record["received"] != 3) return;
    for (auto& contribution : record["contributions"]) {
      if (contribution["member"] == "replica-0") falsify_bytes(contribution);
    }
  };
  for (const auto* owner : {"replica-0", "replica-1"}) edit_records(site, owner, falsify);
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 5), 1U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  for (const auto& interval : found.intervals) {
    for (const auto& round : interval["rounds"])
      EXPECT_EQ(round["wrong"], interval["member"] == "replica-0" && round["round"] == 3) << round;
  }
  const auto one = site.isthmus({"audit", site.run().string(), "--member", "replica-0", "--round", "3"});
  EXPECT_EQ(one.status, 5) << one.report();
  EXPECT_THAT(one.output,
              AllOf(HasSubstr("WRONG: replica-0"), HasSubstr("fragment 0 round 3, sent at step")));
}

TEST_F(AuditOf, AFalseWeightNamesItsMemberOnAnyMachine) {
  run({"inner.precision=fp32"});
  for (const auto* owner : {"replica-0", "replica-1"}) {
    edit_records(site, owner, [](json& record) {
      if (record.value("received", 0) != 3 || record.value("fragment", 0) != 1) return;
      for (auto& contribution : record["contributions"])
        if (contribution["member"] == "replica-0")
          contribution["weight"] = contribution["weight"].get<int>() * 1000;
    });
  }
  const auto found = audit(site, {"--set", "inner.precision=bf16"});
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 5), 1U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
}

TEST_F(AuditOf, AMemberThatTrainedOnOtherSamplesThanItToldTheOthersIsNamed) {
  run();
  edit_records(site, "replica-1", [](json& record) {
    if (record.value("applied", 0) != 3 || record["fragment"] != 1) return;
    for (auto& range : record["samples"])
      if (range[0] == 0) range[2] = range[2].get<int>() - 1;  // replica-0 has track 0
  });
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 5), 1U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  EXPECT_THAT(found.result.output, HasSubstr("fragment 1 round 3, sent at step 23: it was trained on 1"));
}

TEST_F(AuditOf, AMemberThatTrainedOnOtherSamplesThanItClaimsNamesIt) {
  run();
  edit_records(site, "replica-1", [](json& record) {
    if (!record.contains("trained") || record["step"] < 20) return;
    for (auto& range : record["trained"])
      range[1] = range[1].get<int>() + 100, range[2] = range[2].get<int>() + 100;
  });
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 0), 3U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 5), 2U) << found.result.report();
  EXPECT_THAT(found.result.output, HasSubstr("WRONG: replica-1, steps 20 to 30"));
}

TEST_F(AuditOf, AReplacedCheckpointIsFound) {
  run();
  const auto file = [&](const char* member) {
    return trainer::checkpoint_file(site.run() / member / "checkpoints", 20, 0);
  };
  std::filesystem::copy_file(file("replica-1"), file("replica-0"),
                             std::filesystem::copy_options::overwrite_existing);
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_THAT(found.result.output,
              HasSubstr("differs from the digest that was reported when it was written"));
  EXPECT_EQ(found.count("replica-0", 5), 2U) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
}

/// Its member could add anything to its next contributions that way, if nothing compared them.
TEST_F(AuditOf, FalseResidualsInACheckpointAreFound) {
  run({"outer.error_feedback=true", "outer.merge=alpha"});
  ASSERT_EQ(audit(site).result.status, 0) << "true ones are no finding";
  const auto file = trainer::checkpoint_file(site.run() / "replica-0/checkpoints", 30, 0);
  auto checkpoint = trainer::read_checkpoint(file);
  auto& own = checkpoint.sections.at("outer");
  own.at(20'001) ^= std::byte{1};  // one of the residuals, which come first
  std::vector<trainer::SectionView> sections;
  for (const auto& [name, bytes] : checkpoint.sections) sections.push_back({name, bytes});
  trainer::write_checkpoint(file, checkpoint.model, checkpoint.step, sections);
  edit_records(site, "replica-0", [&](json& record) {
    if (record.value("checkpoint", 0) == 30) record["sections"]["outer"] = hash_of(own).hex();
  });
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  EXPECT_EQ(found.count("replica-1", 0), 3U) << found.result.report();
  for (const auto& interval : found.intervals) {
    if (interval["member"] == "replica-0" && interval["end"] == 30) {
      EXPECT_EQ(interval["sections"], json({"residuals of error feedback"})) << interval;
    }
  }
}

TEST_F(AuditOf, RecordsInAnothersNameAccuseNobody) {
  run();
  edit_records(site, "replica-1", [](json& record) {
    if (record.contains("start")) record["member"] = "replica-0";
  });
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 3) << found.result.report();
  EXPECT_THAT(found.result.output, AllOf(HasSubstr("has records of replica-0, which are not read"),
                                         HasSubstr("not audited: replica-1, since")));
  EXPECT_EQ(found.count("replica-0", 0), 3U) << found.result.report();
}

TEST_F(AuditOf, FalseReceiptsOfAnotherAreNoVerdict) {
  run();
  // A member that owns other chunks claims to have received something else from replica-0.
  std::ifstream in(site.run() / "replica-1/audit.jsonl");
  std::ofstream out(site.run() / "replica-0/audit.jsonl", std::ios::app);
  for (std::string line; std::getline(in, line);) {
    auto record = json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("received")) continue;
    for (auto& contribution : record["contributions"]) falsify_bytes(contribution);
    out << record.dump() << '\n';
  }
  out.close();
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 3) << found.result.report();
  EXPECT_THAT(found.result.output, AllOf(HasSubstr("one of them is false"), Not(HasSubstr("WRONG"))));
}

/// replica-0 knows what its false contribution was, and what an honest one would have been. On an unlike
/// machine only the sketch counts.
TEST_F(AuditOf, ItsOwnSketchDoesNotAcquitAMember) {
  run({"inner.precision=fp32"});
  std::ifstream in(site.run() / "replica-1/audit.jsonl");
  std::ostringstream forged;
  for (std::string line; std::getline(in, line);) {
    auto record = json::parse(line, nullptr, false);
    if (!record.is_object() || record.value("received", 0) != 3) continue;
    falsify_bytes(record["contributions"][0]);
    forged << record.dump() << '\n';
  }
  in.close();
  edit_records(site, "replica-1", [](json& record) {
    if (record.value("received", 0) != 3) return;
    auto& contribution = record["contributions"][0];
    ASSERT_EQ(contribution["member"], "replica-0");
    falsify_bytes(contribution);
    contribution["sketch"] = std::string(256, '0');
  });
  std::ofstream(site.run() / "replica-0/audit.jsonl", std::ios::app) << forged.str();
  const auto found = audit(site, {"--member", "replica-0", "--set", "inner.precision=bf16"});
  EXPECT_EQ(found.result.status, 5) << found.result.report();
  std::size_t wrong = 0;
  for (const auto& interval : found.intervals) {
    for (const auto& round : interval["rounds"]) {
      if (!round["wrong"]) continue;
      EXPECT_THAT(round["owners"], ::testing::Contains("replica-1")) << round;
      ++wrong;
    }
  }
  EXPECT_GT(wrong, 0U);
}

TEST_F(AuditOf, DamagedFilesOfOneMemberLeaveTheOthersAuditable) {
  run();
  const auto checkpoints = site.run() / "replica-1/checkpoints";
  for (const auto step : trainer::checkpoint_steps(checkpoints, 0))
    std::filesystem::resize_file(trainer::checkpoint_file(checkpoints, step, 0), 100);
  std::ofstream(site.run() / "replica-0/audit.jsonl", std::ios::app)
      << R"({"applied":1,"fragment":4000000000,"between_steps":true})" << '\n';
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 3) << found.result.report();
  EXPECT_EQ(found.count("replica-0", 0), 3U) << found.result.report();
  EXPECT_THAT(found.result.output,
              AllOf(HasSubstr("replica-1 cannot be audited: "), HasSubstr("not audited: replica-1, since")));
}

TEST_F(AuditOf, AMemberThatDeletesItsCheckpointsIsNamed) {
  run();
  std::filesystem::remove_all(site.run() / "replica-1/checkpoints");
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 3) << found.result.report();
  EXPECT_THAT(found.result.output, HasSubstr("not audited: replica-1, since"));
  EXPECT_EQ(audit(site, {"--member", "replica-0"}).result.status, 0);
}

TEST_F(AuditOf, StepsWithoutRecordsIsNoVerdict) {
  run();
  std::filesystem::remove(site.run() / "replica-1/audit.jsonl");
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 3) << found.result.report();
  EXPECT_THAT(found.result.output,
              AllOf(HasSubstr("not audited: replica-0"), HasSubstr("no member has a receipt for chunk")));
  const auto other = site.isthmus({"audit", site.run().string(), "--member", "replica-1"});
  EXPECT_EQ(other.status, 3);
  EXPECT_THAT(other.output, HasSubstr("expected one of: replica-0"));
}

TEST_F(AuditOf, ARunWithoutRecordsSaysHowToKeepThem) {
  ASSERT_EQ(site.launch().status, 0) << site.logs();
  const auto result = site.isthmus({"audit", site.run().string()});
  EXPECT_EQ(result.status, 3) << result.report();
  EXPECT_THAT(result.output, HasSubstr("expected the folder of a run with run.audit true"));
}

/// A killed replica, a setting changed in the run, and a replica that was away: what can be audited is right.
TEST(LongAuditOfATroubledRun, AccusesNobody) {
  const TemporaryFolder logs;
  ElasticRun run({"run.steps=100000", "run.audit=true", "run.checkpoint_every=20", "run.keep_checkpoints=0",
                  "run.eval_every=30", "replicas=3", "network.detect_timeout=2s", "network.heartbeat=0.5s",
                  "outer.min_replicas=1", "outer.log=" + logs.path().string()});
  run.start({"ap-1", "eu-1", "us-1"});  // ap-1 has the log of the whole run
  ASSERT_TRUE(run.reaches("us-1", 130)) << run.logs();
  run.kill("us-1");
  ASSERT_TRUE(run.coordinator_says("us-1 is lost")) << run.logs();
  ASSERT_TRUE(run.reaches("eu-1", 200)) << run.logs();
  run.add("us-1");
  ASSERT_TRUE(run.joined_at("us-1")) << run.logs();
  const auto& site = run.site();
  const auto set = isthmus(site, {"ctl", "set", "outer.sync_every=8", "--coordinator", run.address(),
                                  "--secret", (site.run() / "run.secret").string()});
  ASSERT_EQ(set.status, 0) << set.report();
  run.signal("eu-1", SIGSTOP);
  ASSERT_TRUE(run.coordinator_says("eu-1 is lost")) << run.logs();
  run.signal("eu-1", SIGCONT);
  const auto step = run.metrics("us-1").back()["step"].get<std::uint64_t>();
  ASSERT_TRUE(run.reaches("eu-1", step + 150)) << run.logs();
  run.stop();
  const auto found = audit(site);
  EXPECT_THAT(found.result.status, ::testing::AnyOf(0, 3)) << found.result.report();
  EXPECT_GT(found.count("eu-1", 0), 5U) << found.result.report();
  EXPECT_GT(found.count("us-1", 0), 5U) << found.result.report();
  EXPECT_THAT(found.result.output, Not(HasSubstr("WRONG"))) << found.result.report();
}

/// 32 values of the second moment in the newest checkpoint; empty if none can be read.
std::vector<float> newest_second_moment(const std::filesystem::path& folder) {
  const auto steps = trainer::checkpoint_steps(folder, 0);
  if (steps.empty()) return {};
  try {
    const auto checkpoint = trainer::read_checkpoint(trainer::checkpoint_file(folder, steps.back(), 0));
    const auto& bytes = checkpoint.section(trainer::second_moment_section);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    // Rows of the embedding that the corpus does not need stay zero, and zeros are everywhere.
    const auto place =
        std::ranges::search_n(values, 32, 0, [](float value, float zero) { return value > zero; });
    return {place.begin(), place.end()};
  } catch (const Error&) {  // it was superseded meanwhile
    return {};
  }
}

/// No digest of the run covers the inner optimizer's memory, so the run itself does not notice.
TEST(AuditOfFaultyMemory, NamesTheMemberWithAFlippedBit) {
  const TemporaryFolder logs;
  ElasticRun run({"run.steps=100000", "run.audit=true", "run.checkpoint_every=40", "run.keep_checkpoints=0",
                  "run.eval_every=0", "replicas=2", "outer.log=" + logs.path().string(),
                  "outer.warmup_steps=0", "inner.beta2=0.9999"});
  run.start({"eu-1", "us-1"});
  ASSERT_TRUE(run.reaches("us-1", 130)) << run.logs();
  const auto& site = run.site();
  const auto pid = site.process("--name us-1");
  std::size_t flips = 0;
  ASSERT_TRUE(eventually([&] {
    kill(pid, SIGSTOP);
    const auto values = newest_second_moment(site.run() / "us-1/checkpoints");
    const ProcessMemory memory(pid);
    constexpr off_t exponent = 3;  // its byte
    for (const auto place : values.empty() ? std::vector<off_t>() : memory.places_near(values)) {
      memory.flip(place + exponent);
      ++flips;
    }
    kill(pid, SIGCONT);
    return flips > 0;
  })) << run.logs();
  const auto steps = trainer::checkpoint_steps(site.run() / "us-1/checkpoints", 0);
  ASSERT_TRUE(run.reaches("us-1", steps.back() + 200)) << run.logs();
  run.stop();
  EXPECT_EQ(run.hash().size(), 64U) << "the replicas agree all the same";
  const auto found = audit(site);
  EXPECT_EQ(found.result.status, 5) << flips << " flips" << found.result.report();
  EXPECT_GE(found.count("us-1", 5), 1U) << found.result.report();
  EXPECT_EQ(found.count("eu-1", 5), 0U) << found.result.report();
}

}  // namespace
}  // namespace isthmus
