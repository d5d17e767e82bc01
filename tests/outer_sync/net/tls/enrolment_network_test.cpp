// Enrolment over the network, and how strangers fare at a coordinator that enrols newcomers.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <thread>

#include "enrolment_support.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/coordinator/enrol.h"
#include "raw_tls.h"

namespace isthmus::outer_sync {
namespace {

using testing::HasSubstr;
using testing::Not;
using tls::Authority;
using tls::EnrolmentAnswer;
using tls::EnrolmentDesk;
using tls::JoinToken;
using transport::FrameType;

/// A coordinator without members, on a thread of its own.
class EnrollingCoordinator : public CoordinatorObserver {
 public:
  EnrollingCoordinator(const Authority& authority, const std::string& run)
      : node_(network(authority), options(run), *this,
              std::make_unique<EnrolmentDesk>(authority, "run: {name: test}\n")),
        thread_([this] { (void)node_.run(); }) {}
  ~EnrollingCoordinator() override {
    node_.request_stop("the test is over");
    thread_.join();
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(node_.port()); }
  [[nodiscard]] std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  static NetworkConfig network(const Authority& authority) {
    NetworkConfig network;
    network.coordinator = "127.0.0.1:0";
    network.certs = authority.issue(tls::coordinator_name, 10).string();
    return network;
  }
  static protocol::CoordinatorOptions options(const std::string& run) {
    protocol::CoordinatorOptions options;
    options.run = run;
    options.replicas = 2;
    return options;
  }
  void message(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    said_ += text + "\n";
  }
  void members_changed(const protocol::Coordinator&) override {}
  void evaluated(std::uint64_t, double) override {}
  void round_judged(const protocol::RoundJudged&) override {}
  void store(const protocol::LastView&) override {}

  std::mutex mutex_;
  std::string said_;
  CoordinatorNode node_;
  std::thread thread_;
};

JoinToken at(JoinToken token, const EnrollingCoordinator& coordinator) {
  token.coordinator = coordinator.address();
  return token;
}

TEST_F(Enrolment, OverTheNetworkItIsTheSame) {
  EnrollingCoordinator coordinator(authority, "test");
  const auto token = at(invite("r9", 1h, std::chrono::system_clock::now()), coordinator);
  const auto enrolled = enrol(token, folder("r9").request(token), 20s);
  EXPECT_EQ(enrolled.own_address, "127.0.0.1");
  EXPECT_EQ(enrolled.answer.seen_as, "127.0.0.1");
  folder("r9").complete(token, enrolled.answer);
  EXPECT_THAT(error_text([&] { (void)enrol(token, folder("thief").request(token), 20s); }),
              HasSubstr("refuses this token"));
  EXPECT_THAT(coordinator.said(), HasSubstr("was used before"));
}

TEST_F(Enrolment, OneThatTakesLongKeepsNobodyWaiting) {
  EnrollingCoordinator coordinator(authority, "test");
  const auto token = at(invite("r9", 1h, std::chrono::system_clock::now()), coordinator);
  const int lock = ::open((files / "test/lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  bool accepted = false;
  std::thread newcomer([&] { accepted = enrol(token, folder("r9").request(token), 20s).answer.accepted(); });
  RawTls member(coordinator.address(), files / "test" / tls::coordinator_name);
  member.say(transport::control_frame(protocol::Hello{}));
  EXPECT_TRUE(member.receive()) << "the coordinator must answer others while it enrols a newcomer";
  ::close(lock);
  newcomer.join();
  EXPECT_TRUE(accepted);
}

TEST_F(Enrolment, WhoIsNotOfTheTokensAuthorityGetsNoSecret) {
  const auto another = Authority::create(files / "another", "test");
  (void)another.invite("r9", tls::Role::trainer, std::chrono::system_clock::now(), 1h, 10);
  EnrollingCoordinator impostor(another, "test");
  const auto token = at(invite("r9", 1h, std::chrono::system_clock::now()), impostor);
  EXPECT_THAT(error_text([&] { (void)enrol(token, folder("r9").request(token), 20s); }),
              HasSubstr("not of the authority that the token names"));
  EXPECT_THAT(impostor.said(), Not(HasSubstr("refused a newcomer")));
}

TEST_F(Enrolment, WithoutACertificateNothingElseIsHeard) {
  EnrollingCoordinator coordinator(authority, "test");
  EXPECT_TRUE(RawTls(coordinator.address(), {}).is_dropped())
      << "without an invitation no stranger may connect";
  const auto token = at(invite("r9", 1h, std::chrono::system_clock::now()), coordinator);
  const auto dropped = [&](const transport::Frame& frame) {
    RawTls stranger(coordinator.address(), {});
    stranger.say(frame);
    return !stranger.receive();
  };
  protocol::Hello hello;
  hello.run = "test";
  hello.member.name = "r9";
  EXPECT_TRUE(dropped(transport::control_frame(hello)));
  EXPECT_TRUE(dropped({FrameType::peer_hello, Bytes(100), nullptr}));
  EXPECT_TRUE(dropped({FrameType::enrolment, Bytes(transport::unauthenticated_limit + 1), nullptr}));
  {
    RawTls stranger(coordinator.address(), {});
    stranger.say({FrameType::enrolment, Bytes(10), nullptr});
    stranger.say(transport::control_frame(hello));
    const auto answer = stranger.receive();
    ASSERT_TRUE(answer);
    EXPECT_FALSE(from_bytes<EnrolmentAnswer>(answer->head).accepted());
    EXPECT_FALSE(stranger.receive()) << "it was still served after its answer";
  }
  EXPECT_THAT(coordinator.said(), Not(HasSubstr("joined")));
  EXPECT_TRUE(enrol(token, folder("r9").request(token), 20s).answer.accepted());
}

}  // namespace
}  // namespace isthmus::outer_sync
