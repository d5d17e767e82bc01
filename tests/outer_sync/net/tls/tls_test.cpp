// Certificates, and runs in which every process shows one: how strangers with and without certificates fare.

#include <gmock/gmock.h>

#include <deque>
#include <fstream>

#include "isthmus/base/archive.h"
#include "raw_peer.h"
#include "raw_tls.h"
#include "tls/credentials.h"
#include "tls/openssl.h"
#include "tls_support.h"

namespace isthmus::outer_sync {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using tls::Authority;
using tls::Credentials;

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

/// A bridge forwards the bytes of a connection that both ends authenticate.
TEST_F(Tls, ANewcomerReachesATrainerWithoutAPortThroughABridge) {
  const auto made = authority({"coordinator", "r0", "r1", "r2"});
  (void)made.issue("hub", 10, tls::Role::reducer);
  auto with = NetworkRun::Options::lively(2);
  with.certs = of("");
  with.reducers = {"hub"};
  NetworkRun run(with);
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m < 3) {
      network.listen = NetworkConfig::no_port;
    } else {
      network.certs = of("hub").string();
    }
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 6) run.start_worker(2);
    if (m == 0 && node.status().view->members.size() == 4 && run.last_step == NetworkRun::for_ever)
      run.last_step = step + 40;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_THAT(run.said(), HasSubstr("r2 copies the state from 2 members, through hub\n"));
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
  EXPECT_THAT(run.said(), HasSubstr("TLS failed: "));
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

}  // namespace
}  // namespace isthmus::outer_sync
