// A joiner that copies the state from donors that break the protocol, and among random faults.

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "raw_peer.h"
#include "repetitions.h"
#include "state_donors.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::HasSubstr;

// ---- donors that break the protocol ----

TEST(StateFetcher, GivesUpADonorWhoseFragmentsDoNotFit) {
  SharedRun run, other;
  other.layout = FragmentLayout({{0, 11}, {11, 11}, {22, 11}, {33, 11}, {44, 11}, {55, 11}}, 4096);
  StateDonor bad(other, 1), good(run, 2, {.ready = [&bad] { return bad.states_given > 0; }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({bad.info(), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(bad.states_given, 1U) << "a bad donor must not be asked again";
  joiner.fetcher->stop();

  Joiner without(run);
  without.start({bad.info()});
  without.run_until([&] { return without.failures > 0; });
  EXPECT_THAT(without.why, HasSubstr("elements here and 11 there"));
  EXPECT_EQ(bad.states_given, 2U);
}

TEST(StateFetcher, GivesUpADonorWhoseRoundsDoNotFitAndFetchesTheFragmentAnew) {
  SharedRun run, other;
  other.codecs.codec = quant::default_spec(quant::CodecKind::int4);
  for (auto* one : {&run, &other}) {
    for (FragmentId f = 0; f < SharedRun::fragments; ++f) one->commit(f, 5);
  }
  StateDonor bad(other, 1), good(run, 2);
  Joiner joiner(run);
  joiner.start({bad.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  run.commit(1);
  other.commit(1);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_THAT(joiner.why, HasSubstr("no round 11 of fragment 1 from the donor at "));
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  EXPECT_FALSE(joiner.fetcher->caught_up()) << "the state from a bad donor must not be trusted";
  EXPECT_EQ(bad.rounds_asked, 1U);
  joiner.failures = 0;
  joiner.start({good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(good.states_given, 1U);
}

/// For example, results that do not decode are noticed by the handler only.
TEST(StateFetcher, GivesUpADonorWhoseRoundsTheHandlerRefuses) {
  SharedRun run;
  StateDonor a(run, 1), b(run, 2);
  Joiner joiner(run);
  joiner.start({a.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  joiner.after_round = [](FragmentId) { throw Error(ErrorKind::network, "that does not decode"); };
  run.commit(1);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_EQ(joiner.why, "that does not decode");
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  joiner.failures = 0;
  joiner.forget();
  joiner.start({b.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments + 1; });
  EXPECT_TRUE(joiner.fetcher->caught_up());
}

/// Donors that the test plays by hand.
TEST(StateFetcher, GivesUpADonorThatSaysAnythingElse) {
  SharedRun run;
  const Frame hello{FrameType::peer_hello,
                    to_bytes(PeerHello{.token = run_token(), .from = 1, .to = fetcher_id}), nullptr};
  const Frame somebody{FrameType::peer_hello,
                       to_bytes(PeerHello{.token = run_token(), .from = 2, .to = fetcher_id}), nullptr};
  const Frame early{FrameType::state_done, to_bytes(StateDone{0}), nullptr};
  const Frame control = control_frame(protocol::Hold{});
  const Frame huge{FrameType::state_data, Bytes(state_frame_limit + 1), nullptr};
  const std::pair<std::vector<Frame>, const char*> cases[] = {
      {{somebody}, "the process there is not the member that was dialled"},
      {{control}, "its first frame is not a hello"},
      {{hello, early}, "before it was complete"},
      {{hello, control}, "no place in a state stream"},
      {{hello, huge}, "expected at most 262160"},
      {{hello, hello}, "no place in a state stream"},
  };
  for (const auto& [frames, expected] : cases) {
    RawListener listener;
    std::thread donor([&listener, &frames = frames] {
      RawPeer peer(listener);
      static_cast<void>(peer.receive());
      for (const auto& frame : frames) peer.say(frame);
      EXPECT_TRUE(peer.is_dropped());
    });
    Joiner joiner(run);
    joiner.start({{1, "false", listener.address()}});
    joiner.run_until([&] { return joiner.failures > 0; });
    EXPECT_THAT(joiner.why, HasSubstr(expected));
    donor.join();
  }
}

// ---- random events ----

/// Donors of random speed, memory and lag, on connections that break. At random events, rounds are committed
/// and the fetcher is stopped and started. Once the disorder ends, the joiner must catch up.
void live_through_disorder(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint64_t counter = 0;
  const auto below = [&](std::uint64_t bound) { return random_bits(seed, 1, counter++) % bound; };
  SharedRun run;
  std::deque<StateDonor> donors;
  std::deque<Forwarder> forwarders;
  std::vector<PeerInfo> infos;
  for (std::uint64_t n = 1 + below(3), id = 1; id <= n; ++id) {
    const auto& donor =
        donors.emplace_back(run, id,
                            StateDonor::Manner{.bytes_per_second = below(2) == 0 ? fast_rate : 20'000'000,
                                               .keeps = below(4) == 0 ? 2U : 20U,
                                               .lag = below(4) == 0 ? 1U : 0U});
    auto& forwarder = forwarders.emplace_back(donor.address());
    const bool may_break = below(2) == 0;
    infos.push_back(may_break ? donor.behind(forwarder) : donor.info());
    if (below(2) == 0) forwarder.cut_within(400'000);
  }
  Joiner joiner(run);
  int disorders = 12;
  const auto disorder = [&](FragmentId f) {
    if (disorders == 0) return;
    if (--disorders == 0) {
      for (auto& forwarder : forwarders) forwarder.cut_within(0);
      for (auto& donor : donors) donor.lag = 0;
      joiner.fetcher->newest(run.newest());
      return;
    }
    run.commit(static_cast<FragmentId>(below(SharedRun::fragments)), 1 + below(3));
    if (below(4) == 0) run.commit(f, 2);
    if (below(3) > 0) joiner.fetcher->newest(run.newest());
    if (below(6) == 0) forwarders[below(forwarders.size())].cut();
    if (below(8) == 0) joiner.start(infos);
  };
  joiner.after_fragment = joiner.after_round = disorder;
  joiner.after_failure = [&] { joiner.start(infos); };
  joiner.fetcher->newest(run.newest());
  joiner.start(infos);
  joiner.run_until([&] { return disorders == 0 || joiner.fetcher->caught_up(); });
  if (disorders > 0) disorders = 1, disorder(0);
  joiner.run_until([&] { return joiner.at_newest() || testing::Test::HasFailure(); });
  ASSERT_FALSE(testing::Test::HasFailure());
  EXPECT_TRUE(joiner.fetcher->caught_up());
}

/// Ten at a time, since they mostly wait.
TEST(StateFetcher, RandomInterleavingsEndWhereTheMembersAre) {
  std::vector<std::thread> threads;
  for (std::uint64_t first = 0; first < 10; ++first) {
    threads.emplace_back([first] {
      for (std::uint64_t seed = first; seed < repetitions(100, 30); seed += 10) live_through_disorder(seed);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
