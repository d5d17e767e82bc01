// Losses are noticed in time, and the message says what to do.

#include <gmock/gmock.h>

#include <chrono>

#include "forwarder.h"
#include "isthmus/outer_sync/core/address.h"
#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;
/// Seconds, for tests that wait for this time-out. A busy machine can hold a thread back for more than a
/// second.
constexpr double patient_detection = 5;

/// Options of a run without a step limit that is not elastic, so its first loss ends it. (Elastic runs:
/// life_test.cpp.)
NetworkRun::Options endless(std::size_t members, double detect_timeout = 30) {
  NetworkRun::Options options;
  options.members = members;
  options.elastic = false;
  options.steps = for_ever;
  options.detect_timeout = detect_timeout;
  return options;
}

std::string error_of(const NetworkRun& run, std::size_t m) {
  return run.result(m).error ? run.result(m).error->what() : "no error";
}

/// The error with which a node refuses its settings, or "accepted".
template <class Make>
std::string refusal(Make make) {
  try {
    make();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "accepted";
}

// ---- before the run ----

class OneMember : public testing::Test {
 protected:
  std::unique_ptr<MemberNode> make() {
    return std::make_unique<MemberNode>(network, layout, codecs, protocol::ClosingRule{}, trace);
  }

  NetworkConfig network;
  FragmentLayout layout{{{0, 32}}, 16};
  protocol::CodecPlan codecs;
  Trace trace;
};

TEST_F(OneMember, APortInUseIsNamed) {
  const auto first = make();
  network.listen = first->advertised();
  EXPECT_THAT(refusal([&] { make(); }), AllOf(HasSubstr(network.listen), HasSubstr("network.listen"),
                                              HasSubstr("choose another port")));
}

TEST_F(OneMember, WhatPeersCannotDialIsRefused) {
  network.listen = NetworkConfig::no_port;
  EXPECT_EQ(make()->advertised(), "");
  network.advertise = "us.example:7001";
  EXPECT_THAT(refusal([&] { make(); }),
              AllOf(HasSubstr("network.listen is none"), HasSubstr("us.example:7001")));
  network.advertise.clear();
  network.listen = "0.0.0.0:0";
  EXPECT_THAT(refusal([&] { make(); }), AllOf(HasSubstr("0.0.0.0"), HasSubstr("network.advertise")));
  network.advertise = "us.example";
  EXPECT_THAT(refusal([&] { make(); }), AllOf(HasSubstr("network.advertise"), HasSubstr("HOST:PORT")));
  network.advertise = "us.example:7001";
  EXPECT_EQ(make()->advertised(), "us.example:7001");
}

TEST_F(OneMember, PortZeroIsAdvertisedAsTheBoundOne) {
  network.listen = "0.0.0.0:0";
  network.advertise = "127.0.0.1:0";
  const auto address = parse_address(make()->advertised(), "address");
  EXPECT_EQ(address.host, "127.0.0.1");
  EXPECT_NE(address.port, 0);
}

TEST_F(OneMember, WithoutACoordinatorJoiningGivesUp) {
  network.coordinator = private_address(0);  // a port without a listener
  network.join_timeout = {0.3};
  const auto node = make();
  try {
    static_cast<void>(node->join({}));
    FAIL() << "joined without a coordinator";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::network);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(network.coordinator), HasSubstr("network.join_timeout")));
  }
}

TEST(CoordinatorPort, InUseItIsNamed) {
  NetworkRun run(endless(1));
  NetworkConfig network;
  network.coordinator = run.coordinator_address();
  EXPECT_THAT(refusal([&] { CoordinatorNode second(network, {}, run); }),
              AllOf(HasSubstr(network.coordinator), HasSubstr("network.coordinator")));
}

TEST(Refused, AWorkerWithAnotherConfigLeavesTheOthersInPeace) {
  NetworkRun::Options options;
  options.elastic = false;
  NetworkRun run(options);
  run.adjust_hello = [](std::size_t m, protocol::Hello& hello) {
    if (m == 7) hello.config[0].second = "60";
  };
  run.before_join = [&](std::size_t m, MemberNode&) {
    if (m == 0) run.watch_worker(7);
  };
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 1 && step == 3) run.watch_worker(8);
  };
  run.start();
  run.expect_good_end();
  EXPECT_EQ(run.result(7).error->kind(), ErrorKind::config);
  EXPECT_THAT(error_of(run, 7), HasSubstr("outer.sync_every is 4 at the coordinator and 60 at r7"));
  EXPECT_THAT(error_of(run, 8), HasSubstr("does not accept late joiners"));
}

TEST(Refused, TooFewReplicasEndTheWait) {
  auto options = endless(2);
  options.join_timeout = 1;
  NetworkRun run(options);
  run.adjust_hello = [](std::size_t m, protocol::Hello& hello) {
    hello.member.incarnation = m + 1;
    if (m == 1) hello.member.name = "r0";
  };
  run.start();
  run.finish();
  EXPECT_THAT(error_of(run, 0) + error_of(run, 1),
              AllOf(HasSubstr("'r0' is already here"), HasSubstr("only 1 of 2 replicas joined")));
}

// ---- members that are lost ----

TEST(Faults, AMemberThatVanishesIsNamed) {
  NetworkRun run(endless(3));
  run.before_step = [](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 1 && step == 6) throw NetworkRun::Vanish();
  };
  run.start();
  run.finish();
  for (const std::size_t m : {0, 2}) {
    EXPECT_THAT(error_of(run, m), HasSubstr("r1 is lost"));
    EXPECT_EQ(run.result(m).error->kind(), ErrorKind::network);
  }
  EXPECT_EQ(run.ended().how, protocol::Ended::How::failed);
}

TEST(Faults, AMemberThatCannotGoOnSaysWhy) {
  NetworkRun run(endless(3));
  run.before_step = [](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 2 && step == 6) throw Error(ErrorKind::divergence, "the loss is not finite");
  };
  run.start();
  run.finish();
  for (const std::size_t m : {0, 1})
    EXPECT_THAT(error_of(run, m), HasSubstr("r2 left: the loss is not finite"));
}

TEST(Faults, ASilentMemberIsNamedWithinTheDetectTimeout) {
  NetworkRun run(endless(2, patient_detection));
  Forwarder control(run.coordinator_address());
  Forwarder bulk(private_address(1));
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {  // r0 dials r1
    if (m != 1) return;
    network.coordinator = control.address();
    network.listen = private_address(1);
    network.advertise = bulk.address();
  };
  Clock::time_point silent;
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m != 1 || step != 6 || control.is_silent()) return;
    silent = Clock::now();
    control.silence();
    bulk.cut_off();
  };
  run.start();
  run.finish();
  const std::chrono::duration<double> took = Clock::now() - silent;
  EXPECT_THAT(error_of(run, 0), AllOf(HasSubstr("r1 is lost"), HasSubstr("network.detect_timeout")));
  EXPECT_THAT(error_of(run, 1), AllOf(HasSubstr("no round has committed"), HasSubstr("cut off")));
  EXPECT_LT(took.count(), 6 * patient_detection)
      << "detect_timeout is " << patient_detection << "detect_timeout is ";
}

TEST(Faults, APeerThatCannotBeReachedIsNamedWithItsAddress) {
  for (const bool answers : {false, true}) {
    auto options = endless(2, 2);
    options.join_timeout = 4;
    NetworkRun run(options);
    Forwarder wrong(answers ? run.coordinator_address() : private_address(99));  // another process, or none
    run.adjust_network = [&](std::size_t, NetworkConfig& network) { network.advertise = wrong.address(); };
    run.start();
    run.finish();
    EXPECT_THAT(error_of(run, 0) + error_of(run, 1),
                AllOf(HasSubstr("there is no connection between"), HasSubstr(wrong.address()),
                      HasSubstr("make sure that each address is reachable from the other side")));
  }
}

// ---- the coordinator is lost ----

TEST(Faults, WithoutACoordinatorTheRunGoesOnAndCannotEnd) {
  auto options = endless(2, 1);
  options.steps = 40;
  options.join_timeout = 2;
  NetworkRun run(options);
  Forwarder control(run.coordinator_address());
  run.adjust_network = [&](std::size_t, NetworkConfig& network) { network.coordinator = control.address(); };
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 6) control.silence();
  };
  run.start();
  run.finish();
  for (const std::size_t m : {0, 1}) {
    EXPECT_EQ(run.result(m).step, options.steps) << "training must not need a coordinator";
    EXPECT_THAT(error_of(run, m), AllOf(HasSubstr("the coordinator at " + control.address()),
                                        HasSubstr("no answer within network.join_timeout")));
    EXPECT_EQ(run.result(m).error->kind(), ErrorKind::network);
  }
}

TEST(Faults, ACoordinatorThatFallsSilentBeforeTheRunBeginsIsNoticed) {
  auto options = endless(2, 1);
  options.join_timeout = 3;
  NetworkRun run(options);
  Forwarder control(run.coordinator_address());
  control.silence();
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m == 0) network.coordinator = control.address();
  };
  run.before_join = [&](std::size_t m, MemberNode&) {
    if (m == 1) throw NetworkRun::Vanish();
  };
  run.start();
  run.wait_for_worker(0);
  run.coordinator().request_stop("the test is over");
  run.finish();
  EXPECT_THAT(error_of(run, 0),
              AllOf(HasSubstr("network.join_timeout"), HasSubstr("silent for longer than")));
}

}  // namespace
}  // namespace isthmus::outer_sync
