// Compares send and apply points with tables written by hand from Algorithm 2 of arXiv 2501.18512: fragment p
// is sent at steps t with (t - t_p) mod H = 0 and applied where (t - t_p - tau) mod H = 0.

#include "isthmus/outer_sync/core/schedule.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace isthmus::outer_sync {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::uint64_t> offsets(const Schedule& schedule, FragmentId fragments) {
  std::vector<std::uint64_t> all;
  for (FragmentId p = 0; p < fragments; ++p) all.push_back(schedule.offset(p));
  return all;
}

/// Whether a result of the fragment becomes due at this step.
bool applies(const Schedule& schedule, FragmentId p, std::uint64_t step) {
  return step > schedule.warmup_steps() && schedule.rounds_due(p, step) > schedule.rounds_due(p, step - 1);
}

std::vector<FragmentId> sends_at(const Schedule& schedule, FragmentId fragments, std::uint64_t step) {
  std::vector<FragmentId> due;
  for (FragmentId p = 0; p < fragments; ++p) {
    if (schedule.sends(p, step)) due.push_back(p);
  }
  return due;
}

std::vector<FragmentId> applies_at(const Schedule& schedule, FragmentId fragments, std::uint64_t step) {
  std::vector<FragmentId> due;
  for (FragmentId p = 0; p < fragments; ++p) {
    if (applies(schedule, p, step)) due.push_back(p);
  }
  return due;
}

/// One line per step from 1: "3: s1 a0" says that step 3 sends fragment 1 and applies fragment 0.
std::vector<std::string> table(const Schedule& schedule, FragmentId fragments, std::uint64_t last_step) {
  std::vector<std::string> lines;
  for (std::uint64_t step = 1; step <= last_step; ++step) {
    auto line = std::to_string(step) + ":";
    for (const auto p : sends_at(schedule, fragments, step)) line += " s" + std::to_string(p);
    for (const auto p : applies_at(schedule, fragments, step)) line += " a" + std::to_string(p);
    lines.push_back(line);
  }
  return lines;
}

TEST(Schedule, OffsetsAreTheFloorOfPHOverP) {
  EXPECT_THAT(offsets({3, 30, 1, 0}, 3), ElementsAre(0, 10, 20));
  EXPECT_THAT(offsets({3, 10, 1, 0}, 3), ElementsAre(0, 3, 6)) << "P does not divide H: round down";
  EXPECT_THAT(offsets({4, 7, 1, 0}, 4), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(offsets({5, 3, 1, 0}, 5), ElementsAre(0, 0, 1, 1, 2)) << "H < P: several share an offset";
  EXPECT_THAT(offsets({1, 100, 0, 0}, 1), ElementsAre(0));
}

TEST(Schedule, OffsetsOfTheLargestSettingsDoNotOverflow) {
  const FragmentId fragments = 1'000'000'000;
  const Schedule schedule(fragments, 1'000'000'000, 0, 0);
  EXPECT_EQ(schedule.offset(fragments - 1), 999'999'999U);
}

TEST(Schedule, DilocoSendsAndAppliesTheWholeEveryH) {
  EXPECT_THAT(table({1, 3, 0, 0}, 1, 7), ElementsAre("1:", "2:", "3: s0 a0", "4:", "5:", "6: s0 a0", "7:"));
}

TEST(Schedule, StreamingAppliesTauStepsAfterSending) {
  EXPECT_THAT(table({2, 4, 1, 0}, 2, 9),
              ElementsAre("1:", "2: s1", "3: a1", "4: s0", "5: a0", "6: s1", "7: a1", "8: s0", "9: a0"));
}

TEST(Schedule, SeveralFragmentsFlyAtOnceWhenTauIsLong) {
  // H = 6, P = 3: offsets 0, 2, 4; tau = 5: three are in flight at a time.
  EXPECT_THAT(table({3, 6, 5, 0}, 3, 13),
              ElementsAre("1:", "2: s1", "3:", "4: s2", "5:", "6: s0", "7: a1", "8: s1", "9: a2", "10: s2",
                          "11: a0", "12: s0", "13: a1"));
}

TEST(Schedule, FragmentsThatDoNotDivideHKeepTheirPeriod) {
  // H = 5, P = 3: offsets 0, 1, 3.
  EXPECT_THAT(table({3, 5, 2, 0}, 3, 10), ElementsAre("1: s1", "2:", "3: s2 a1", "4:", "5: s0 a2", "6: s1",
                                                      "7: a0", "8: s2 a1", "9:", "10: s0 a2"));
}

TEST(Schedule, FewerStepsThanFragments) {
  // H = 2, P = 3: offsets 0, 0, 1.
  EXPECT_THAT(table({3, 2, 1, 0}, 3, 5),
              ElementsAre("1: s2", "2: s0 s1 a2", "3: s2 a0 a1", "4: s0 s1 a2", "5: s2 a0 a1"));
}

TEST(Schedule, EveryStepIsASyncWhenHIsOne) {
  EXPECT_THAT(table({1, 1, 0, 0}, 1, 3), ElementsAre("1: s0 a0", "2: s0 a0", "3: s0 a0"));
}

TEST(Schedule, WarmUpShiftsEverythingAndHasNoPointsOfItsOwn) {
  const Schedule plain(3, 5, 2, 0);
  const Schedule shifted(3, 5, 2, 4);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    EXPECT_THAT(sends_at(shifted, 3, step), IsEmpty()) << "warm-up step " << step << " must send nothing";
    EXPECT_THAT(applies_at(shifted, 3, step), IsEmpty()) << "warm-up step " << step << " must apply nothing";
  }
  for (std::uint64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(sends_at(shifted, 3, step + 4), sends_at(plain, 3, step))
        << "t = " << step << " after the warm-up";
    EXPECT_EQ(applies_at(shifted, 3, step + 4), applies_at(plain, 3, step))
        << "t = " << step << " after the warm-up";
  }
}

TEST(Schedule, FragmentZeroIsNotSentBeforeTheFirstStep) {
  // (0 - 0) mod H is 0 too, but before the first step there is nothing to send.
  EXPECT_FALSE(Schedule(2, 4, 1, 0).sends(0, 0));
  EXPECT_FALSE(Schedule(2, 4, 1, 8).sends(0, 8));
  EXPECT_FALSE(applies(Schedule(2, 4, 1, 0), 0, 1));
}

TEST(Schedule, EachFragmentIsSentOncePerHAndAppliedBeforeItIsSentAgain) {
  for (FragmentId fragments : {1, 2, 3, 5, 8}) {
    for (std::uint64_t every = 1; every <= 9; ++every) {
      for (std::uint64_t delay = 0; delay < every; ++delay) {
        const Schedule schedule(fragments, every, delay, 3);
        for (FragmentId p = 0; p < fragments; ++p) {
          std::uint64_t sends = 0;
          for (std::uint64_t step = 4; step < 4 + 6 * every; ++step) {
            sends += schedule.sends(p, step) ? 1 : 0;
            EXPECT_EQ(schedule.sends(p, step), applies(schedule, p, step + delay));
          }
          EXPECT_EQ(sends, 6U) << "P " << fragments << ", H " << every << ", fragment " << p;
        }
      }
    }
  }
}

// ---- rounds and steps ----

TEST(Schedule, ARoundBelongsToOneStep) {
  // H = 6, P = 3, warm-up of 4: rounds 1 to 4 belong to the warm-up. Then the offsets are 0, 2, 4, and
  // fragment 0 waits until 6.
  const Schedule schedule(3, 6, 2, 4);
  EXPECT_EQ(schedule.send_step(1, 3), 3U) << "a round in each step of the warm-up";
  EXPECT_THAT((std::vector{schedule.send_step(0, 5), schedule.send_step(1, 5), schedule.send_step(2, 5)}),
              ElementsAre(10, 6, 8));
  EXPECT_EQ(schedule.send_step(1, 7), 18U);
  EXPECT_EQ(schedule.rounds_sent(1, 0), 0U);
  EXPECT_EQ(schedule.rounds_sent(1, 4), 4U);
  EXPECT_EQ(schedule.rounds_sent(1, 5), 4U);
  EXPECT_EQ(schedule.rounds_sent(1, 6), 5U);
  EXPECT_EQ(schedule.rounds_sent(1, 17), 6U);
}

/// Checks that rounds and steps map to each other both ways, and that no fragment is sent before its last
/// result is applied.
void expect_sound(const Schedule& schedule, FragmentId fragments, std::uint64_t steps) {
  for (FragmentId p = 0; p < fragments; ++p) {
    auto round = schedule.warmup_steps();
    std::uint64_t sent = 0;
    for (auto step = schedule.warmup_steps() + 1; step <= steps; ++step) {
      if (schedule.sends(p, step)) {
        ++round;
        EXPECT_EQ(schedule.send_step(p, round), step) << "fragment " << p << ", round " << round;
        EXPECT_EQ(schedule.rounds_due(p, step - 1), round - 1)
            << "fragment " << p << " is sent at " << sent << " and " << step;
        EXPECT_LE(step - std::max(sent, schedule.warmup_steps()), 2 * 20U)
            << "fragment " << p << " is not sent for too long";
        sent = step;
      }
      EXPECT_EQ(schedule.rounds_sent(p, step), round) << "fragment " << p << ", step " << step;
    }
  }
}

TEST(Schedule, RoundsAndStepsAreEachOthersInverse) {
  for (FragmentId fragments : {1, 3, 5}) {
    for (std::uint64_t every = 1; every <= 7; ++every)
      expect_sound({fragments, every, every - 1, 4}, fragments, 60);
  }
}

TEST(Schedule, PhasesChangeHAndStaggerAnew) {
  // H = 2 to step 4, then 6; P = 2: offsets 0 and 1, then 0 and 3.
  EXPECT_THAT(table({2, {{0, 2}, {4, 6}}, 1, 0}, 2, 14),
              ElementsAre("1: s1", "2: s0 a1", "3: s1 a0", "4: s0 a1", "5: a0", "6:", "7: s1", "8: a1",
                          "9:", "10: s0", "11: a0", "12:", "13: s1", "14: a1"));
  const Schedule schedule(2, {{0, 2}, {4, 6}}, 1, 0);
  EXPECT_EQ(schedule.sync_every(4), 2U);
  EXPECT_EQ(schedule.sync_every(5), 6U);
}

TEST(Schedule, ASendThatWouldOvertakeTheLastResultIsLeftOut) {
  // H = 6 to step 9, then 5; P = 3, tau = 4: offsets 0, 2, 4, then 0, 1, 3. Fragment 1 is sent at 8 and
  // applied at 12, so it is not sent at 10 but at 15.
  const Schedule schedule(3, {{0, 6}, {9, 5}}, 4, 0);
  EXPECT_EQ(schedule.send_step(1, 2), 8U);
  EXPECT_EQ(schedule.send_step(1, 3), 15U);
  EXPECT_EQ(schedule.send_step(2, 2), 12U) << "fragment 2 was sent at 4";
}

TEST(Schedule, PhasesAreSound) {
  for (FragmentId fragments : {1, 2, 5}) {
    for (std::uint64_t first = 1; first <= 6; ++first) {
      for (std::uint64_t second = 1; second <= 6; ++second) {
        for (std::uint64_t delay = 0; delay < std::min(first, second); ++delay) {
          for (std::uint64_t change = 1; change <= 12; ++change) {
            SCOPED_TRACE(testing::Message() << "P " << fragments << ", H " << first << " to step " << change
                                            << ", then " << second << ", tau " << delay);
            expect_sound({fragments, {{0, first}, {change, second}, {change + 9, 20}}, delay, 3}, fragments,
                         90);
          }
        }
      }
    }
  }
}

TEST(Schedule, AnIntervalEndsWhereFragmentZeroIsSentOrHChanges) {
  const Schedule schedule(3, std::vector<SyncPhase>{{0, 5}, {12, 10}}, 1, 2);
  EXPECT_EQ(schedule.interval_end(2), 7U);
  EXPECT_EQ(schedule.interval_end(6), 7U);
  EXPECT_EQ(schedule.interval_end(7), 12U);
  EXPECT_EQ(schedule.interval_end(11), 12U);
  EXPECT_EQ(schedule.interval_end(12), 22U);
  EXPECT_EQ(schedule.interval_end(21), 22U);
  EXPECT_EQ(schedule.interval_end(22), 32U);
  for (std::uint64_t step = 2; step < 40; ++step) {
    const auto end = schedule.interval_end(step);
    EXPECT_TRUE(schedule.sends(0, end) || end == 12) << "after step " << step;
  }
}

TEST(Schedule, PhasesThatEndInTheWarmUpHaveNoPart) {
  const Schedule late(2, {{0, 3}, {2, 5}, {4, 6}, {20, 8}}, 1, 4), plain(2, {{0, 6}, {20, 8}}, 1, 4);
  EXPECT_EQ(table(late, 2, 50), table(plain, 2, 50));
}

TEST(StepWith, IsTheFirstAtWhichTheseRoundsAreDue) {
  const Schedule schedule(3, {{0, 10}, {40, 7}}, 2, 5);
  const auto due_at = [&](std::uint64_t step) {
    std::vector<std::uint64_t> due;
    for (FragmentId p = 0; p < 3; ++p) due.push_back(schedule.rounds_due(p, step));
    return due;
  };
  for (std::uint64_t step = 0; step <= 120; step += 4) {
    const auto rounds = due_at(step);
    const auto found = schedule.step_with(rounds, 4);
    EXPECT_LE(found, step);
    EXPECT_EQ(due_at(found), rounds) << "step " << step;
    auto ahead = rounds;
    ++ahead[1];
    const auto later = schedule.step_with(ahead, 4);
    EXPECT_GE(due_at(later)[1], ahead[1]);
    EXPECT_LT(due_at(later - 4)[1], ahead[1]) << "an earlier step is enough, after step " << step;
  }
}

}  // namespace
}  // namespace isthmus::outer_sync
