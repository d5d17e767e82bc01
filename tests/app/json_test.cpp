// --json: standard output is one document, regardless of other messages.

#include <gmock/gmock.h>

#include <cstdlib>

#include "site.h"

namespace isthmus {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Captures only standard output; standard error goes to a separate file.
class JsonTest : public ::testing::Test {
 protected:
  std::string shell(const std::string& command, int status = 0) {
    const auto out = site_ / "out.json";
    const auto line = "cd " + (site_ / ".").string() + " && " + isthmus_program + " " + command + " >" +
                      out.string() + " 2>err.log";
    const auto result = run_command({"/bin/bash", "-c", line}, site_ / "shell.log");
    EXPECT_EQ(result.status, status) << result.report() << read_all(site_ / "err.log");
    return read_all(out);
  }
  /// Parses all of standard output as one document.
  json document(const std::string& command) {
    const auto text = shell(command + " --json");
    auto parsed = json::parse(text, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded())
        << "no document of `" << command << "no document from `" << text << "'";
    return parsed;
  }

  Site site_;
};

TEST_F(JsonTest, OfARunAndWhatItLeaves) {
  const auto summary = document("launch tiny.yaml --set run.checkpoint_every=20 --set outer.log=log");
  EXPECT_EQ(summary.at("summary"), site_.summary());
  EXPECT_EQ(summary.at("exit_status"), 0);
  const auto run = site_.run().string();
  EXPECT_TRUE(document("data ledger " + run).at("clean").get<bool>());
  EXPECT_EQ(document("trace " + run + "/replica-0/trace.json").at("process"), "replica-0");
  const auto replayed = document("replay log/replica-0");
  EXPECT_EQ(replayed.at("global_hash"), site_.hash());
  EXPECT_EQ(replayed.at("fragments").size(), 3U);
  const auto evaluated = document("eval " + run + " --out figures.json");
  EXPECT_GT(evaluated.at("loss").get<double>(), 0);
  EXPECT_EQ(evaluated, json::parse(read_all(site_ / "figures.json")));
  EXPECT_EQ(document("sample " + run + " --tokens 5 --prompt 'the '").at("prompt"), "the ");
  EXPECT_EQ(document("export " + run + " --out model").at("folder"), "model");
}

TEST_F(JsonTest, OfDataCertificatesAndBenchmarks) {
  const auto made = document("data tokenize corpus.txt --tokenizer bytes --out store");
  const auto shown = document("data show store --verify");
  EXPECT_EQ(made.at("store").at("fingerprint"), shown.at("fingerprint"));
  EXPECT_TRUE(shown.at("verified").get<bool>());
  EXPECT_FALSE(document("data tune store --sample 1").at("rows").empty());
  EXPECT_EQ(document("certs init paris").at("run"), "paris");
  EXPECT_EQ(document("certs issue paris eu-1").at("folder"), "certs/paris/eu-1");
  EXPECT_THAT(document("certs revoke paris eu-1").at("revoked_in"), HasSubstr("ca.crl"));
  EXPECT_GT(document("bench loader tiny.yaml --seconds 0.2").at("tokens_per_second").get<double>(), 0);
  const auto bench = document("bench outer --params 100k --step-time 1ms --set outer.sync_every=10");
  EXPECT_TRUE(bench.is_object() && !bench.empty()) << bench;
}

TEST_F(JsonTest, OfConfigs) {
  const auto config = document("config tiny.yaml");
  EXPECT_EQ(config.at("outer.sync_every"), "10");
  EXPECT_EQ(document("config").size(), config.size());
  EXPECT_EQ(document("config --explain outer.sync_every").at("class"), "live");
  EXPECT_THAT(shell("config --explain outer.sync_evry", 2), "");
  EXPECT_THAT(read_all(site_ / "err.log"), HasSubstr("the nearest are outer.sync_every"));
  site_.write(
      "other.yaml",
      "extends: tiny.yaml\nouter.sync_every: 20\nsites: {eu: {inner.batch: 8}, us: {inner.batch: 4}}\n");
  const auto difference = document("config tiny.yaml --diff other.yaml");
  std::map<std::string, std::pair<std::string, std::string>> found;
  for (const auto& entry : difference.at("differ")) found[entry.at("key")] = {entry.at("a"), entry.at("b")};
  EXPECT_EQ(found.size(), 5U) << difference;
  EXPECT_EQ(found["outer.sync_every"], std::pair(std::string("10"), std::string("20")));
  EXPECT_EQ(found["sites.eu.inner.batch"].second, "8");
  EXPECT_EQ(document("config tiny.yaml --diff tiny.yaml").at("differ").size(), 0U);
}

/// A command that fails prints no document, and its reason on standard error.
TEST_F(JsonTest, OfWhatFails) {
  EXPECT_THAT(shell("data show nowhere --json", 3), "");
  EXPECT_THAT(read_all(site_ / "err.log"), HasSubstr("nowhere"));
  EXPECT_THAT(shell("launch tiny.yaml --json --set outer.sync_every=0", 2), "");
  EXPECT_NE(std::system((std::string(isthmus_program) + " config --json >/dev/full 2>/dev/null").c_str()), 0);
}

}  // namespace
}  // namespace isthmus
