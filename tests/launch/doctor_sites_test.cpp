// `isthmus doctor` for a run with remote sites: one command prints one table and leaves no process running.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "reserved_port.h"
#include "sshd.h"

namespace isthmus {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class DoctorOfSites : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    sshd_ = shared_sshd(why);
    if (sshd_ == nullptr) GTEST_SKIP() << why;
    folder_.write("text.txt", std::string(200'000, 'x'));
  }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return processes_with(folder_.path().string()).empty(); }))
        << "a doctor process outlived its command";
  }

  [[nodiscard]] std::string ssh(const std::string& site, const std::string& more = {}) const {
    return sshd_->launcher(coordinator_program, folder_ / site, more);
  }
  Result doctor(const std::string& sites, const std::vector<std::string>& flags = {}) {
    const auto config = folder_.write("run.yaml",
                                      "run: {name: far, out: runs, steps: 10, eval_sequences: 16}\n"
                                      "device: cpu\n"
                                      "model: {layers: 1, dim: 32, heads: 2}\n"
                                      "data: {path: text.txt, seq_len: 64}\n"
                                      "network: {lanes: 1}\n"
                                      "sites:\n" +
                                          sites);
    std::vector<std::string> words = {coordinator_program, "doctor", config.string()};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_command(std::move(words), folder_ / "doctor.log");
  }
  /// The output of --json, which follows the messages on standard error.
  static nlohmann::json json_of(const Result& result) {
    const auto begin = result.output.find("{\n");
    if (begin == std::string::npos) return {};
    return nlohmann::json::parse(result.output.substr(begin), nullptr, false);
  }
  static nlohmann::json finding(const nlohmann::json& json, const std::string& machine,
                                const std::string& check) {
    for (const auto& one : json["machines"]) {
      for (const auto& found : one["checks"]) {
        if (one["name"] == machine && found["check"] == check) return found;
      }
    }
    return {};
  }

  TemporaryFolder folder_;
  const Sshd* sshd_ = nullptr;
};

TEST_F(DoctorOfSites, OneTableOfAllPlaces) {
  const auto result =
      doctor("  eu: {" + ssh("eu") + "}\n  worker: {" + ssh("us") + "}\n  home: {replicas: 1}\n");
  EXPECT_EQ(result.status, 0) << result.report();
  const auto table = result.output.substr(result.output.find("coordinator  "));
  EXPECT_THAT(table, AllOf(HasSubstr("eu -> worker"), HasSubstr("worker -> home"), HasSubstr("home -> eu"),
                           HasSubstr("bit/s\n"), Not(HasSubstr("FAIL"))));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST_F(DoctorOfSites, WithCertificatesAndTheCoordinatorAtASite) {
  const auto certs = (folder_ / "certs").string();
  const auto make = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {coordinator_program, "certs"});
    words.insert(words.end(), {"--dir", certs});
    ASSERT_EQ(run_command(std::move(words), folder_ / "certs.log").status, 0);
  };
  make({"init", "far"});
  for (const auto* name : {"coordinator", "eu-1", "eu-2"}) make({"issue", "far", name});
  const auto result = doctor("  eu: {replicas: 2, " + ssh("eu", "coordinator: true") + "}\n",
                             {"--json", "--certs", certs + "/far"});
  EXPECT_EQ(result.status, 0) << result.report();
  const auto json = json_of(result);
  ASSERT_TRUE(json.is_object()) << result.report();
  EXPECT_EQ(json["failures"], 0);
  EXPECT_EQ(json["machines"].size(), 3U);
  EXPECT_EQ(json["paths"].size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "eu/far/certs/eu-1/ca.key"));
}

TEST_F(DoctorOfSites, WhatIsWrongAtOneOfThemIsNamedThere) {
  const auto result = doctor(
      "  eu: {" + ssh("eu") + "}\n  us: {data.path: /nowhere/text.txt, " + ssh("us") + "}\n", {"--json"});
  EXPECT_EQ(result.status, 3) << result.report();
  const auto json = json_of(result);
  ASSERT_TRUE(json.is_object()) << result.report();
  EXPECT_EQ(finding(json, "us", "data").value("level", ""), "FAIL") << result.report();
  EXPECT_THAT(finding(json, "us", "data").value("says", ""), HasSubstr("/nowhere/text.txt"));
  EXPECT_EQ(finding(json, "eu", "data").value("level", ""), "ok") << result.report();
}

TEST_F(DoctorOfSites, WhoDoesNotGetThroughSaysWhy) {
  const auto result = doctor("  eu: {" + ssh("eu") + "}\n  us: {network.certs: none, " + ssh("us") + "}\n",
                             {"--json", "--wait", "5"});
  EXPECT_NE(result.status, 0) << result.report();
  const auto json = json_of(result);
  ASSERT_TRUE(json.is_object()) << result.report();
  EXPECT_EQ(finding(json, "us", "certificates").value("level", ""), "FAIL")
      << "the site's own result must be shown although the other sites' doctors did not reach it\n"
      << result.report();
}

TEST_F(DoctorOfSites, OneThatCannotBeReachedIsARedCell) {
  const ReservedPort unused;
  const auto result = doctor("  eu: {" + ssh("eu") + "}\n  us: {launch: {ssh: me@127.0.0.1, port: " +
                             std::to_string(unused.number()) + "}}\n");
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output, AllOf(HasSubstr("FAIL us, ssh: us (me@127.0.0.1): "),
                                   HasSubstr("Connection refused"), HasSubstr("failures: 1")));
}

}  // namespace
}  // namespace isthmus
