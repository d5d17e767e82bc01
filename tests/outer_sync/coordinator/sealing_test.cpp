// Answers to the coordinator's Seal before a view begins: disagreement, invalid answers, members that vanish.

#include "coordinator_support.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using How = Ended::How;

/// Three members seal, eu-1 with a changed answer; returns the reason why the run ends, or "began".
template <class Change>
std::string disagreement_of(Change change) {
  CoordinatorHarness harness(3);
  const char* names[] = {"asia-1", "eu-1", "us-1"};
  for (ConnectionId i = 0; i < 3; ++i) harness.receive(i + 1, CoordinatorHarness::hello(names[i]));
  auto other = CoordinatorHarness::sealed();
  change(other);
  harness.receive(1, CoordinatorHarness::sealed());
  harness.receive(2, other);
  harness.receive(3, CoordinatorHarness::sealed());
  if (!harness.ended) return "began";
  EXPECT_EQ(harness.ended->how, How::diverged);
  EXPECT_TRUE(harness.last<Abort>(1) && harness.last<Abort>(2) && harness.last<Abort>(3));
  EXPECT_FALSE(harness.last<NewView>(1));
  return harness.ended->reason;
}

TEST(Sealing, WhoDisagreesIsNamed) {
  EXPECT_EQ(disagreement_of([](Sealed&) {}), "began");
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.parameters = digest_of(8); }),
              AllOf(HasSubstr("global parameters of eu-1 and asia-1 differ"), HasSubstr("seed")));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) {
                sealed.fragments[1].round = 1;
                sealed.ledger[1] = FragmentLedger(1);
              }),
              HasSubstr("eu-1 and asia-1"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.fragments[1].chain = digest_of(8); }),
              HasSubstr("eu-1 and asia-1"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.layout[1].size = 49; }),
              HasSubstr("the fragments of eu-1 and asia-1 differ"));
  EXPECT_THAT(disagreement_of([](Sealed& sealed) { sealed.chunk_elements = 64; }),
              HasSubstr("the fragments of eu-1 and asia-1 differ"));
}

/// Lets the only trainer of a run report this layout; returns why the run ends, or "began".
std::string layout_judged(std::vector<Range> layout, std::uint64_t chunk_elements) {
  CoordinatorHarness harness(1);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  auto sealed = CoordinatorHarness::sealed();
  sealed.fragments.resize(layout.size());
  sealed.history.resize(layout.size());
  sealed.ledger.resize(layout.size());
  sealed.layout = std::move(layout);
  sealed.chunk_elements = chunk_elements;
  harness.receive(1, sealed);
  return harness.last<NewView>(1) ? "began" : harness.refusal(1);
}

TEST(Sealing, HostileLayoutsAreRefusedBeforeAnythingIsSetAside) {
  constexpr std::uint64_t huge = UINT64_MAX;
  const auto refused = HasSubstr("us-1 broke the protocol: an invalid fragment layout");
  EXPECT_THAT(layout_judged({}, 32), HasSubstr("a trainer without a layout"));
  EXPECT_THAT(layout_judged({{0, 100}}, 0), refused) << "a chunk size of zero";
  EXPECT_THAT(layout_judged({{0, huge}}, 1), refused) << "2^64 chunks";
  EXPECT_THAT(layout_judged({{0, 1ULL << 44}}, 1), refused) << "2^44 chunks";
  EXPECT_THAT(layout_judged({{0, huge}}, huge), refused);
  EXPECT_THAT(layout_judged({{huge, 100}}, 32), refused) << "an end beyond 2^64";
  EXPECT_THAT(layout_judged({{0, 100}, {50, 100}}, 32), refused) << "overlapping fragments";
  EXPECT_THAT(layout_judged({{0, 100}, {100, 0}}, 32), refused) << "an empty fragment";
  EXPECT_THAT(layout_judged(std::vector<Range>(1000, Range{0, 1ULL << 40}), 1ULL << 28), refused)
      << "too many chunks in many fragments";
  EXPECT_EQ(layout_judged({{1ULL << 40, 1ULL << 40}}, huge), "began") << "one chunk may have any size";
}

TEST(Sealing, AWrongViewNumberIsNotAnAnswer) {
  CoordinatorHarness harness(1);
  harness.receive(1, CoordinatorHarness::hello("us-1"));
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = 2;
  harness.receive(1, sealed);
  EXPECT_FALSE(harness.last<NewView>(1));
}

TEST(Sealing, SlowLoadersAreWaitedForWhileTheirHeartbeatsCome) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.receive(1, CoordinatorHarness::sealed());
  for (Time t = 1s; t <= 90s; t += 1s) {
    harness.now = t;
    harness.receive(1, Heartbeat{});
    harness.receive(2, Heartbeat{});
    harness.tick(t);
  }
  ASSERT_FALSE(harness.ended) << harness.ended->reason;
  harness.receive(2, CoordinatorHarness::sealed());
  harness.tick(90s + 100ms);
  EXPECT_TRUE(harness.last<NewView>(1));
  EXPECT_FALSE(harness.ended);
}

TEST(Sealing, OneThatVanishesWhileLoadingMakesRoomForItself) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.now = 4s;
  harness.receive(1, Heartbeat{});
  harness.tick(6s);
  ASSERT_FALSE(harness.ended);
  EXPECT_THAT(harness.said.back(),
              AllOf(HasSubstr("us-1"), HasSubstr("network.detect_timeout"), HasSubstr("free again")));
  auto sealed = CoordinatorHarness::sealed();
  harness.receive(1, sealed);
  EXPECT_FALSE(harness.last<NewView>(1)) << "us-1 is not here";
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  sealed.view = harness.last<Seal>(3)->view;
  harness.receive(3, sealed);
  EXPECT_FALSE(harness.last<NewView>(1)) << "eu-1 has not sealed this view";
  harness.receive(1, sealed);
  EXPECT_TRUE(harness.last<NewView>(1) && harness.last<NewView>(3));
}

TEST(Sealing, OneThatReconnectsWhileLoadingKeepsItsPlace) {
  CoordinatorHarness harness(2);
  harness.receive(1, CoordinatorHarness::hello("eu-1"));
  harness.receive(2, CoordinatorHarness::hello("us-1"));
  harness.receive(3, CoordinatorHarness::hello("us-1"));
  EXPECT_EQ(harness.refusal(3), "") << "the end of its old connection was not noticed yet";
  EXPECT_TRUE(harness.closed.contains(2));
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = harness.last<Seal>(3)->view;
  for (const ConnectionId member : {1, 3}) harness.receive(member, sealed);
  EXPECT_TRUE(harness.last<NewView>(3));
}

TEST(Sealing, WhoIsLostWhileLoadingHasTheWholeJoinTimeoutToComeBack) {
  CoordinatorHarness harness(2);
  for (ConnectionId i : {1, 2}) harness.receive(i, CoordinatorHarness::hello("r" + std::to_string(i)));
  for (Time t = 4s; t <= 100s; t += 4s) {
    harness.now = t;
    for (const ConnectionId i : {1, 2}) harness.receive(i, Heartbeat{});
    harness.tick(t);
  }
  harness.close(2);
  for (Time t = 104s; t <= 160s; t += 4s) {
    harness.now = t;
    harness.receive(1, Heartbeat{});
    harness.tick(t);
  }
  EXPECT_FALSE(harness.ended);
  harness.tick(160s + 1us);
  EXPECT_TRUE(harness.ended);
}

// ---- answers that no correct member gives ----

TEST(Answers, AreJudgedBeforeAnythingIsMadeOfThem) {
  const FragmentLayout layout({{0, 100}, {100, 50}}, 32);
  auto good = CoordinatorHarness::sealed();
  good.view = 7;
  good.activated = 6;
  good.fragments = {{20, digest_of(1)}, {20, digest_of(2)}};
  good.history = {{{18, digest_of(3)}, {19, digest_of(4)}}, {}};
  good.ledger = {FragmentLedger(20), FragmentLedger(20)};
  good.held = {
      {0, 20, ChunkSet(4)}, {0, 20 + Member::window, ChunkSet(4)}, {1, 21 - Member::max_held, ChunkSet(2)}};
  const Bounds bounds{.layout = &layout};
  EXPECT_EQ(problem_of(good, bounds), "");
  const auto fits_with = [&](auto change) {
    auto answer = good;
    change(answer);
    return problem_of(answer, bounds).empty();
  };
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.history.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.ledger.pop_back(); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.ledger[0].add({}); }))
      << "a ledger that is ahead of the fragment's round";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.activated = 7; }))
      << "it would make its own view the reference";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.history[0][1].round = 17; })) << "rounds out of order";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments[0].round = 21; })) << "a gap in the history";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.fragments[1].round = UINT64_MAX; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) {
    sealed.history[1].clear();
    for (Round r = 0; r < 20; ++r) sealed.history[1].push_back({r, {}});
  })) << "more history than is kept";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[0].fragment = 2; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[0].chunks = ChunkSet(9); }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round = 20; })) << "twice";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round += 1; })) << "a round too new to be kept";
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].round = UINT64_MAX; }));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[2].round -= 1; })) << "a round too old to be kept";
  const auto fits_with_rows = [&](std::size_t held, std::vector<TrainedOn> rows, std::size_t chunk = 0) {
    return fits_with([&](Sealed& sealed) {
      sealed.held[held].chunks.add(chunk);
      sealed.held[held].trained_on = std::move(rows);
    });
  };
  EXPECT_TRUE(fits_with_rows(1, {{1, {0, 4, 8}}}));
  EXPECT_FALSE(fits_with_rows(0, {{1, {0, 4, 8}}})) << "samples of a round that is in the ledger already";
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, 8}}}, 1)) << "samples without the chunk that carries them";
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, 4}}}));
  EXPECT_FALSE(fits_with_rows(1, {{1, {0, 4, UINT64_MAX}}}));
  EXPECT_FALSE(fits_with_rows(1, {max_members * max_trained_on + 1, {1, {0, 4, 8}}}));
  EXPECT_FALSE(fits_with([](Sealed& sealed) { sealed.held[1].contributors.resize(max_members + 1); }));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
