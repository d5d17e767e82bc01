// Topologies and reducers over real sockets: chunk owners do not change any bit of the result, and losing a
// member that owns chunks is like losing any other.

#include <gmock/gmock.h>

#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using protocol::Topology;
using testing::AllOf;
using testing::HasSubstr;

struct Case {
  Topology topology;
  std::vector<std::string> reducers;
  std::int64_t lanes = 1;
  double rtt = 0;
};

/// Three trainers with different known uplinks, so their shares differ too.
NetworkRun::Options options_of(const Case& which) {
  NetworkRun::Options options;
  options.members = 3;
  options.topology = {which.topology, 4.25};
  options.reducers = which.reducers;
  options.lanes = which.lanes;
  options.rtt = which.rtt;
  return options;
}

void know_uplinks(NetworkRun& run) {
  run.adjust_network = [](std::size_t m, NetworkConfig& network) {
    network.rate = {m < 3 ? 8e6 * static_cast<double>(m + 1) : 8e9};
  };
}

/// `expect_good_end` compares with the run without a network.
TEST(Topologies, WhoOwnsTheChunksChangesNoBit) {
  const std::vector<Case> cases = {
      {Topology::mesh, {}},
      {Topology::weighted, {}},
      {Topology::hub, {}},
      {Topology::automatic, {}, 3},
      {Topology::hub, {}, 3, 0.02},
      {Topology::hub, {"r0-reducer"}},  // between r0 and r1 in the order of the sums
      {Topology::hub, {"a-reducer"}, 3},
      {Topology::mesh, {"r1-reducer"}, 1, 0.02},
      {Topology::weighted, {"z-reducer"}, 2},
      {Topology::automatic, {"r0-reducer", "z-reducer"}, 2, 0.02},
  };
  for (const auto& which : cases) {
    NetworkRun run(options_of(which));
    know_uplinks(run);
    run.start();
    run.expect_good_end();
    if (HasFailure())
      FAIL() << "topology " << static_cast<int>(which.topology) << ", " << which.reducers.size()
             << " reducers";
    EXPECT_THAT(run.said(), HasSubstr("chunks: "))
        << "the log must name the chunk owners when the view begins";
  }
}

TEST(Topologies, PackedChunksGoThroughAReducerToo) {
  auto options = NetworkRun::Options::packing();
  options.reducers = {"r0-reducer"};
  NetworkRun run(options);
  run.start();
  run.expect_good_end();
  EXPECT_GT(run.reducer("r0-reducer").wire.payload, 0U);
}

TEST(Topologies, AReducerAtTheHubSendsTheResultsAndTrainersTheirContributionsAlone) {
  NetworkRun run(options_of({Topology::hub, {"hub"}}));
  run.start();
  run.expect_good_end();
  const auto sent = run.result(0).wire.payload;
  for (std::size_t m = 1; m < 3; ++m) EXPECT_EQ(run.result(m).wire.payload, sent);
  EXPECT_EQ(run.reducer("hub").wire.payload, 3 * sent) << "each result goes to three members";
  EXPECT_THAT(run.said(), AllOf(HasSubstr("begins with 3 replicas and 1 reducer"),
                                HasSubstr("chunks: hub, hub owns all")));
}

/// Options of a run that continues until a test ends it.
NetworkRun::Options with_reducers(std::vector<std::string> reducers) {
  auto options = NetworkRun::Options::lively(2);
  options.reducers = std::move(reducers);
  options.topology = {Topology::automatic, 4.25};
  return options;
}

TEST(Reducers, OneThatLeavesPolitelyHandsItsChunksOver) {
  NetworkRun run(with_reducers({"reducer"}));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 12) run.let_reducer_leave("reducer");
    if (m == 0 && step > 12 && node.status().view->members.size() == 2 && run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_FALSE(run.reducer("reducer").error);
  EXPECT_FALSE(run.reducer("reducer").problem) << "it left before the end of the run";
  EXPECT_THAT(run.said(), AllOf(HasSubstr("reducer left: was asked to"), HasSubstr("chunks: mesh")));
}

TEST(Reducers, OneThatComesLaterIsInTheNextView) {
  NetworkRun run(with_reducers({}));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 0 && step == 12) run.start_reducer("reducer");
    if (m == 0 && step > 12 && node.status().view->members.size() == 3 && run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  ASSERT_FALSE(run.reducer("reducer").error) << run.reducer("reducer").error->what();
  EXPECT_EQ(run.reducer("reducer").problem, "");
  EXPECT_GT(run.reducer("reducer").wire.payload, 0U);
  EXPECT_THAT(run.said(), HasSubstr("chunks: hub, reducer owns all"));
}

TEST(Reducers, OneLeavesAndComesBackAndATrainerIsLostMeanwhile) {
  auto options = with_reducers({"reducer"});
  options.members = 3;
  NetworkRun run(options);
  std::atomic<bool> again = false;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    const auto members = node.status().view->members.size();
    if (m == 1 && step == 20) throw NetworkRun::Vanish();
    if (m != 0) return;
    if (step == 12) run.let_reducer_leave("reducer");
    if (step > 20 && members == 2 && !again.exchange(true)) run.start_reducer("reducer");
    if (again && members == 3 && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 2});
  EXPECT_EQ(run.reducer("reducer").problem, "");
}

TEST(Reducers, TheCoordinatorComesBackAndTheReducerIsStillThere) {
  NetworkRun run(with_reducers({"reducer"}));
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    const auto view = node.status().view;
    if (m == 0 && run.times_said("view ") >= 2 && view->members.size() == 3 && view->number > 1 &&
        run.last_step == for_ever)
      run.last_step = step + 20;
  };
  run.start();
  run.kill_coordinator();
  run.start_coordinator_again(run.stored());
  run.expect_one_end({0, 1});
  EXPECT_EQ(run.reducer("reducer").problem, "");
}

TEST(Reducers, AStopEndsAllAndTheReducerWithThem) {
  NetworkRun run(with_reducers({"reducer"}));
  run.before_step = [](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 1 && step == 15) node.request_stop("enough");
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_TRUE(run.result(0).stopped);
  EXPECT_EQ(run.reducer("reducer").problem, "");
}

TEST(Reducers, ADataParallelRunHasNone) {
  auto options = with_reducers({});
  options.elastic = false;
  NetworkRun run(options);
  run.start_coordinator();
  run.start_reducer("reducer");
  run.wait_until_said("refused a worker: reducer is a reducer");
  run.coordinator().request_stop("seen enough");
  run.finish();
  ASSERT_TRUE(run.reducer("reducer").error);
  EXPECT_THAT(run.reducer("reducer").error->what(), HasSubstr("data-parallel"));
}

}  // namespace
}  // namespace isthmus::outer_sync
