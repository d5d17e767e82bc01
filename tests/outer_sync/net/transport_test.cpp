// Runs over real sockets on loopback end with the same hash as without a network.

#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "forwarder.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "network_run.h"

namespace isthmus::outer_sync {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Options = NetworkRun::Options;

Options with(std::size_t members, std::int64_t lanes = 1, std::uint64_t steps = 12) {
  Options options;
  options.members = members;
  options.lanes = lanes;
  options.steps = steps;
  return options;
}

class Sizes : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t>> {};

TEST_P(Sizes, EveryRunEndsWithTheSameHashAsWithoutANetwork) {
  NetworkRun run(with(std::get<0>(GetParam()), std::get<1>(GetParam())));
  run.start();
  run.expect_good_end();
}

INSTANTIATE_TEST_SUITE_P(Transport, Sizes,
                         testing::Combine(testing::Values(1, 2, 3, 4), testing::Values(1, 3)));

TEST(Transport, LatencyChangesNothingButTheTime) {
  auto options = with(3, 2, 6);
  options.rtt = 0.2;
  NetworkRun run(options);
  const auto begin = std::chrono::steady_clock::now();
  run.start();
  run.expect_good_end();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // Two rounds of the warm-up, two of steps 4 and 6, and the last round: each waits for a contribution and a
  // result.
  EXPECT_GE(took.count(), 5 * 0.2) << "network.emulate.rtt did not delay the rounds";
}

TEST(Transport, PackedChunksChangeNothingButTheTraffic) {
  auto options = Options::packing();
  options.members = 3;
  std::uint64_t payload[2] = {};
  Digest hash[2];
  for (const bool packs : {false, true}) {
    options.outer.lossless = packs ? "zstd" : "none";
    NetworkRun run(options);
    run.start();
    run.expect_good_end();
    hash[packs ? 1 : 0] = run.result(0).hash;
    for (std::size_t m = 0; m < 3; ++m) payload[packs ? 1 : 0] += run.result(m).wire.payload;
  }
  EXPECT_EQ(hash[1].hex(), hash[0].hex());
  EXPECT_LT(payload[1], payload[0] - payload[0] / 50);
}

TEST(Transport, AStopEndsAllAtOneStep) {
  NetworkRun run(with(3, 1, 1'000'000));
  run.before_step = [](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 1 && step == 9) node.request_stop("enough");
  };
  run.start();
  run.finish();
  const auto last = run.result(0).step;
  EXPECT_GE(last, 8U);
  for (std::size_t m = 0; m < 3; ++m) {
    ASSERT_FALSE(run.result(m).error) << run.result(m).error->what();
    EXPECT_TRUE(run.result(m).stopped);
    EXPECT_EQ(run.result(m).step, last) << "all must stop at one step";
    EXPECT_EQ(run.result(m).hash.hex(), run.expected_hash(last, false).hex());
  }
  EXPECT_THAT(run.said(), AllOf(HasSubstr("stopping: enough"), HasSubstr("r1")));
  EXPECT_EQ(run.ended().how, protocol::Ended::How::finished);
}

TEST(Transport, TheCoordinatorCanStopARunToo) {
  NetworkRun run(with(2, 1, 1'000'000));
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 5) run.coordinator().request_stop("a signal");
  };
  run.start();
  run.finish();
  EXPECT_TRUE(run.result(0).stopped && run.result(1).stopped);
  EXPECT_EQ(run.result(0).step, run.result(1).step);
  EXPECT_EQ(run.result(0).hash, run.result(1).hash);
}

TEST(Transport, EvaluationsAnnouncementsAndBytesArrive) {
  NetworkRun run(with(3));
  run.before_step = [](std::size_t, MemberNode& node, std::uint64_t step) {
    if (step != 1) return;
    std::optional<std::string> own;
    if (node.status().self == 0) own = "10.0.0.1:29500";
    EXPECT_EQ(node.announced(own), "10.0.0.1:29500");
  };
  run.start();
  run.expect_good_end();
  ASSERT_EQ(run.evaluations().size(), 1U);
  EXPECT_EQ(run.evaluations()[0], (std::pair<std::uint64_t, double>(12, 1.0)))
      << "the mean of 0, 1 and 2 nats";
  for (std::size_t m = 0; m < 3; ++m) {
    EXPECT_EQ(run.result(m).self, m) << "members are sorted by name";
    EXPECT_GT(run.result(m).wire.payload, 0U);
    EXPECT_GT(run.result(m).wire.total, run.result(m).wire.payload);
  }
}

TEST(Transport, WorkersMayComeBeforeTheirCoordinator) {
  Options options = with(1);
  const auto address = private_address(10);
  NetworkConfig network;
  network.coordinator = address;
  network.join_timeout = {60};
  const FragmentLayout layout({{0, 32}}, 16);
  Trace trace;
  MemberNode node(network, layout, codec_plan(options.outer), {}, trace);
  std::optional<Admission> admission;
  std::thread worker([&] {
    protocol::Hello hello;
    hello.run = "early";
    hello.member.name = "r0";
    admission = node.join(hello);
    node.leave("that is all");
  });
  struct Observer : CoordinatorObserver {
    void round_judged(const protocol::RoundJudged&) override {}
    void message(const std::string& text) override {
      if (text.find("r0 left: that is all") != std::string::npos) on_left();
    }
    void members_changed(const protocol::Coordinator&) override {}
    void evaluated(std::uint64_t, double) override {}
    void store(const protocol::LastView&) override {}
    std::function<void()> on_left;
  } observer;
  protocol::CoordinatorOptions coordinator_options;
  coordinator_options.run = "early";
  CoordinatorNode coordinator(network, coordinator_options, observer);
  observer.on_left = [&] { coordinator.request_stop("that was it"); };
  EXPECT_EQ(coordinator.run().how, protocol::Ended::How::stopped);
  worker.join();
  ASSERT_TRUE(admission);
  EXPECT_EQ(admission->how, Admission::How::begins);
}

// ---- outer.reject ----

/// Three replicas; r1's steps are a thousand times too long.
class Sick : public testing::Test {
 protected:
  static NetworkRun::Options of_three() {
    auto options = with(3, 1);
    options.steps = 24;
    options.heartbeat = 0.02;
    options.table = [](std::size_t m, std::uint64_t step, std::size_t i) {
      return random_step(m, step, i) * (m == 1 ? 1000.0F : 1.0F);
    };
    options.closing.reject = 4;
    return options;
  }
  /// Hash of a run of the two other replicas without a network.
  static Digest hash_of_the_healthy(const NetworkRun::Options& options) {
    Replicas replicas(options.outer, options.layout, 2, [](std::size_t m, std::uint64_t step, std::size_t i) {
      return random_step(m == 0 ? 0 : 2, step, i);
    });
    replicas.train(options.steps);
    replicas.finish();
    return replicas.global_hash();
  }
};

TEST_F(Sick, TheRunIsWhatTheOthersMakeOfIt) {
  for (const std::size_t quorum : {0, 2}) {
    auto options = of_three();
    // Even with a quorum, rounds wait for all three, so no contribution is late.
    options.closing.quorum = quorum;
    options.closing.least = 2;
    options.closing.grace = std::chrono::minutes(10);
    NetworkRun run(options);
    run.start();
    run.expect_end_with(hash_of_the_healthy(options));
    EXPECT_GT(run.result(1).stats.rejected, 4U) << "in warm-up, training and final sync";
    EXPECT_EQ(run.result(1).stats.left_out, 0U);
    for (const std::size_t m : {0, 2}) EXPECT_EQ(run.result(m).stats.rejected, 0U) << "worker " << m;
  }
}

TEST_F(Sick, TheCoordinatorKnowsWho) {
  auto options = of_three();
  options.pace = 0.02;
  options.steps = 60;
  options.outer.optimizer.momentum = 0.9;  // an overshoot common to all shows in all outer gradients
  NetworkRun run(options);
  run.start();
  run.finish();
  ASSERT_FALSE(run.judged().empty()) << "no round was judged in " << options.steps << " steps";
  for (const auto& round : run.judged()) {
    ASSERT_EQ(round.replicas.size(), 3U);
    EXPECT_THAT(round.outliers, testing::ElementsAre("r1")) << "round " << round.round;
    EXPECT_GT(round.replicas[1].norm, 100 * round.replicas[0].norm);
    for (const std::size_t m : {0, 2})
      EXPECT_GT(round.replicas[m].cosine, 0.5) << "each of them is half of the mean";
  }
  EXPECT_THAT(run.said(), HasSubstr("r1 is an outlier: its outer gradient of fragment"));
}

// ---- paths ----

TEST(Paths, HeartbeatsCarryTheirRoundTrips) {
  auto options = Options::lively(3);
  options.lanes = 2;
  NetworkRun run(options);
  run.start();
  std::vector<protocol::Path> paths;
  run.wait_until([&](const protocol::Coordinator& coordinator) {
    paths = coordinator.paths().all();
    return paths.size() == 6;
  });
  run.coordinator().request_stop("the paths are known");
  run.finish();
  ASSERT_EQ(paths.size(), 6U) << "the run ended before each member had reported both others: " << run.said();
  for (const auto& path : paths) {
    const auto which = path.from + " -> " + path.to;
    EXPECT_GT(path.shortest.count(), 0) << which;
    EXPECT_LT(path.shortest, std::chrono::seconds(10)) << which << " is on loopback";
    EXPECT_GT(path.round_trip.count(), 0) << which;
    EXPECT_EQ(path.bytes_per_second, 0U) << which << " is on loopback, where rates are not measured";
  }
}

// ---- lanes that break ----

/// Lets the workers with names before worker `at` dial it through a forwarder.
void dial_through(const Forwarder& forwarder, NetworkRun& run, std::size_t at) {
  run.adjust_network = [&forwarder, at](std::size_t m, NetworkConfig& network) {
    if (m != at) return;
    network.listen = private_address(at);
    network.advertise = forwarder.address();
  };
}

TEST(Lanes, CutAndDialledAgainNothingIsLost) {
  for (const auto& options : {with(2, 1), with(2, 3), Options::packing()}) {
    NetworkRun run(options);
    Forwarder forwarder(private_address(1));
    dial_through(forwarder, run, 1);
    run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
      if (m == 0 && step % 3 == 0) forwarder.cut();
    };
    run.start();
    run.expect_good_end();
    EXPECT_GE(forwarder.connections(), static_cast<std::size_t>(options.lanes) * 3)
        << "cut lanes were not dialled again";
  }
}

TEST(Lanes, CutInTheMiddleOfFramesNothingIsLost) {
  NetworkRun run(with(3, 2));
  Forwarder forwarder(private_address(2));
  forwarder.cut_within(6000);
  dial_through(forwarder, run, 2);
  run.start();
  run.expect_good_end();
  EXPECT_GT(forwarder.connections(), 8U) << "hardly any connection broke: make this test cut earlier";
}

/// Takes a minute. The global hash shows that nothing was lost or applied twice.
TEST(LongLanes, AllCutAtRandomForAMinuteNothingIsLost) {
  auto options = with(2, 8, 3000);
  options.pace = 0.02;
  NetworkRun run(options);
  Forwarder forwarder(private_address(1));
  dial_through(forwarder, run, 1);
  int cuts = 0;
  std::jthread cutter([&](const std::stop_token& stop) {
    std::minstd_rand random(1);
    for (; !stop.stop_requested(); ++cuts) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(random() % 500));  // a quarter of a second on average
      forwarder.cut();
    }
  });
  run.start();
  run.expect_good_end();
  cutter.request_stop();
  cutter.join();
  std::printf("%d cuts, %zu connections\n", cuts, forwarder.connections());
  EXPECT_GT(cuts, 200) << "the run was too short";
}

}  // namespace
}  // namespace isthmus::outer_sync
