// Certificates, and runs in which every process shows one: which processes may take part, and how strangers
// with and without certificates fare.

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <future>
#include <thread>

#include "forwarder.h"
#include "isthmus/base/archive.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "network_run.h"
#include "raw_peer.h"
#include "raw_tls.h"
#include "tls/credentials.h"

namespace isthmus::outer_sync {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using tls::Authority;
using tls::Credentials;

/// Each test has its own folder.
class Tls : public testing::Test {
 protected:
  Tls() : folder_(fs::path(testing::TempDir()) / fmt_name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Tls() override { fs::remove_all(folder_); }

  /// The authority of a run called "test", and a folder for each name.
  Authority authority(const std::vector<std::string>& names, const std::string& run = "test",
                      const std::string& at = "test") {
    auto made = Authority::create(folder_ / at, run);
    for (const auto& name : names) (void)made.issue(name, 10);
    return made;
  }
  [[nodiscard]] fs::path of(const std::string& name, const std::string& at = "test") const {
    return folder_ / at / name;
  }
  NetworkRun::Options options(std::size_t members) const {
    NetworkRun::Options options;
    options.members = members;
    options.certs = folder_ / "test";
    return options;
  }

  template <class Work>
  static std::string failure_of(Work work) {
    try {
      work();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  static std::string fmt_name() {
    return std::string("tls-") + testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
           std::to_string(::getpid());
  }
  fs::path folder_;
};

// ---- certificates ----

TEST_F(Tls, WhatAnAuthorityIssuesIsGoodAndSecret) {
  const auto made = authority({"r0"});
  const Credentials own(of("r0"));
  EXPECT_EQ(own.name(), "r0");
  EXPECT_EQ(own.run(), "test");
  EXPECT_EQ(Authority::open(of("")).run(), "test");
  for (const auto& secret : {of("ca.key"), of("r0") / "cert.pem"}) {
    EXPECT_EQ(fs::status(secret).permissions(), fs::perms::owner_read | fs::perms::owner_write)
        << secret << " holds a key";
  }
  EXPECT_THAT(failure_of([&] { (void)Authority::create(of(""), "test"); }), HasSubstr("exists already"));
  EXPECT_THAT(failure_of([&] { (void)made.issue("../r0", 10); }), HasSubstr("expected up to 64 letters"));
  EXPECT_THAT(failure_of([&] { made.revoke("r9"); }), HasSubstr("nothing to revoke: no certificate of 'r9'"));
}

TEST_F(Tls, FilesThatAreWrongAreNamed) {
  const auto made = authority({"r0"});
  (void)authority({"r0"}, "another", "another");
  const auto damaged = [&](const char* file, const std::string& text) {
    const auto folder = of("damaged");
    fs::remove_all(folder);
    fs::copy(of("r0"), folder);
    if (text.empty()) {
      fs::remove(folder / file);
    } else {
      std::ofstream(folder / file) << text;
    }
    return failure_of([&] { const Credentials refused(folder); });
  };
  for (const auto* file : {"ca.pem", "cert.pem"}) {
    EXPECT_THAT(damaged(file, ""), AllOf(HasSubstr(file), HasSubstr("No such file")));
    EXPECT_THAT(damaged(file, "no PEM"), AllOf(HasSubstr(file), HasSubstr("in PEM")));
    EXPECT_THAT(damaged(file, std::string(70'000, 'x')),
                AllOf(HasSubstr(file), HasSubstr("larger than 65536 bytes")));
  }
  EXPECT_THAT(damaged("ca.crl", "no PEM"), AllOf(HasSubstr("ca.crl"), HasSubstr("in PEM")));
  fs::copy_file(of("ca.pem", "another"), of("r0") / "ca.pem", fs::copy_options::overwrite_existing);
  EXPECT_THAT(failure_of([&] { const Credentials refused(of("r0")); }), HasSubstr("is not valid"));
  EXPECT_THAT(failure_of([&] { const Credentials ended(made.issue("r1", 0)); }), HasSubstr("expired"));
}

TEST_F(Tls, WhatIsRevokedIsGoodNoMore) {
  const auto made = authority({"r0", "r1"});
  Credentials other(of("r0"));
  const auto own = tls::read_certificate(of("r1") / "cert.pem");
  const auto serial = tls::text_of(X509_get0_serialNumber(own.get()));
  EXPECT_FALSE(other.revoked(serial));
  EXPECT_FALSE(other.refresh().has_value()) << "nothing has changed";
  made.revoke("r1");
  made.revoke("r1");  // revoking twice does no harm
  EXPECT_THAT(other.refresh().value_or(""), HasSubstr("reloaded the certificates"));
  EXPECT_TRUE(other.revoked(serial));
  EXPECT_THAT(failure_of([&] { const Credentials refused(of("r1")); }), HasSubstr("revoked"));
  (void)made.issue("r1", 10);
  EXPECT_EQ(Credentials(of("r1")).name(), "r1") << "a new certificate is valid";
  std::ofstream(of("r0") / "ca.crl") << "no PEM";
  EXPECT_THAT(other.refresh().value_or(""),
              AllOf(HasSubstr("keeps its old certificates"), HasSubstr("ca.crl")));
  EXPECT_TRUE(other.revoked(serial));
}

// ---- runs ----

TEST_F(Tls, ARunIsTheSameWithIt) {
  (void)authority({"coordinator", "r0", "r1", "r2"});
  auto with = options(3);
  with.lanes = 2;
  NetworkRun run(with);
  run.start();
  run.expect_good_end();
}

TEST_F(Tls, StrangersAreDroppedAndTheRunGoesOn) {
  (void)authority({"coordinator", "r0", "r1", "r2"});
  (void)authority({"r1"}, "another", "another");
  (void)authority({"r1"}, "test", "same name");  // a different root for a run of the same name
  const auto ended = Authority::open(of("")).issue("ended", 0);
  NetworkRun run(options(2));
  std::string member;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 1 || step != 3) return;
    for (const auto& address : {run.coordinator_address(), node.advertised()}) {
      RawPeer plain(address);
      plain.say(std::string_view("GET / HTTP/1.1\r\n\r\n"));
      EXPECT_TRUE(plain.is_dropped());
      for (const auto& shown : {fs::path(), of("r1", "another"), of("r1", "same name"), ended})
        EXPECT_FALSE(RawTls(address, shown).receive()) << "let in with " << shown;
    }
  };
  run.start();
  run.expect_good_end();
  EXPECT_THAT(run.said(), HasSubstr("no TLS: "));
}

TEST_F(Tls, NobodyIsHeardInAnothersName) {
  (void)authority({"coordinator", "r0", "r1", "r2"});
  NetworkRun run(options(2));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0 || step != 3) return;
    RawTls impostor(run.coordinator_address(), of("r2"));
    impostor.say(transport::control_frame(run.hello(1)));
    const auto answer = impostor.receive();
    ASSERT_TRUE(answer);
    const auto refusal = protocol::decode_control(answer->head);
    ASSERT_TRUE(std::holds_alternative<protocol::Refused>(refusal));
    EXPECT_THAT(std::get<protocol::Refused>(refusal).reason, HasSubstr("its certificate is for 'r2'"));
    EXPECT_FALSE(impostor.receive());
    (void)node;
  };
  run.start();
  run.expect_good_end();
  EXPECT_THAT(run.said(), HasSubstr("but it claims to be 'r1'"));
}

TEST_F(Tls, ACrowdPushesOutNobodyWhoHasShownWhoHeIs) {
  (void)authority({"coordinator", "r0", "r1", "r2"});
  NetworkRun run(options(2));
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m != 0 || step != 3) return;
    RawTls known(run.coordinator_address(), of("r2"));
    std::deque<RawPeer> crowd;
    for (int n = 0; n < 200; ++n) crowd.emplace_back(run.coordinator_address());
    EXPECT_TRUE(crowd.front().is_dropped());
    known.say(transport::control_frame(run.hello(2)));
    EXPECT_TRUE(known.receive()) << "a known process was dropped because of the crowd";
  };
  run.start();
  run.expect_good_end();
}

// ---- roles ----

using tls::Role;

TEST(Roles, GoWithNames) {
  using tls::role_for;
  EXPECT_EQ(role_for("eu-1", ""), Role::trainer);
  EXPECT_EQ(role_for("eu-1", "observer"), Role::observer);
  EXPECT_EQ(role_for("operator", ""), Role::steers);
  EXPECT_EQ(role_for("operator-anna", "operator"), Role::steers);
  EXPECT_EQ(role_for("coordinator", ""), Role::coordinates);
  for (const auto& [name, role] : {std::pair("eu-1", "operator"),
                                   {"eu-1", "coordinator"},
                                   {"operator", "trainer"},
                                   {"coordinator", "observer"},
                                   {"eu-1", "king"}})
    EXPECT_THROW((void)role_for(name, role), Error) << name << " as " << role;
}

TEST(Roles, SayWhatOneMayBe) {
  using protocol::MemberKind;
  const auto kinds = [](Role role) {
    std::vector<bool> may;
    for (const auto kind : {MemberKind::trainer, MemberKind::reducer, MemberKind::observer})
      may.push_back(tls::entitles(role, kind));
    return may;
  };
  using testing::ElementsAre;
  EXPECT_THAT(kinds(Role::trainer), ElementsAre(true, true, true));
  EXPECT_THAT(kinds(Role::reducer), ElementsAre(false, true, false));
  EXPECT_THAT(kinds(Role::observer), ElementsAre(false, false, true));
  EXPECT_THAT(kinds(Role::steers), ElementsAre(false, false, false));
  EXPECT_THAT(kinds(Role::coordinates), ElementsAre(false, false, false));
}

TEST_F(Tls, ACertificateWithoutARoleIsATrainers) {
  const auto made = authority({"r0"});
  EXPECT_EQ(tls::role_of(tls::read_certificate(of("r0") / "cert.pem").get()), Role::trainer);
  (void)made.issue("r0", 10, Role::observer);
  EXPECT_EQ(tls::role_of(tls::read_certificate(of("r0") / "cert.pem").get()), Role::observer);
  const auto root = tls::read_certificate(of("ca.pem"));
  ASSERT_EQ(tls::subject_entry(root.get(), NID_organizationalUnitName), "");
  EXPECT_EQ(tls::role_of(root.get()), Role::trainer) << "as in certificates of builds before roles";
}

TEST_F(Tls, AnObserverIsNoMemberWhateverItSays) {
  const auto made = authority({"coordinator", "r0", "r1"});
  (void)made.issue("watch", 10, Role::observer);
  (void)made.issue("reduces", 10, Role::reducer);
  NetworkRun run(options(2));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0 || step != 3) return;
    using protocol::MemberKind;
    const auto refusal_of = [&](const std::string& name, MemberKind kind) {
      RawTls guest(run.coordinator_address(), of(name));
      auto hello = run.hello(1);
      hello.member.name = name;
      hello.member.kind = kind;
      guest.say(transport::control_frame(hello));
      const auto answer = guest.receive();
      if (!answer) return std::string("no answer");
      const auto said = protocol::decode_control(answer->head);
      const auto* refused = std::get_if<protocol::Refused>(&said);
      return refused != nullptr ? refused->reason : std::string();
    };
    EXPECT_THAT(refusal_of("watch", MemberKind::trainer),
                HasSubstr("has role observer, but it joins as a trainer"));
    EXPECT_THAT(refusal_of("watch", MemberKind::reducer), HasSubstr("joins as a reducer"));
    EXPECT_THAT(refusal_of("reduces", MemberKind::trainer), HasSubstr("has role reducer"));
    EXPECT_THAT(refusal_of("coordinator", MemberKind::trainer), HasSubstr("has role coordinator"));
    RawTls peer(node.advertised(), of("watch"));
    peer.say({transport::FrameType::peer_hello, to_bytes(transport::PeerHello{}), nullptr});
    EXPECT_FALSE(peer.receive()) << "an observer must not take part in rounds";
  };
  run.start();
  run.expect_good_end();
}

TEST_F(Tls, ACoordinatorHasTheRoleOfOne) {
  const auto made = authority({"coordinator", "r0", "r1"});
  (void)made.issue("coordinator", 10, Role::trainer);
  auto short_lived = options(2);
  short_lived.join_timeout = 1;
  short_lived.detect_timeout = 1;
  NetworkRun run(short_lived);
  run.start();
  run.finish();
  ASSERT_TRUE(run.result(0).error);
  EXPECT_THAT(run.result(0).error->what(),
              HasSubstr("the certificate of 'coordinator' has role trainer, which a process dialled"));
}

/// The coordinator's address may lead to another process of the run.
TEST_F(Tls, OnlyTheCoordinatorIsBelievedToBeIt) {
  const auto made = authority({"coordinator", "r0", "r1"});
  fs::remove_all(of("coordinator"));
  fs::copy(of("r0"), of("coordinator"));
  auto short_lived = options(2);
  short_lived.join_timeout = 1;
  short_lived.detect_timeout = 1;
  NetworkRun run(short_lived);
  run.start();
  run.finish();
  ASSERT_TRUE(run.result(0).error);
  EXPECT_THAT(run.result(0).error->what(),
              AllOf(HasSubstr("its certificate is for 'r0'"), HasSubstr("'coordinator'")));
}

TEST_F(Tls, WhoIsRevokedIsCutOffInMidRun) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 1;
  lively.join_timeout = 2;
  lively.closing.least = 2;
  NetworkRun run(lively);
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 8) made.revoke("r2");
    if (m == 0 && node.status().view->members.size() == 2 && run.last_step == lively.steps)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("r2 is lost"));
}

/// A run of two with the information that a test needs to connect as a third.
struct Visited {
  explicit Visited(NetworkRun& run) : run_(run) {
    run.before_step = [this](std::size_t m, MemberNode& node, std::uint64_t step) {
      if (m != 0) return;
      if (step == 8) begun_.set_value({*node.status().view, node.advertised()});
      if (over && run_.last_step == for_ever) run_.last_step = step + 20;
    };
  }
  /// The view of r0 and r0's address.
  std::pair<protocol::View, std::string> begun() { return begun_.get_future().get(); }
  std::atomic<bool> over = false;

 private:
  NetworkRun& run_;
  std::promise<std::pair<protocol::View, std::string>> begun_;
};

TEST_F(Tls, RevocationReachesWhoIsGivenTheState) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  testing::internal::CaptureStderr();
  run.start();
  const auto [view, donor] = visited.begun();
  RawTls fetcher(donor, of("r2"));
  const transport::PeerHello hello{run.stored().token, 77, protocol::id_of(view.members.at(0)), 0,
                                   transport::PeerRole::fetcher};
  fetcher.say(transport::Frame{transport::FrameType::peer_hello, to_bytes(hello), nullptr});
  EXPECT_TRUE(fetcher.receive()) << "the fetcher was not accepted";
  made.revoke("r2");
  EXPECT_TRUE(fetcher.is_dropped());
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("dropped a fetcher at .*: its certificate has been revoked"));
}

/// Otherwise observers could keep out members that are to train.
TEST_F(Tls, OneCertificateIsGivenTheStateTwiceAtATime) {
  const auto made = authority({"coordinator", "r0", "r1", "r2", "r3"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  testing::internal::CaptureStderr();
  run.start();
  const auto [view, donor] = visited.begun();
  std::vector<std::unique_ptr<RawTls>> fetchers;
  const auto learn = [&, donor = donor, to = protocol::id_of(view.members.at(0))](const std::string& name) {
    auto& fetcher = *fetchers.emplace_back(std::make_unique<RawTls>(donor, of(name)));
    const transport::PeerHello hello{run.stored().token, 77 + fetchers.size(), to, 0,
                                     transport::PeerRole::fetcher};
    fetcher.say(transport::Frame{transport::FrameType::peer_hello, to_bytes(hello), nullptr});
    return fetcher.receive();
  };
  EXPECT_TRUE(learn("r2"));
  EXPECT_TRUE(learn("r2")) << "it has dialled again, and the old connection may be dead";
  EXPECT_FALSE(learn("r2"));
  EXPECT_TRUE(learn("r3"));
  fetchers.clear();
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("already serving the state to r2"));
}

TEST_F(Tls, AHandshakeThatEndsAfterTheRevocationIsNoGood) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = NetworkRun::Options::lively(2);
  lively.certs = of("");
  NetworkRun run(lively);
  Visited visited(run);
  run.start();
  (void)visited.begun();
  Forwarder far(run.coordinator_address(), std::chrono::seconds(1));
  auto coming =
      std::async(std::launch::async, [&] { return std::make_unique<RawTls>(far.address(), of("r2")); });
  while (far.connections() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // The connection was accepted with the current certificates; the client's certificate arrives two seconds
  // later.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  made.revoke("r2");
  run.wait_until_said("reloaded the certificates");
  const auto late = coming.get();
  late->say(transport::control_frame(run.hello(2)));
  EXPECT_FALSE(late->receive()) << "it was accepted";
  visited.over = true;
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("its certificate has been revoked"));
}

/// A symbolic link to itself plays a failing file system: not even root can read through it.
TEST_F(Tls, CertificatesThatCannotBeReadForAWhileEndNothing) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 1;
  lively.closing.least = 2;
  (void)made.issue("r9", 10);
  made.revoke("r9");  // so that there is a list that can disappear
  NetworkRun run(lively);
  const auto looped = {of("coordinator"), of("r0")};
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0) return;
    if (step == 8) {
      for (const auto& folder : looped) {
        fs::remove(folder / "ca.crl");
        fs::create_symlink("ca.crl", folder / "ca.crl");
      }
      fs::rename(of("r1"), of("r1 elsewhere"));
      std::ofstream(of("r1")) << "no folder";
    }
    if (step == 120) {  // two seconds later, which is longer than any silence limit
      for (const auto& folder : looped) fs::remove(folder / "ca.crl");
      fs::remove(of("r1"));
      fs::rename(of("r1 elsewhere"), of("r1"));
      made.revoke("r2");
    }
    if (run.last_step == lively.steps && (node.status().view->members.size() == 2 || step == 600))
      run.last_step = step + 20;
  };
  testing::internal::CaptureStderr();
  run.start();
  run.expect_one_end({0, 1});
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(run.said(), HasSubstr("keeps its old certificates: cannot look for "));
  EXPECT_THAT(said, HasSubstr("r1: keeps its old certificates: "));
  EXPECT_THAT(run.said(), testing::Not(testing::ContainsRegex("r[01] is lost")));
  EXPECT_THAT(run.said(), HasSubstr("r2 is lost"));
}

TEST_F(Tls, ANewCertificateIsTakenUpInMidRun) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  auto lively = options(3);
  lively.pace = 0.02;
  lively.steps = 1'000'000;
  lively.detect_timeout = 5;
  lively.closing.least = 2;
  NetworkRun run(lively);
  const auto before = read_text(of("r2") / "cert.pem");
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0) return;
    if (step == 8) {  // for example, because its key leaked
      made.revoke("r2");
      (void)made.issue("r2", 10);
    }
    const auto view = *node.status().view;  // the second view is without r2
    if (view.number >= 3 && view.members.size() == 3 && run.last_step == lively.steps)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_NE(read_text(of("r2") / "cert.pem"), before);
}

}  // namespace
}  // namespace isthmus::outer_sync
