// Machines that join with a token, and invalid tokens.

#include "site.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Enrolment : public ::testing::Test {
 protected:
  /// Starts the coordinator of a run. Its replicas never join, since the tests check only enrolment.
  void start_coordinator(const std::string& authority = "tiny") {
    make_authority(authority);
    coordinator.emplace(site.start({"coordinator", "--config", site.config().string(), "--listen",
                                    "127.0.0.1:0", "--certs", (site / "certs" / authority).string()}));
    address = coordinator->coordinator_address();
    ASSERT_FALSE(address.empty()) << site.logs();
  }
  void make_authority(const std::string& name) {
    for (const Words& words : {Words{"init", name}, {"issue", name, "coordinator"}}) expect_certs(words);
  }
  std::string expect_certs(Words words) {
    words.insert(words.begin(), "certs");
    words.insert(words.end(), {"--dir", (site / "certs").string()});
    const auto result = site.isthmus(words);
    EXPECT_EQ(result.status, 0) << result.report();
    return result.output;
  }
  std::string invite(const std::string& name, const std::string& authority = "tiny") {
    const auto json = nlohmann::json::parse(
        expect_certs({"invite", authority, name, "--coordinator", address, "--json"}), nullptr, false);
    return json.is_object() ? json.value("token", "") : "";
  }
  Words join(const std::string& token, const std::string& folder) {
    return {"join", token, "--out", (site / folder).string()};
  }
  Result enrol(const std::string& token, const std::string& folder) {
    auto words = join(token, folder);
    words.emplace_back("--only-enrol");
    return site.isthmus(words);
  }

  Site site;
  std::optional<Command> coordinator;
  std::string address;
};

TEST_F(Enrolment, AMachineWithATokenTakesPart) {
  start_coordinator();
  const auto token = invite("third");
  auto words = join(token, "third");
  words.emplace_back("--reduce-only");
  auto reducer = site.start(words);
  EXPECT_TRUE(coordinator->says("third has its certificate: it enrolled from 127.0.0.1")) << site.logs();
  EXPECT_TRUE(coordinator->says("third joined from 127.0.0.1:")) << site.logs();
  EXPECT_THAT(processes_with(token), ::testing::IsEmpty()) << "others on the machine could read the token";
  using fs::perms;
  EXPECT_EQ(fs::status(site / "third").permissions(), perms::owner_all);
  for (const auto* file : {"cert.pem", "config.yaml", "run.yaml"})
    EXPECT_EQ(fs::status(site / "third" / file).permissions(), perms::owner_read | perms::owner_write)
        << file;
  // The run's settings; the coordinator's own appear only in comments.
  const auto config = site.isthmus({"config", (site / "third/config.yaml").string(), "--set", "data.path=x"});
  EXPECT_THAT(config.output, AllOf(HasSubstr("sync_every: 10"), HasSubstr("coordinator: \"" + address + "\""),
                                   Not(HasSubstr("corpus.txt"))))
      << config.report();
  EXPECT_THAT(read_all(site / "third/run.yaml"), HasSubstr("#     path: "));
  // A second time, there is nothing to enrol.
  reducer.signal(SIGTERM);
  EXPECT_EQ(reducer.wait().status, 143) << reducer.output();
  coordinator->signal(SIGKILL);
  EXPECT_EQ(enrol(token, "third").status, 0) << "it must not need a coordinator";
}

TEST_F(Enrolment, ATokenIsReadFromAFileToo) {
  start_coordinator();
  const auto token = invite("third");
  const auto first = enrol(site.write("token", token + "\n").string(), "first");
  EXPECT_EQ(first.status, 0) << first.report();
  const auto none = enrol((site / "no_such_file").string(), "second");
  EXPECT_EQ(none.status, 2) << none.report();
}

TEST_F(Enrolment, ATokenIsGoodOnce) {
  start_coordinator();
  const auto token = invite("third");
  const auto first = enrol(token, "first");
  EXPECT_EQ(first.status, 0) << first.report();
  const auto second = enrol(token, "second");
  EXPECT_EQ(second.status, 4) << second.report();
  EXPECT_THAT(second.output, HasSubstr("it refuses this token"));
  EXPECT_FALSE(fs::exists(site / "second/cert.pem"));
  EXPECT_TRUE(coordinator->says("refused a newcomer at 127.0.0.1: the invitation of third was used before"));
  const auto wrong = site.isthmus({"join", token.substr(0, token.size() - 1)});
  EXPECT_EQ(wrong.status, 2) << wrong.report();
  EXPECT_THAT(wrong.output, HasSubstr("the token "));
}

TEST_F(Enrolment, ACoordinatorOfAnotherAuthorityGetsNothing) {
  start_coordinator();
  make_authority("another");
  (void)invite("third");  // so that the coordinator accepts newcomers
  const auto result = enrol(invite("third", "another"), "third");
  EXPECT_EQ(result.status, 4) << result.report();
  EXPECT_THAT(result.output, HasSubstr("not of the authority that the token names"));
  EXPECT_THAT(coordinator->output(), Not(HasSubstr("refused a newcomer")));
}

/// It is killed between its first byte and the answer.
TEST_F(Enrolment, OneThatIsKilledOnTheWayComesAgain) {
  start_coordinator();
  const auto token = invite("third");
  coordinator->signal(SIGSTOP);
  auto words = join(token, "third");
  words.emplace_back("--only-enrol");
  auto cut_off = site.start(words);
  ASSERT_TRUE(eventually([&] { return fs::exists(site / "third/key.pem"); })) << site.logs();
  cut_off.signal(SIGKILL);
  cut_off.wait();
  EXPECT_FALSE(fs::exists(site / "third/cert.pem"));
  coordinator->signal(SIGCONT);
  const auto again = enrol(token, "third");
  EXPECT_EQ(again.status, 0) << again.report() << site.logs();
  EXPECT_TRUE(fs::exists(site / "third/cert.pem"));
  EXPECT_FALSE(fs::exists(site / "third/key.pem"));
}

TEST_F(Enrolment, WhatCannotBeInvitedIsRefused) {
  make_authority("tiny");
  address = "0.0.0.0:7000";
  const auto invitation = [&](const Words& words) {
    Words all = {"certs", "invite", "tiny"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--dir", (site / "certs").string()});
    return site.isthmus(all);
  };
  for (const auto& [words, expected] :
       {std::pair(Words{"r1", "--coordinator", "0.0.0.0:7000"}, "that the joining machine dials"),
        {Words{"coordinator", "--coordinator", "a.example:7000"}, "isthmus certs issue"},
        {Words{"../r1", "--coordinator", "a.example:7000"}, "expected up to 64 letters"},
        {Words{"r1", "--coordinator", "a.example:7000", "--expires", "0"}, "--expires"}}) {
    const auto result = invitation(words);
    EXPECT_EQ(result.status, 2) << result.report();
    EXPECT_THAT(result.output, HasSubstr(expected));
  }
}

}  // namespace
}  // namespace isthmus
