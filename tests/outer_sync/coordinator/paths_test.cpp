// How the coordinator compares the paths that members report.

#include "isthmus/outer_sync/protocol/coordinator/paths/paths.h"

#include <gmock/gmock.h>

#include <functional>

namespace isthmus::outer_sync::protocol {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// Rates in MB/s, by sender, then receiver; 0: not known. Members are a, b, c, ...
using Rates = std::vector<std::vector<double>>;

std::string name(std::size_t m) { return {static_cast<char>('a' + m)}; }

std::vector<Path> paths_of(const Rates& rates, Time round_trip = 100ms) {
  std::vector<Path> out;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    for (std::size_t j = 0; j < rates.size(); ++j) {
      const auto rate = static_cast<std::uint64_t>(1e6 * rates[i][j]);
      if (i != j) out.push_back({name(i), name(j), round_trip, round_trip, rate});
    }
  }
  return out;
}

/// Slow routes as text, e.g. "a -> b 6", "a -> * 6", "* -> b 6".
std::vector<std::string> slow(const std::vector<Path>& paths, const std::set<Route>& before = {}) {
  std::vector<std::string> out;
  for (const auto& seen : compare_paths(paths, before)) {
    const auto end = [](const std::string& who) { return who.empty() ? "*" : who; };
    char text[64];
    std::snprintf(text, sizeof text, "%s -> %s %.3g", end(seen.route.from).c_str(),
                  end(seen.route.to).c_str(), seen.factor);
    out.emplace_back(text);
  }
  return out;
}
std::vector<std::string> slow(const Rates& rates, const std::set<Route>& before = {}) {
  return slow(paths_of(rates), before);
}

TEST(ComparedPaths, WhereNothingIsFarSlowerNothingIsSaid) {
  EXPECT_THAT(slow(Rates{}), IsEmpty());
  EXPECT_THAT(slow({{0, 12, 10}, {8, 0, 12}, {4, 9, 0}}), IsEmpty());
  EXPECT_THAT(slow({{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}), IsEmpty()) << "no rate is known";
  EXPECT_THAT(slow({{0, 0, 1}, {0, 0, 0}, {0, 0, 0}}), IsEmpty()) << "no other rate to compare with";
}

TEST(ComparedPaths, APathIsSlowAgainstItsSendersAndItsReceiversOthers) {
  EXPECT_THAT(slow({{0, 2, 12}, {12, 0, 12}, {12, 12, 0}}), ElementsAre("a -> b 6"));
  EXPECT_THAT(slow({{0, 2, 8, 8}, {12, 0, 12, 12}, {12, 12, 0, 12}, {12, 12, 12, 0}}),
              ElementsAre("a -> b 4"))
      << "a's other paths are slower than the others' paths to b, so a's own link explains that part";
  EXPECT_THAT(slow({{0, 2, 12}, {12, 0, 12}, {12, 0, 0}}), ElementsAre("* -> b 6"))
      << "no other path to b is known";
  EXPECT_THAT(slow({{0, 2, 0}, {12, 0, 12}, {12, 12, 0}}), ElementsAre("a -> * 6"))
      << "no other path from a is known";
}

TEST(ComparedPaths, PathsThatWereNeverFullCountWithWhatTheyHaveDelivered) {
  auto paths = paths_of({{0, 2, 0}, {2, 0, 0}, {0, 0, 0}});
  EXPECT_THAT(slow(paths), IsEmpty()) << "nothing is known of the others";
  for (auto& path : paths) path.at_least = path.bytes_per_second > 0 ? 3'000'000 : 12'000'000;
  EXPECT_THAT(slow(paths), ElementsAre("a -> b 6", "b -> a 6"));
  for (auto& path : paths) path.at_least = 4'000'000;
  EXPECT_THAT(slow(paths), IsEmpty()) << "the others may be as slow";
  auto link = paths_of({{0, 2, 0}, {12, 0, 12}, {12, 12, 0}});
  link[1].at_least = 3'000'000;  // a -> c
  EXPECT_THAT(slow(link), Not(testing::Contains("a -> * 4"))) << "a may send far faster to c";
}

TEST(RunPathsLimits, CountOnceARouteWasSlowForAWhileAndAreForgottenWithoutFigures) {
  View view;
  for (const auto* member : {"a", "b", "c"}) view.members.push_back({member, 1, "", {}});
  const auto id = [&](std::size_t m) { return id_of(view.members[m]); };
  RunPaths paths;
  paths.begin(view);
  const auto report = [&](std::uint64_t times, std::uint64_t a_to_b) {
    for (std::uint64_t i = 0; i < times; ++i) {
      paths.add(id(0), {{id(1), 9, 9, a_to_b}, {id(2), 9, 9, 12}});
      paths.add(id(1), {{id(0), 9, 9, 12}, {id(2), 9, 9, 12}});
      paths.add(id(2), {{id(0), 9, 9, 12}, {id(1), 9, 9, 12}});
    }
  };
  report(RunPaths::counted_from, 2);
  EXPECT_THAT(paths.limits().slow, IsEmpty()) << "one comparison is still missing";
  report(1, 2);
  EXPECT_THAT(paths.limits().slow, ElementsAre(SlowPath{"a", "b", 2}));
  EXPECT_EQ(paths.limits().uplinks.at("a"), 12U);
  EXPECT_THAT(paths.limits().downlinks, IsEmpty());
  report(RunPaths::forgotten_after - 2, 0);
  EXPECT_THAT(paths.limits().slow, SizeIs(1)) << "a new deal sends nothing over it, so its rate is not known";
  report(3, 0);
  EXPECT_THAT(paths.limits().slow, IsEmpty());
}

TEST(ComparedPaths, AMembersLineIsSaidInPlaceOfItsPaths) {
  EXPECT_THAT(slow({{0, 2, 3}, {12, 0, 12}, {12, 12, 0}}), ElementsAre("a -> * 4"))
      << "compared by its fastest path";
  EXPECT_THAT(slow({{0, 12, 2}, {12, 0, 3}, {12, 12, 0}}), ElementsAre("* -> c 4"));
  EXPECT_THAT(slow({{0, 2, 2}, {2, 0, 12}, {2, 12, 0}}), ElementsAre("a -> * 6", "* -> a 6"));
  EXPECT_THAT(slow({{0, 2, 2, 2}, {2, 0, 2, 2}, {12, 12, 0, 12}, {12, 12, 12, 0}}),
              ElementsAre("a -> * 6", "b -> * 6"));
}

TEST(ComparedPaths, OfTwoMembersNothingIsSaidOfAPath) {
  EXPECT_THAT(slow({{0, 2}, {12, 0}}), ElementsAre("a -> * 6"))
      << "compared with the way back, and reported once";
  const auto seen = compare_paths(paths_of({{0, 2}, {12, 0}}), {});
  EXPECT_EQ(seen.at(0).only, "b") << "with two members, the link cannot be distinguished from the path";
  EXPECT_EQ(seen.at(0).bytes_per_second, 2'000'000U);
}

TEST(ComparedPaths, InAHubASpokesLineIsSeen) {
  EXPECT_THAT(slow({{0, 12, 12, 12}, {2, 0, 0, 0}, {12, 0, 0, 0}, {12, 0, 0, 0}}), ElementsAre("b -> * 6"));
  EXPECT_THAT(slow({{0, 2, 12, 12}, {12, 0, 0, 0}, {12, 0, 0, 0}, {12, 0, 0, 0}}), ElementsAre("* -> b 6"));
}

TEST(ComparedPaths, ASitesOwnNetworkIsNoMeasureOfTheWayToAnother) {
  for (const std::size_t first : {1, 2, 3, 5}) {  // number of members at the first of two sites; six in total
    Rates rates(6, std::vector<double>(6));
    std::vector<Path> paths;
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t j = 0; j < 6; ++j) {
        const bool near = (i < first) == (j < first);
        const Time round_trip = near ? 200us : 80ms;
        if (i != j)
          paths.push_back({name(i), name(j), round_trip, round_trip, near ? 1'000'000'000U : 10'000'000U});
      }
    }
    EXPECT_THAT(slow(paths), IsEmpty()) << first << " at the first site";
  }
  auto paths = paths_of({{0, 2, 12}, {12, 0, 12}, {12, 12, 0}});
  for (auto& path : paths) path.shortest = path.to == "b" ? 50ms : 20ms;
  EXPECT_THAT(slow(paths), ElementsAre("a -> b 6")) << "20 ms are comparable with 50 ms";
  for (auto& path : paths) path.shortest = path.to == "b" ? 50ms : 10ms;
  EXPECT_THAT(slow(paths), IsEmpty()) << "10 ms are less than a quarter and not comparable";
}

TEST(ComparedPaths, ThreeTimesBeginsAndTwoTimesEnds) {
  const auto at = [](double rate, const std::set<Route>& before) {
    return slow({{0, rate, 12}, {12, 0, 12}, {12, 12, 0}}, before);
  };
  const std::set<Route> before{{"a", "b"}};
  EXPECT_THAT(at(4.1, {}), IsEmpty());
  EXPECT_THAT(at(4, {}), ElementsAre("a -> b 3"));
  EXPECT_THAT(at(6, before), ElementsAre("a -> b 2"));
  EXPECT_THAT(at(8, before), ElementsAre("a -> b 1.5"))
      << "the factor must still be returned until it falls below the limit";
  EXPECT_THAT(at(0, before), IsEmpty()) << "an unknown rate must not count as a recovery";
  const Rates line{{0, 2, 2}, {12, 0, 12}, {12, 12, 0}};
  EXPECT_THAT(slow(line, before), ElementsAre("a -> * 6"))
      << "now a's link explains it; that is not a recovery either";
}

TEST(ComparedPaths, MoreMembersThanCanBeComparedAreLeftAlone) {
  std::vector<Path> paths;
  for (std::size_t m = 0; m < max_compared_members; ++m) {
    const auto next = std::to_string((m + 1) % max_compared_members);
    paths.push_back({std::to_string(m), next, 1ms, 1ms, m == 0 ? 1U : 100U});
  }
  EXPECT_FALSE(compare_paths(paths, {}).empty());
  paths.push_back({"one", "more", 1ms, 1ms, 100});
  EXPECT_TRUE(compare_paths(paths, {}).empty());
}

// ---- the coordinator's part ----

class RunPathsTest : public testing::Test {
 protected:
  RunPathsTest() {
    for (const auto* who : {"a", "b", "c"}) {
      view.members.push_back({who, 1, ""});
      ids.push_back(id_of(view.members.back()));
    }
    paths.begin(view);
  }
  void beat(double from_a_to_b) {
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<PathReport> reports;
      for (std::size_t j = 0; j < 3; ++j) {
        const double rate = i == 0 && j == 1 ? from_a_to_b : 12;
        if (i != j) reports.push_back({ids[j], 90'000, 80'000, static_cast<std::uint64_t>(1e6 * rate)});
      }
      paths.add(ids[i], reports);
    }
  }
  std::vector<std::string> lines_of(int beats, double from_a_to_b) {
    for (int i = 0; i < beats; ++i) beat(from_a_to_b);
    return paths.take_lines();
  }

  View view;
  std::vector<ReplicaId> ids;
  RunPaths paths;
};

TEST_F(RunPathsTest, ASlowPathIsSaidOnceAndThenNowAndThenUntilItIsNone) {
  const auto* line =
      "a -> b delivers chunks 6x slower than their other paths: slow path, not a slow machine (16 Mbit/s)";
  EXPECT_THAT(lines_of(1, 2), IsEmpty()) << "paths are compared at a member's next report";
  EXPECT_THAT(lines_of(1, 2), ElementsAre(line));
  EXPECT_THAT(lines_of(RunPaths::say_every - 1, 2), IsEmpty());
  EXPECT_THAT(lines_of(1, 2), ElementsAre(line));
  EXPECT_EQ(paths.comparisons(), RunPaths::say_every + 1);
  EXPECT_THAT(lines_of(3, 5), IsEmpty()) << "2.4 times slower";
  EXPECT_THAT(lines_of(3, 12), ElementsAre("a -> b delivers as fast as the others again"));
  EXPECT_THAT(lines_of(3, 2), ElementsAre(line)) << "reported again";
}

TEST_F(RunPathsTest, TheMatrixIsWhatTheMembersHaveSaid) {
  EXPECT_THAT(paths.all(), IsEmpty());
  beat(2);
  const auto all = paths.all();
  ASSERT_THAT(all, SizeIs(6));
  EXPECT_EQ(all[0].from, "a");
  EXPECT_EQ(all[0].to, "b");
  EXPECT_EQ(all[0].round_trip, 90ms);
  EXPECT_EQ(all[0].shortest, 80ms);
  EXPECT_EQ(all[0].bytes_per_second, 2'000'000U);
  EXPECT_EQ(all[5].from, "c");
  EXPECT_EQ(all[5].to, "b");
}

TEST_F(RunPathsTest, WhatDoesNotFitTheViewIsPassedOver) {
  const std::vector<PathReport> good{{ids[1], 1, 1, 1}, {ids[2], 1, 1, 1}};
  for (const auto& change : std::vector<std::function<void(std::vector<PathReport>&)>>{
           [](auto& r) { r[0].peer = 99; }, [this](auto& r) { r[0].peer = ids[0]; },
           [](auto& r) { r[1].peer = r[0].peer; }, [](auto& r) { r.resize(max_members + 1, r[0]); }}) {
    auto bad = good;
    change(bad);
    paths.add(ids[0], bad);
    EXPECT_THAT(paths.all(), IsEmpty());
  }
  paths.add(99, good);
  EXPECT_THAT(paths.all(), IsEmpty()) << "not a member";
  paths.add(ids[0], good);
  EXPECT_THAT(paths.all(), SizeIs(2));
}

TEST_F(RunPathsTest, AViewWithTheSameMembersGoesOnAndOneWithoutThemForgets) {
  EXPECT_THAT(lines_of(2, 2), SizeIs(1));
  paths.begin(view);
  EXPECT_THAT(paths.all(), IsEmpty());
  EXPECT_THAT(lines_of(3, 2), IsEmpty()) << "it was reported before";
  auto without = view;
  without.members.erase(without.members.begin());
  paths.begin(without);
  paths.begin(view);
  EXPECT_THAT(lines_of(3, 2), SizeIs(1)) << "after a left and came back, it is a different path";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
