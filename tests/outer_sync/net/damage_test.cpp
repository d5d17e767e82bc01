// Links that flip bits where TLS does not notice it: damaged data reaches no sum and no state and is sent
// again.

#include <gmock/gmock.h>

#include <atomic>
#include <optional>

#include "forwarder.h"
#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Damage, BetweenMembersReachesNoSum) {
  NetworkRun::Options options;
  options.steps = 40;
  options.lanes = 2;
  NetworkRun run(options);
  Forwarder forwarder(private_address(71));
  forwarder.damage_within(8000);
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {  // r0 dials r1
    if (m != 1) return;
    network.listen = private_address(71);
    network.advertise = forwarder.address();
  };
  testing::internal::CaptureStderr();
  run.start();
  run.expect_good_end();
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_GE(forwarder.damaged(), 10U) << "too little was damaged to test anything";
  EXPECT_THAT(said, HasSubstr(" arrived damaged (CRC32C "));
  EXPECT_THAT(said, HasSubstr("its connection is dropped, the "));
  EXPECT_THAT(said, Not(HasSubstr("breaks the protocol")));
}

/// Damage costs views, as any lost control connection does, but nothing else.
TEST(Damage, OnTheWayToTheCoordinatorIsNoMessage) {
  NetworkRun run(NetworkRun::Options::lively(2));
  run.start_coordinator();
  Forwarder forwarder(run.coordinator_address());
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m == 1) network.coordinator = forwarder.address();
  };
  std::atomic<bool> begun = false;
  struct Place {
    protocol::ViewNumber view = 0;
    std::uint64_t step = 0;
  };
  std::optional<Place> whole;  // when the damage ended, in worker 0's run
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 1 && step >= 3 && !begun.exchange(true)) {
      forwarder.damage_within(4000);
      forwarder.cut();
    }
    if (m != 0 || forwarder.damaged() < 3 || run.last_step != NetworkRun::for_ever) return;
    const auto view = node.status().view;
    if (!whole) {
      forwarder.damage_within(0);
      whole = {.view = view->number, .step = step};
    }
    // The run must not end before worker 1 is back, if the last damage has cost it its place.
    const bool settled = view->number > whole->view || step > whole->step + 100;
    if (view->members.size() == 2 && settled) run.last_step = step + 20;
  };
  for (std::size_t m = 0; m < 2; ++m) run.start_worker(m);
  run.expect_one_end({0, 1});
}

/// Nothing else checks a newcomer's parameters before the end of the run.
TEST(Damage, OfTheStateThatANewcomerTakesIsTakenAnew) {
  NetworkRun run(NetworkRun::Options::lively(2));
  Forwarder to_r0(private_address(72)), to_r1(private_address(73));
  const auto damage_within = [&](std::size_t most) {
    to_r0.damage_within(most);
    to_r1.damage_within(most);
  };
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m > 1) return;
    network.listen = private_address(72 + m);
    network.advertise = (m == 0 ? to_r0 : to_r1).address();
  };
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 10) {
      damage_within(3000);  // less than a fragment
      run.start_worker(2);
    }
    if (to_r0.damaged() + to_r1.damaged() >= 4) damage_within(0);
    if (m == 2 && run.last_step == NetworkRun::for_ever) run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_TRUE(run.result(2).joined);
  EXPECT_GE(to_r0.damaged() + to_r1.damaged(), 4U) << "too little was damaged to test anything";
}

}  // namespace
}  // namespace isthmus::outer_sync
