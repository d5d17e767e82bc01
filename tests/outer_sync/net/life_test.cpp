// Members that come and go, over real sockets. All members that finish must have the same global parameters.

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <chrono>

#include "forwarder.h"
#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const auto lively = NetworkRun::Options::lively;

NetworkRun::Options losing_silent(std::size_t members) {
  auto options = lively(members);
  options.heartbeat = 0.1;
  options.detect_timeout = 1;
  return options;
}

/// Lets worker `again` start as r`m` again. (A worker's incarnation rises with its number.)
void let_come_back(NetworkRun& run, std::size_t again, std::size_t m) {
  run.adjust_hello = [again, m](std::size_t worker, protocol::Hello& hello) {
    if (worker == again) hello.member.name = std::string("r").append(std::to_string(m));
  };
}

/// Counts each worker's own steps, including those made while the agreed step stands still.
class Steps {
 public:
  std::uint64_t next(std::size_t m) { return ++counts_.at(m); }

 private:
  std::array<std::atomic<std::uint64_t>, 32> counts_{};
};

// ---- members ----

TEST(Life, OneOfFourVanishesAndTheOthersFinish) {
  auto options = lively(4);
  options.steps = 40;
  NetworkRun run(options);
  run.before_step = [](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 1 && step == 6) throw NetworkRun::Vanish();
  };
  run.start();
  run.expect_one_end({0, 2, 3});
  EXPECT_THAT(run.said(), HasSubstr("r1 is lost: its connection closed"));
}

TEST(Life, OneVanishesInTheWarmUpAndTheOthersFinish) {
  auto options = lively(3);
  options.steps = 40;
  options.outer.warmup_steps = 10;
  NetworkRun run(options);
  run.before_step = [](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 2 && step == 5) throw NetworkRun::Vanish();
  };
  run.start();
  run.expect_one_end({0, 1});
}

TEST(Life, OneVanishesAndComesBackAndAFifthJoins) {
  NetworkRun run(lively(4));
  let_come_back(run, 11, 1);
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 1 && step == 6) throw NetworkRun::Vanish();
    if (m == 0 && step == 20) run.start_worker(11);
    if (m == 0 && step == 30) run.start_worker(4);
    // The last worker to join ends the run once all five are in a view.
    if (node.status().view->members.size() == 5 && m == 4 && run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 2, 3, 4, 11});
  for (const std::size_t m : {4, 11}) {
    EXPECT_TRUE(run.result(m).joined);
    EXPECT_GT(run.result(m).stats.rounds, 4U) << "worker " << m << " was in no committed round";
  }
}

TEST(Life, ARunWithManyRoundsAHeartbeatWaitsForANewcomer) {
  auto options = lively(2);
  options.pace = 0;
  NetworkRun run(options);
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 50) run.start_worker(7);
    if (m == 7 && run.last_step == for_ever) run.last_step = step + 300;
  };
  run.start();
  run.expect_one_end({0, 1, 7});
  EXPECT_LE(run.times_said("r7 copies the state from"), 4U)
      << "after three attempts, the rounds must wait for r7";
}

TEST(Life, ANewcomerTakesTheMomentsOfTheMembers) {
  for (const bool moments : {true, false}) {
    auto options = lively(2);
    options.moments = moments;
    NetworkRun run(options);
    run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
      if (m == 0 && step == 6) run.start_worker(7);
      if (m == 7 && run.last_step == for_ever) run.last_step = step + 10;
    };
    run.start();
    run.expect_one_end({0, 1, 7});
    const auto& newcomer = run.result(7);
    for (const auto& fragment : run.layout().fragments()) {
      const auto value = newcomer.first_moment[fragment.begin];
      if (moments) {
        EXPECT_TRUE(value == 0 || value == 1) << value << " is no donor's moment";
        EXPECT_EQ(newcomer.first_moment[fragment.end() - 1], value)
            << "a fragment's moments must come from one donor";
      } else {
        EXPECT_EQ(value, 7) << "the moments were not asked for";
      }
    }
    if (moments) {
      EXPECT_THAT(newcomer.moment_steps, testing::AnyOf(1000U, 1001U));
    } else {
      EXPECT_EQ(newcomer.moment_steps, 1007U);
    }
  }
}

TEST(Life, WhoLeavesPolitelyCostsNoTimeOut) {
  auto options = lively(3);
  options.steps = 40;
  options.detect_timeout = 300;
  NetworkRun run(options);
  run.before_step = [](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 1 || step != 6) return;
    node.leave("was asked to");
    throw NetworkRun::Vanish();
  };
  run.start();
  run.expect_one_end({0, 2});
  EXPECT_THAT(run.said(), AllOf(HasSubstr("r1 left: was asked to"), Not(HasSubstr("is lost"))));
}

TEST(Life, BelowLeastNobodyCommitsUntilOneComesBack) {
  auto options = lively(2);
  options.closing.least = 2;
  NetworkRun run(options);
  let_come_back(run, 11, 1);
  Steps steps;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    const auto made = steps.next(m);
    if (m == 1 && step == 6) throw NetworkRun::Vanish();
    if (m == 0 && step < made && steps.next(9) == 3) {  // r0 has been frozen for three steps
      EXPECT_EQ(node.status().participation.participating, 0U);
      run.start_worker(11);
    }
    if (m == 11 && made == 1) run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 11});
  EXPECT_GE(run.result(0).stats.uncommitted_steps, 3U);
  EXPECT_THAT(run.said(), HasSubstr("1 of at least 2 replicas are here"));
}

// ---- the coordinator ----

TEST(Life, TheCoordinatorVanishesComesBackFromItsStoredViewAndThenAMemberIsLost) {
  auto options = lively(3);
  options.closing.least = 2;
  NetworkRun run(options);
  std::barrier all(3);
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 6) run.kill_coordinator();
    if (step == 60) {  // no member alone has a result in flight
      all.arrive_and_wait();
      if (m == 0) run.start_coordinator_again(run.stored());
      run.wait_until_said("begins with 3 replicas", 2);  // wait until the last worker has joined
    }
    if (m == 1 && step == 70) throw NetworkRun::Vanish();
    if (m == 0 && step == 70) run.last_step = 100;
  };
  run.start();
  run.expect_one_end({0, 2});
  EXPECT_EQ(run.result(0).evicted + run.result(2).evicted, 0U);
  EXPECT_THAT(run.said(), HasSubstr("begins with 2 replicas: r0, r2"));
}

TEST(Life, ACoordinatorWithoutMemoryIsToldToRecover) {
  auto options = lively(2);
  options.detect_timeout = 4;  // it waits this long for members that may exist
  NetworkRun run(options);
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 6) run.kill_coordinator();
    if (m == 0 && step == 30) run.start_coordinator_again({}, 1000);
    if (step == 31) run.wait_until_said("begins with 2 replicas", 2);
    if (m == 0 && step == 40) run.last_step = 60;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), HasSubstr("view 100"));
}

TEST(Life, ACoordinatorWithoutMemoryThatIsNotToldSendsNobodyAway) {
  NetworkRun run(lively(2));
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (step == 21) run.wait_until_said("begins with 2 replicas", 2);
    if (m != 0) return;
    if (step == 6) {
      run.kill_coordinator();
      run.start_coordinator_again({});
    }
    if (step == 7) {
      run.wait_until_said("which this coordinator does not remember");
      run.coordinator().request_stop("start me with --recover");
    }
    if (step == 20) run.start_coordinator_again(run.stored());
    if (step == 30) run.last_step = 60;
  };
  run.start();
  run.expect_one_end({0, 1});
}

/// The coordinator is cut off for longer than network.join_timeout while the others train on.
TEST(Life, ACoordinatorThatIsCutOffFromAllWaitsForThem) {
  auto options = lively(2);
  options.detect_timeout = 1;
  options.join_timeout = 1;
  NetworkRun run(options);
  Forwarder control(run.coordinator_address());
  run.adjust_network = [&](std::size_t, NetworkConfig& network) { network.coordinator = control.address(); };
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m != 0 || step != 9) return;
    control.silence();
    run.wait_until_said("no replica has been here for network.join_timeout: waiting");
    control.speak();
    run.wait_until_said("begins with 2 replicas", 2);
    run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_EQ(run.result(0).evicted + run.result(1).evicted, 0U);
}

// ---- the network ----

/// Worker r2 of three, behind forwarders; the others dial it.
class CutOff : public testing::Test {
 protected:
  explicit CutOff(NetworkRun::Options options = losing_silent(3))
      : run(std::move(options)), control(run.coordinator_address()), bulk(private_address(2)) {
    run.adjust_network = [this](std::size_t m, NetworkConfig& network) {
      if (m != 2) return;
      network.coordinator = control.address();
      network.listen = private_address(2);
      network.advertise = bulk.address();
    };
  }
  void cut_off() {
    control.cut_off();
    bulk.cut_off();
  }
  void heal() {
    control.refuse(false);
    bulk.refuse(false);
  }

  NetworkRun run;
  Forwarder control, bulk;
  Steps steps;
};

TEST_F(CutOff, ForAFewRoundsItComesBackWithItsOwnParameters) {
  std::atomic<bool> healed = false;
  std::barrier all(3);
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    const auto made = steps.next(m);
    if (step == 8 && made == 8) {  // no member alone has a result in flight
      all.arrive_and_wait();
      if (m == 2) cut_off();
      all.arrive_and_wait();
    }
    if (m == 2 && !healed && step + 3 == made) {  // r2 has been frozen for three steps
      heal();
      healed = true;
    }
    // Let a round of each fragment pass without r2.
    if (m != 2 && step == 13) run.wait_until_said("begins with 3 replicas", 2);
    if (m == 0 && step == 14) run.last_step = 60;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_EQ(run.result(2).evicted, 0U) << "the others must have kept the results that it missed";
  EXPECT_GE(run.result(2).stats.uncommitted_steps, 3U);
}

TEST_F(CutOff, ForTooLongItTakesTheStateAnew) {
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    const auto made = steps.next(m);
    if (m == 2 && step == 8 && made == 8) cut_off();
    if (m == 0 && step == 60) heal();
    if (m == 2 && step > 60 && node.status().view->members.size() == 3 && run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_GE(run.result(2).evicted, 1U);
}

/// Without a third member between them there is no relay.
TEST(Life, TwoThatCannotReachEachOtherAreNotInOneView) {
  NetworkRun run(losing_silent(2));
  Forwarder link(private_address(1));
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    network.listen = m == 0 ? private_address(1) : NetworkConfig::no_port;
    if (m == 0) network.advertise = link.address();
  };
  std::atomic<bool> cut = false;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 8 && !cut.exchange(true)) link.cut_off();
    if (m == 0 && cut && step > 12 && node.status().view->members.size() == 1) link.refuse(false);
    if (m == 0 && step > 12 && node.status().view->members.size() == 2 && run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_THAT(run.said(), AllOf(HasSubstr("is left out"), HasSubstr("there is no connection between"),
                                HasSubstr("reachable from the other side")));
}

// ---- rounds that do not wait for all ----

TEST(Life, WithAQuorumASlowMemberHoldsUpNobody) {
  auto options = lively(3);
  options.heartbeat = 0.1;
  options.detect_timeout = 2;
  options.closing = {.least = 2, .quorum = 2, .grace = std::chrono::milliseconds(20)};
  NetworkRun run(options);
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 2 && step > 4) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (m == 0 && step == 150) node.request_stop("enough");
  };
  run.start();
  run.expect_one_end({0, 1, 2});
  EXPECT_GT(run.result(2).stats.left_out + run.result(2).evicted, 0U);
}

// ---- stopping ----

TEST(Life, AStopEndsTheOthersAtOneStepWhenOneIsLostMeanwhile) {
  NetworkRun run(lively(3));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 1 || step != 9) return;
    node.request_stop("enough");
    run.wait_until_said("stopping: enough");
    throw NetworkRun::Vanish();
  };
  run.start();
  run.expect_one_end({0, 2});
  EXPECT_TRUE(run.result(0).stopped && run.result(2).stopped);
}

/// Otherwise the stopped run would count as finished.
TEST(Life, AStopOutlivesTheCoordinatorThatHasNamedTheStep) {
  NetworkRun run(lively(2));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 10) node.request_stop("enough");
    if (m != 1 || step != 9) return;
    while (!node.status().stops_at) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    run.kill_coordinator();
    run.start_coordinator_again(run.stored());
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_TRUE(run.result(0).stopped && run.result(1).stopped);
  EXPECT_TRUE(run.coordinator().coordinator().stopping());
}

TEST(Life, AStopOutlivesTheCoordinatorThatWasAskedForIt) {
  NetworkRun run(lively(2));
  Forwarder control(run.coordinator_address());
  run.adjust_network = [&](std::size_t m, NetworkConfig& network) {
    if (m == 1) network.coordinator = control.address();
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0 || step != 9) return;
    control.silence();  // r1 does not receive Hold
    node.request_stop("enough");
    run.kill_coordinator([](const protocol::Coordinator& it) { return it.members().at("r0").held; });
    run.start_coordinator_again(run.stored());
    control.speak();
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_TRUE(run.result(0).stopped && run.result(1).stopped);
}

}  // namespace
}  // namespace isthmus::outer_sync
