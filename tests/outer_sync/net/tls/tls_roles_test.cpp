// Roles in certificates: which process may be what in a run.

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/tls/role.h"
#include "raw_tls.h"
#include "tls/openssl.h"
#include "tls_support.h"

namespace isthmus::outer_sync {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
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

}  // namespace
}  // namespace isthmus::outer_sync
