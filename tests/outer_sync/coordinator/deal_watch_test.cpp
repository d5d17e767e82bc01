// When the chunks of a view are dealt again, because links have changed for long.

#include "isthmus/outer_sync/protocol/coordinator/paths/deal_watch.h"

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const FragmentLayout one_fragment_of_64({{0, 64 * 64}}, 64);

class Deals : public ::testing::Test {
 protected:
  Deals() {
    View view;
    view.owners = balanced_owners(one_fragment_of_64, 3);
    watch.begin(view);
  }
  std::optional<std::string> look(Time now) {
    return watch.look(now, ++applied, one_fragment_of_64, sites, rule);
  }
  void slow_down() { rule.slow = {{"a", "b", 10'000}, {"b", "a", 10'000}}; }

  DealWatch watch;
  Round applied = 0;
  std::vector<Site> sites = {{.name = "a", .uplink = 1'000'000},
                             {.name = "b", .uplink = 1'000'000},
                             {.name = "c", .uplink = 1'000'000}};
  TopologyRule rule{.setting = Topology::automatic, .bits_per_element = 4};
};

TEST_F(Deals, NothingIsDealtAgainWhileLinksAreAlike) {
  for (int i = 1; i < 20; ++i) EXPECT_FALSE(look(i * 20s));
}

TEST_F(Deals, OnlyAChangeThatLastsCounts) {
  slow_down();
  EXPECT_FALSE(look(20s));
  EXPECT_FALSE(look(40s));
  rule.slow.clear();
  EXPECT_FALSE(look(60s));
  slow_down();
  EXPECT_FALSE(look(80s));
  EXPECT_FALSE(look(100s));
  const auto why = look(120s);
  ASSERT_TRUE(why);
  EXPECT_THAT(*why, HasSubstr("links have changed: an exchange takes "));
  for (int i = 0; i < 29; ++i) EXPECT_FALSE(look(140s + i * 20s)) << "not twice within ten minutes";
  EXPECT_TRUE(look(720s)) << "the caller has kept the owners";
  for (int i = 0; i < 59; ++i) EXPECT_FALSE(look(740s + i * 20s)) << "the next pause is twice as long";
  EXPECT_TRUE(look(1920s));
}

TEST_F(Deals, MeasurementsWithoutNewRoundsAreTheSameOnes) {
  slow_down();
  for (int i = 1; i < 20; ++i) EXPECT_FALSE(watch.look(i * 20s, 7, one_fragment_of_64, sites, rule));
  EXPECT_FALSE(watch.look(400s, 8, one_fragment_of_64, sites, rule));
  EXPECT_TRUE(watch.look(420s, 9, one_fragment_of_64, sites, rule));
}

TEST_F(Deals, UnknownLinksAndTwoMembersChangeNothing) {
  slow_down();
  sites[2].uplink = 0;
  for (int i = 1; i < 10; ++i) EXPECT_FALSE(look(i * 20s));
  sites.pop_back();
  for (int i = 10; i < 20; ++i) EXPECT_FALSE(look(i * 20s));
}

// ---- by the coordinator ----

class DealtAgain : public ::testing::Test {
 protected:
  static CoordinatorOptions options(bool owners_keep_nothing) {
    auto options = CoordinatorHarness::default_options(3);
    options.owners_keep_nothing = owners_keep_nothing;
    options.topology.bits_per_element = 4;
    return options;
  }
  /// Heartbeats of all, one each second, with these rates of the paths between a and b; all other paths have
  /// 100 MB/s.
  static void beat(CoordinatorHarness& run, int times, std::uint64_t between_a_and_b) {
    std::vector<ReplicaId> ids;
    for (const auto& [name, member] : run.coordinator.members()) ids.push_back(id_of(member.hello.member));
    for (int i = 0; i < times && run.last<Seal>(1)->view == run.last<NewView>(1)->view.number; ++i) {
      run.tick(run.now + 1s);
      for (ConnectionId m = 1; m <= 3; ++m) {
        Heartbeat beat;
        beat.number = static_cast<std::uint64_t>(run.now.count());
        beat.view = run.last<NewView>(m)->view.number;
        const auto round = static_cast<Round>(run.now / 1s);
        beat.fragments = {{round, round}, {round, round}};
        for (std::size_t peer = 0; peer < 3; ++peer) {
          if (peer + 1 == m) continue;
          const bool is_slow = peer < 2 && m <= 2;
          beat.paths.push_back({ids[peer], 50'000, 50'000, is_slow ? between_a_and_b : 100'000'000});
        }
        run.receive(m, beat);
      }
    }
  }
};

TEST_F(DealtAgain, WhereAPathIsSlowForAMinute) {
  CoordinatorHarness run(options(true));
  run.run_all({"a", "b", "c"});
  beat(run, 100, 90'000'000);
  EXPECT_EQ(run.last<Seal>(1)->view, 1U) << "all paths are alike";
  beat(run, 30, 2'000'000);
  EXPECT_THAT(run.said, Contains(HasSubstr("slow path, not a slow machine")));
  EXPECT_EQ(run.last<Seal>(1)->view, 1U) << "it may pass";
  beat(run, 90, 2'000'000);
  EXPECT_THAT(run.said, Contains(HasSubstr("links have changed: an exchange takes ")));
  ASSERT_EQ(run.last<Seal>(1)->view, 2U);
  run.seal_all({1, 2, 3});
  const auto owners = run.last<NewView>(1)->view.owners;
  EXPECT_GE(std::ranges::count(owners, 2), 5) << "c, with which both have a fast path, owns nearly all";
  beat(run, 2000, 2'000'000);
  EXPECT_EQ(run.last<Seal>(1)->view, 2U) << "once is enough";
}

TEST_F(DealtAgain, NotWhereOwnersKeepWhatTheirCodecLost) {
  CoordinatorHarness run(options(false));
  run.run_all({"a", "b", "c"});
  beat(run, 200, 2'000'000);
  EXPECT_THAT(run.said, Not(Contains(HasSubstr("links have changed"))));
  EXPECT_EQ(run.last<Seal>(1)->view, 1U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
