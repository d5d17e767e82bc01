#include "isthmus/base/samples.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace isthmus {
namespace {

using Members = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // pairs of track and sequence

Members members_of(const SampleSet& set) {
  Members out;
  for (const auto& range : set.ranges()) {
    for (auto k = range.begin; k < range.end; ++k) out.insert({range.track, k});
  }
  return out;
}

std::vector<SampleRange> any_ranges() {
  return *rc::gen::container<std::vector<SampleRange>>(rc::gen::exec([] {
    const auto begin = *rc::gen::inRange<std::uint64_t>(0, 40);
    return SampleRange{*rc::gen::inRange<std::uint64_t>(0, 3), begin,
                       begin + *rc::gen::inRange<std::uint64_t>(0, 12)};
  }));
}

RC_GTEST_PROP(Samples, AreWhatWasPutInAndWhatWasThereTwiceIsNamed, ()) {
  SampleSet set, twice;
  Members expected, expected_twice;
  for (const auto& range : any_ranges()) {
    set.add(range, &twice);
    for (auto k = range.begin; k < range.end; ++k) {
      if (!expected.insert({range.track, k}).second) expected_twice.insert({range.track, k});
    }
    RC_ASSERT(set.sound());
  }
  RC_ASSERT(members_of(set) == expected);
  RC_ASSERT(members_of(twice) == expected_twice);
  RC_ASSERT(set.size() == expected.size());
}

/// Adds ranges all at once or one by one.
RC_GTEST_PROP(Samples, ArePutInAllAtOnceAsOneByOne, ()) {
  SampleSet one_by_one(any_ranges()), twice;
  auto at_once = one_by_one;
  SampleSet twice_at_once;
  const auto more = any_ranges();
  for (const auto& range : more) one_by_one.add(range, &twice);
  at_once.add(more, &twice_at_once);
  RC_ASSERT(at_once == one_by_one);
  RC_ASSERT(twice_at_once == twice);
  RC_ASSERT(at_once.sound());
}

TEST(Samples, ManyInterleavedOnesAreAddedInLinearTime) {
  constexpr std::uint64_t count = 1'000'000;  // one by one this would take minutes
  std::vector<SampleRange> even, odd;
  for (std::uint64_t k = 0; k < count; ++k) {
    even.push_back({0, 4 * k, 4 * k + 1});
    odd.push_back({0, 4 * k + 2, 4 * k + 3});
  }
  SampleSet set(even);
  set.add(odd);
  EXPECT_EQ(set.ranges().size(), 2 * count);
  EXPECT_EQ(set.size(), 2 * count);
}

TEST(Samples, ARangeFromElsewhereIsHeldToWhatARunCanHave) {
  EXPECT_TRUE((SampleRange{2047, 0, SampleRange::max_sequences}.sound()));
  EXPECT_FALSE((SampleRange{2048, 0, 1}.sound()));
  EXPECT_FALSE((SampleRange{0, 0, SampleRange::max_sequences + 1}.sound()));
  EXPECT_FALSE((SampleRange{0, 5, 5}.sound()));
  EXPECT_FALSE(SampleSet({{0, 0, std::uint64_t{1} << 62}}).sound());
}

RC_GTEST_PROP(Samples, AreTakenOutAndComparedAsSetsAre, ()) {
  const SampleSet a(any_ranges()), b(any_ranges());
  Members left, both;
  std::ranges::set_difference(members_of(a), members_of(b), std::inserter(left, left.end()));
  std::ranges::set_intersection(members_of(a), members_of(b), std::inserter(both, both.end()));
  RC_ASSERT(without(a, b).sound());
  RC_ASSERT(a.common(b).sound());
  RC_ASSERT(members_of(without(a, b)) == left);
  RC_ASSERT(members_of(a.common(b)) == both);
  // Sets have one form only: equal sets are equal values.
  auto again = without(a, b);
  again.add(both.empty() ? SampleSet() : a.common(b));
  RC_ASSERT(again == a);
}

TEST(Samples, MissingAreTheGapsAndTheRest) {
  const SampleSet set({{1, 10, 20}, {1, 0, 5}, {2, 0, 100}});
  const std::vector<SampleRange> expected = {{1, 5, 10}, {1, 20, 30}};
  EXPECT_EQ(set.missing(1, 30), expected);
  EXPECT_EQ(set.missing(7, 2), (std::vector<SampleRange>{{7, 0, 2}}));
}

TEST(Samples, TheFirstRangesCanBeTakenOut) {
  SampleSet set({{0, 0, 1}, {0, 5, 6}, {4, 0, 9}});
  EXPECT_EQ(set.take_front(2), SampleSet({{0, 0, 1}, {0, 5, 6}}));
  EXPECT_EQ(set, SampleSet({{4, 0, 9}}));
  EXPECT_EQ(set.take_front(2).size(), 9U);
  EXPECT_TRUE(set.empty());
}

}  // namespace
}  // namespace isthmus
