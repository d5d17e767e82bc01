// A third replica with only the binary, a token and data joins (other uses of tokens: tests/app_core).

#include "elastic_run.h"

namespace isthmus {
namespace {

using ::testing::HasSubstr;

TEST(JoinByToken, AThirdReplicaComesInMidRunAndAllEndAlike) {
  const TemporaryFolder folder;
  const auto certs = (folder / "certs").string();
  const auto expect_certs = [&](Words words) {
    words.insert(words.begin(), {isthmus_program, "certs"});
    words.insert(words.end(), {"--dir", certs});
    const auto result = run_command(std::move(words), folder / "certs.log");
    EXPECT_EQ(result.status, 0) << result.report();
    return result.output;
  };
  for (const Words& words : {Words{"init", "tiny"},
                             {"issue", "tiny", "coordinator"},
                             {"issue", "tiny", "eu-1"},
                             {"issue", "tiny", "us-1"}})
    expect_certs(words);
  // Rounds slow enough for a newcomer to catch up.
  ElasticRun run({"network.certs=" + certs + "/tiny", "run.steps=100000", "inner.schedule=constant",
                  "outer.warmup_steps=10", "network.emulate.rtt=100ms", "network.heartbeat=50ms"});
  run.start({"eu-1", "us-1"});
  ASSERT_TRUE(run.reaches("eu-1", 20)) << run.logs();
  const auto invitation = nlohmann::json::parse(
      expect_certs({"invite", "tiny", "zz-1", "--coordinator", run.address(), "--json"}), nullptr, false);
  ASSERT_TRUE(invitation.is_object());
  const auto token = invitation["token"].get<std::string>();
  run.add_by("zz-1", with_settings({"join", token, "--quiet", "--dir", (folder / "zz-1").string(), "--data",
                                    (run.site() / "corpus.txt").string()},
                                   {"run.out=" + run.site().run().parent_path().string()}));
  const auto begin = run.joined_at("zz-1");
  ASSERT_TRUE(begin) << run.logs();
  ASSERT_TRUE(run.reaches("zz-1", *begin + 40)) << run.logs();
  run.stop();
  EXPECT_FALSE(run.hash().empty());
  EXPECT_TRUE(run.summary()["global_hash"].contains("zz-1")) << run.summary();
  const auto lines = run.metrics("zz-1");
  EXPECT_TRUE(std::ranges::any_of(lines, [](const auto& line) { return line.value("contributed", 0) == 3; }))
      << run.logs();
}

}  // namespace
}  // namespace isthmus
