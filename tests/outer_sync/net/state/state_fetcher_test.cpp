// A joiner copies the state from several donors and follows the rounds while donors fail or lag.

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "forwarder.h"
#include "net/state_transfer/state_fetcher.h"
#include "state_donors.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::HasSubstr;

// ---- the state ----

TEST(StateFetcher, TakesTheStateFromTwoDonorsAtOnceAndEachFragmentOnce) {
  SharedRun run;
  std::atomic<std::size_t> both = 0;
  const auto meet = [&both, met = false]() mutable {  // neither answers before the other is asked too
    if (!std::exchange(met, true)) ++both;
    return both == 2;
  };
  StateDonor a(run, 1, {.ready = meet}), b(run, 2, {.ready = meet});
  Joiner joiner(run);
  joiner.start({a.info(), b.info()});
  EXPECT_FALSE(joiner.fetcher->caught_up());
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  EXPECT_FALSE(joiner.fetcher->caught_up()) << "the newest rounds are not known yet";
  joiner.fetcher->newest(run.newest());
  EXPECT_TRUE(joiner.fetcher->caught_up());
  joiner.fetcher->stop();
  a.stop();
  b.stop();
  EXPECT_GE(a.states_given, 1U);
  EXPECT_GE(b.states_given, 1U);
  EXPECT_EQ(a.counters.state + b.counters.state, run.state_bytes())
      << "no part of the state may be sent twice";
  const auto wire = a.counters.total + b.counters.total + joiner.counters.total;
  EXPECT_LE(wire, run.state_bytes() + run.state_bytes() / 20) << "including hellos, requests and headers";
}

TEST(StateFetcher, ASlowDonorGivesLess) {
  SharedRun run;
  std::atomic<bool> slow_is_at_work = false;
  StateDonor quick(run, 1, {.ready = [&] { return slow_is_at_work.load(); }});
  StateDonor slow(run, 2, {.ready = [&] {
                    slow_is_at_work = true;
                    return quick.states_given == SharedRun::fragments - 1;
                  }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({slow.info(), quick.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(slow.states_given, 1U);
  EXPECT_EQ(quick.states_given, SharedRun::fragments - 1);
}

TEST(StateFetcher, ADonorThatBreaksOffLeavesItsFragmentsToTheOther) {
  SharedRun run;
  StateDonor weak(run, 1);
  Forwarder forwarder(weak.address());
  forwarder.cut_within(20'000);  // less than any fragment
  // The good donor answers only after the weak one has failed.
  StateDonor good(run, 2, {.ready = [&forwarder] { return forwarder.connections() >= 2; }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({weak.behind(forwarder), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, SharedRun::fragments);
  EXPECT_EQ(good.states_given, SharedRun::fragments);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U) << "a fragment's first copy must not count as fetched anew";
}

TEST(StateFetcher, TheOnlyDonorIsTriedAgain) {
  SharedRun run;
  StateDonor donor(run, 1, {.bytes_per_second = 4'000'000});
  Forwarder forwarder(donor.address());
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({donor.behind(forwarder)});
  for (int cut = 0; cut < 2; ++cut) {
    const std::size_t asked = donor.states_asked;
    joiner.run_until([&] { return donor.states_asked > asked; });
    forwarder.cut();
  }
  joiner.run_until_at_newest();
  EXPECT_EQ(forwarder.connections(), 3U) << "two connections were cut";
}

TEST(StateFetcher, WithoutAnyDonorItSaysWhyAndGoesOnWithOthers) {
  SharedRun run;
  StateDonor good(run, 3);
  Forwarder dead(good.address());
  dead.refuse();
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({{1, "eu-1", dead.address()}, {2, "eu-2", dead.address()}, {9, "nowhere", "no address"}});
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_GE(dead.connections(), 6U) << "three attempts for each donor";
  for (const auto* name : {"no state from eu-1 at ", "no state from eu-2 at ", "the address of nowhere"})
    EXPECT_THAT(joiner.why, HasSubstr(name));
  joiner.failures = 0;
  joiner.start({good.info()});
  joiner.run_until_at_newest();
  EXPECT_THROW(joiner.start({}), Error);
}

TEST(StateFetcher, ASilentDonorIsLeft) {
  SharedRun run;
  StateDonor silent(run, 1, {.ready = [] { return false; }});
  StateDonor good(run, 2, {.ready = [&silent] { return silent.states_asked > 0; }});
  Joiner joiner(run, {.head = 1s, .frame = 1h});
  joiner.fetcher->newest(run.newest());
  joiner.start({silent.info(), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(good.states_given, SharedRun::fragments);
}

// ---- the rounds ----

TEST(StateFetcher, FollowsTheRoundsOfASlowTransfer) {
  SharedRun run;
  StateDonor donor(run, 1, {.bytes_per_second = 2'000'000});
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.fetcher->newest(run.newest());
  // While the next fragment is sent, the run commits two more rounds of each, from the warm-up into the main
  // phase.
  joiner.after_fragment = [&](FragmentId) {
    for (FragmentId f = 0; f < SharedRun::fragments; ++f) run.commit(f, 2);
    joiner.fetcher->newest(run.newest());
  };
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, SharedRun::fragments);
  EXPECT_GE(joiner.rounds_taken, 2 * SharedRun::fragments);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
  // After catching up, it must follow each further round.
  joiner.after_fragment = [](FragmentId) {};
  for (int i = 0; i < 3; ++i) {
    const auto before = joiner.rounds_taken;
    run.commit(4);
    run.commit(5, 3);
    joiner.fetcher->newest(run.newest());
    EXPECT_FALSE(joiner.fetcher->caught_up()) << "fragment 5 is three rounds behind";
    joiner.run_until_at_newest();
    EXPECT_EQ(joiner.rounds_taken, before + 4);
  }
}

TEST(StateFetcher, IsCaughtUpWithinOneRound) {
  SharedRun run;
  StateDonor donor(run, 1);
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  run.commit(2);
  joiner.fetcher->newest(run.newest());
  EXPECT_TRUE(joiner.fetcher->caught_up());
  run.commit(2);
  joiner.fetcher->newest(run.newest());
  EXPECT_FALSE(joiner.fetcher->caught_up());
  EXPECT_THROW(joiner.fetcher->newest({1, 2}), Error);
}

/// Donors keep only the last two rounds, so the round after the copied state is gone for good.
TEST(StateFetcher, FetchesAFragmentAnewWhoseRoundsAreGone) {
  SharedRun run;
  StateDonor a(run, 1, {.keeps = 2}), b(run, 2, {.keeps = 2});
  Joiner joiner(run);
  joiner.start({a.info(), b.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  run.commit(3, 5);
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  EXPECT_EQ(joiner.fragments_taken, SharedRun::fragments + 1);
  EXPECT_EQ(joiner.rounds_taken, 0U) << "the new state includes these rounds";
}

TEST(StateFetcher, ARoundThatOneDonorHasNotGotComesFromAnother) {
  SharedRun run;
  StateDonor behind(run, 1, {.lag = 3}), good(run, 2);
  Joiner joiner(run);
  joiner.start({behind.info(), good.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  for (FragmentId f = 0; f < SharedRun::fragments; ++f) run.commit(f);
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
}

TEST(StateFetcher, ARoundThatNoDonorHasYetIsAskedForAgain) {
  SharedRun run;
  StateDonor donor(run, 1);
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  donor.lag = 1;
  run.commit(0);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return donor.rounds_asked >= 2; });
  donor.lag = 0;
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
  EXPECT_EQ(joiner.rounds_taken, 1U);
}

/// A donor that is far behind has only an older state than the joiner's, and must not even send it.
TEST(StateFetcher, NeverGoesBack) {
  SharedRun run;
  StateDonor donor(run, 1, {.keeps = 1});
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.run_until([&] { return joiner.fragments_taken == SharedRun::fragments; });
  donor.lag = 6;
  run.commit(0, 6);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return donor.states_given >= SharedRun::fragments + 2; });
  donor.lag = 0;
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, SharedRun::fragments + 1);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
}

// ---- its end ----

TEST(StateFetcher, NothingTouchesItAfterItsEnd) {
  for (const bool paced : {false, true}) {
    SharedRun run;
    const std::uint64_t rate = paced ? 2'000'000 : fast_rate;
    StateDonor a(run, 1, {.bytes_per_second = rate}), b(run, 2, {.bytes_per_second = rate});
    Joiner joiner(run);
    joiner.after_fragment = [&](FragmentId) { joiner.fetcher.reset(); };
    joiner.start({a.info(), b.info()});
    joiner.run_until([&] { return joiner.fetcher == nullptr; });
    joiner.run_out();
    EXPECT_EQ(joiner.fragments_taken, 1U);
  }
  SharedRun run;
  Forwarder dead("127.0.0.1:1");
  dead.refuse();
  Joiner joiner(run);
  joiner.after_failure = [&] { joiner.fetcher.reset(); };
  joiner.start({{1, "eu-1", dead.address()}});
  joiner.run_until([&] { return joiner.fetcher == nullptr; });
  joiner.run_out();
  joiner.renew();
  joiner.start({{1, "eu-1", dead.address()}});
  joiner.fetcher.reset();  // before it starts
  joiner.run_out();
  EXPECT_EQ(joiner.failures, 1U);
}

TEST(StateFetcher, GoesOnWhereItWasStopped) {
  SharedRun run;
  StateDonor donor(run, 1);
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.after_fragment = [&](FragmentId) {
    joiner.fetcher->stop();
    joiner.start({donor.info()});
  };
  joiner.start({donor.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, SharedRun::fragments);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
