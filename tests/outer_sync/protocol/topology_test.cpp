// Chunk owners: shares that equalise the time each uplink needs, the choice between topologies, and the
// reason given for it.

#include "isthmus/outer_sync/protocol/topology.h"

#include <gmock/gmock.h>

#include <numeric>

#include "isthmus/base/random.h"
#include "net/rate/uplink_meter.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

const FragmentLayout layout({{0, 40 * 64}, {40 * 64, 60 * 64}}, 64);  // a hundred chunks
constexpr auto trainer = MemberKind::trainer, reducer = MemberKind::reducer;

std::vector<Site> trainers(const std::vector<std::uint64_t>& uplinks) {
  std::vector<Site> sites;
  for (const auto uplink : uplinks)
    sites.push_back({std::string(1, static_cast<char>('a' + sites.size())), trainer, uplink});
  return sites;
}
std::vector<Site> with_reducer(std::vector<Site> sites, std::uint64_t uplink) {
  sites.push_back({"r", reducer, uplink});
  return sites;
}
Deal deal(const std::vector<Site>& sites, Topology setting) {
  return deal_chunks(layout, sites, {setting, 8.0});
}

// ---- shares ----

TEST(Shares, EqualUplinksShareEqually) {
  EXPECT_THAT(balanced_shares(trainers({5, 5, 5})), Each(DoubleNear(1.0 / 3, 1e-9)));
  EXPECT_THAT(balanced_shares(trainers({5})), ElementsAre(1.0));
}

TEST(Shares, TwoTrainersSendTheSameWhateverTheyOwn) {
  EXPECT_THAT(balanced_shares(trainers({1, 100})), Each(DoubleNear(0.5, 1e-9)));
}

TEST(Shares, ASlowLineThatIsBusyWithItsOwnContributionsOwnsNothing) {
  // d needs time 1 for its own contributions. a, b and c send 1 + 2 s each at rate 3: with s = 1 / 3 they are
  // done after 5 / 9 < 1.
  const auto shares = balanced_shares(trainers({3, 3, 3, 1}));
  EXPECT_THAT(shares, ElementsAre(DoubleNear(1.0 / 3, 1e-6), DoubleNear(1.0 / 3, 1e-6),
                                  DoubleNear(1.0 / 3, 1e-6), DoubleNear(0, 1e-6)));
}

TEST(Shares, WhatIsRaisedEndsAtOneHeight) {
  // Each of four members sends 1 + 2 s; the shares must keep all uplinks busy for the same time.
  const auto sites = trainers({20, 20, 25, 30});
  const auto shares = balanced_shares(sites);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-9);
  for (std::size_t m = 0; m < sites.size(); ++m)
    EXPECT_NEAR((1 + 2 * shares[m]) / static_cast<double>(sites[m].uplink), (1 + 2 * shares[0]) / 20.0, 1e-9)
        << m;
}

TEST(Shares, AFastReducerOwnsAlmostAll) {
  // Trainers send 1 + 2 s each at rate 1; the reducer sends 3 s at rate 1000.
  const auto shares = balanced_shares(with_reducer(trainers({1, 1, 1}), 1000));
  EXPECT_NEAR(shares[3], 1, 1e-6);
}

/// Checks that moving a little of any share to another member takes no less time.
TEST(Shares, NoOthersAreFaster) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<Site> sites;
    const auto members = 2 + random_bits(seed, 1, 0) % 6;
    for (std::uint64_t m = 0; m < members; ++m) {
      const auto kind = m > 0 && random_bits(seed, 2, m) % 4 == 0 ? reducer : trainer;
      sites.push_back({"m", kind, 1 + random_bits(seed, 3, m) % 100});
    }
    const auto time_of = [&](const std::vector<double>& shares) {
      double time = 0;
      for (std::size_t m = 0; m < sites.size(); ++m) {
        const auto others = static_cast<double>(members) - 1;
        const auto sent = sites[m].kind == trainer ? 1 + shares[m] * (others - 1) : shares[m] * others;
        time = std::max(time, sent / static_cast<double>(sites[m].uplink));
      }
      return time;
    };
    const auto best = balanced_shares(sites);
    EXPECT_NEAR(std::accumulate(best.begin(), best.end(), 0.0), 1, 1e-9);
    for (std::size_t from = 0; from < members; ++from) {
      for (std::size_t to = 0; to < members; ++to) {
        auto other = best;
        const auto moved = std::min(0.01, other[from]);
        other[from] -= moved;
        other[to] += moved;
        EXPECT_GE(time_of(other), time_of(best) * (1 - 1e-9)) << "seed " << seed;
      }
    }
  }
}

/// d is far from a: 1 byte per second each way; all other limits are a hundred times that.
const std::vector<SlowPath> between_a_and_d = {{"a", "d", 1}, {"d", "a", 1}};

TEST(Shares, ASlowPathIsAvoided) {
  // The path from a to d carries s_a + s_d; b and c carry nothing over it.
  const auto shares = balanced_shares(trainers({100, 100, 100, 100}), between_a_and_d);
  EXPECT_NEAR(shares[0] + shares[3], 0.02, 0.006) << "2 % of an exchange takes as long there as the uplinks";
  EXPECT_NEAR(shares[1], 0.49, 0.01);
  EXPECT_NEAR(shares[2], 0.49, 0.01);
}

TEST(Shares, ASlowDownlinkOwnsLittle) {
  // An owner receives 1 - s results and 3 s contributions.
  auto sites = trainers({100, 100, 100, 100});
  sites[0].downlink = 20;
  EXPECT_NEAR(balanced_shares(sites)[0], 0, 0.01);
}

/// Checks the shares against small moves of any share to another member, with random slow paths.
TEST(Shares, NoOthersAreFasterWithSlowPaths) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::vector<std::uint64_t> uplinks;
    const auto members = 3 + random_bits(seed, 1, 0) % 5;
    for (std::uint64_t m = 0; m < members; ++m) uplinks.push_back(20 + random_bits(seed, 2, m) % 80);
    const auto sites = trainers(uplinks);
    std::vector<SlowPath> slow;
    for (std::uint64_t k = 0; k < 1 + random_bits(seed, 3, 0) % 3; ++k) {
      const auto from = random_bits(seed, 4, k) % members,
                 to = (from + 1 + random_bits(seed, 5, k) % (members - 1)) % members;
      slow.push_back({sites[from].name, sites[to].name, 1 + random_bits(seed, 6, k) % 20});
    }
    const auto time_of = [&](const std::vector<double>& shares) {
      double time = 0;
      for (std::size_t m = 0; m < members; ++m)
        time = std::max(time,
                        (1 + shares[m] * static_cast<double>(members - 2)) / static_cast<double>(uplinks[m]));
      for (const auto& path : slow) {
        const auto from = static_cast<std::size_t>(path.from[0] - 'a'),
                   to = static_cast<std::size_t>(path.to[0] - 'a');
        time = std::max(time, (shares[from] + shares[to]) / static_cast<double>(path.bytes_per_second));
      }
      return time;
    };
    const auto best = balanced_shares(sites, slow);
    EXPECT_NEAR(std::accumulate(best.begin(), best.end(), 0.0), 1, 1e-9);
    for (std::size_t from = 0; from < members; ++from) {
      for (std::size_t to = 0; to < members; ++to) {
        auto other = best;
        const auto moved = std::min(0.05, other[from]);
        other[from] -= moved;
        other[to] += moved;
        EXPECT_GE(time_of(other), time_of(best) * 0.97) << "seed " << seed;
      }
    }
  }
}

// ---- chunks ----

TEST(OwnersByShare, FollowTheSharesWithinAChunkInEveryFragment) {
  const std::vector<double> shares = {0.1, 0.65, 0, 0.25};
  const auto owners = owners_by_share(layout, shares);
  ASSERT_THAT(owners, SizeIs(layout.chunk_count()));
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    const auto chunks = layout.chunks_of(p);
    for (MemberIndex m = 0; m < shares.size(); ++m) {
      const auto dealt = std::count(owners.begin() + chunks.first, owners.begin() + chunks.last, m);
      EXPECT_NEAR(static_cast<double>(dealt), shares[m] * static_cast<double>(chunks.size()), 2)
          << "member " << m << ", fragment " << p;
    }
  }
  EXPECT_EQ(owners, owners_by_share(layout, shares)) << "the owners must be the same every time";
}

// ---- the choice ----

TEST(DealChunks, AMeshIsDealtAsEver) {
  for (const auto uplink : {std::uint64_t{0}, std::uint64_t{1000}}) {
    EXPECT_EQ(deal(trainers({uplink, uplink, uplink}), Topology::mesh).owners, balanced_owners(layout, 3));
    EXPECT_EQ(deal(trainers({uplink, uplink, uplink}), Topology::automatic).owners,
              balanced_owners(layout, 3));
  }
}

TEST(DealChunks, AHubIsTheReducerWithTheLargestUplinkElseTheTrainerThatHasIt) {
  EXPECT_THAT(deal(trainers({5, 9, 7}), Topology::hub).owners, Each(1));
  EXPECT_THAT(deal(trainers({0, 0, 0}), Topology::hub).owners, Each(0))
      << "otherwise the first trainer by name";
  auto sites = with_reducer(trainers({5, 9, 7}), 2);
  EXPECT_THAT(deal(sites, Topology::hub).owners, Each(3));
  sites.push_back({"s", reducer, 3});
  EXPECT_THAT(deal(sites, Topology::hub).owners, Each(4));
}

TEST(DealChunks, WithUnknownUplinksAutoTakesAReducerIfThereIsOne) {
  const auto alike = deal(trainers({0, 5, 5}), Topology::automatic);
  EXPECT_EQ(alike.owners, balanced_owners(layout, 3));
  EXPECT_THAT(alike.reason, AllOf(StartsWith("mesh"), HasSubstr("not all uplinks are known")));
  const auto with = deal(with_reducer(trainers({0, 5, 5}), 0), Topology::automatic);
  EXPECT_THAT(with.owners, Each(3));
  EXPECT_THAT(with.reason, AllOf(StartsWith("hub, r owns all"), HasSubstr("not all uplinks are known")));
  EXPECT_EQ(deal(trainers({0, 5, 5}), Topology::weighted).owners, balanced_owners(layout, 3));
}

TEST(DealChunks, AutoStaysWithTheMeshUnlessAnotherIsATenthShorter) {
  EXPECT_THAT(deal(trainers({100, 100, 100, 100}), Topology::automatic).reason, StartsWith("mesh"));
  EXPECT_THAT(deal(trainers({95, 100, 100, 100}), Topology::automatic).reason, StartsWith("mesh"));
  EXPECT_THAT(deal(trainers({40, 100, 100, 100}), Topology::automatic).reason, StartsWith("weighted"));
  EXPECT_THAT(deal(with_reducer(trainers({10, 10, 10, 10}), 1000), Topology::automatic).owners, Each(4))
      << "a fast link without contributions of its own takes all chunks";
}

TEST(DealChunks, TheReasonHasTheFigures) {
  // 6400 elements at 8 bits. In a mesh, the slowest link sends 1 + (M - 2) / M of them at 64 bytes per
  // second.
  const auto text = deal(trainers({64, 6400, 6400, 6400}), Topology::automatic).reason;
  EXPECT_THAT(text, AllOf(StartsWith("weighted, shares follow the uplinks: 100.00 s per exchange"),
                          HasSubstr("mesh 150.00 s"), HasSubstr("hub 100.00 s")));
  EXPECT_LE(("chunks: " + text).size(), 100U);
}

TEST(DealChunks, ASlowPathIsLeftOut) {
  const TopologyRule rule{
      .setting = Topology::automatic, .bits_per_element = 8, .slow = {{"a", "b", 1}, {"b", "a", 1}}};
  const auto sites = trainers({100, 100, 100});
  const auto dealt = deal_chunks(layout, sites, rule);
  const auto mesh = exchange_seconds(layout, sites, balanced_owners(layout, 3), 8, rule.slow);
  EXPECT_THAT(dealt.reason, HasSubstr("shares follow the links and paths"));
  EXPECT_LT(dealt.seconds, mesh / 20) << "in a mesh two thirds of an exchange pass between a and b";
  EXPECT_NEAR(dealt.seconds, exchange_seconds(layout, sites, dealt.owners, 8, rule.slow), 1e-9);
  auto hub = rule;
  hub.setting = Topology::hub;
  EXPECT_THAT(deal_chunks(layout, sites, hub).owners, Each(2)) << "c is the hub that uses no slow path";
  auto strangers = rule;
  strangers.slow = {{"x", "y", 1}};
  EXPECT_THAT(deal_chunks(layout, sites, strangers).reason, StartsWith("mesh"));
}

TEST(DealChunks, OneAloneOwnsAll) {
  EXPECT_THAT(deal(trainers({0}), Topology::automatic).owners, Each(0));
  EXPECT_THAT(deal(trainers({7}), Topology::weighted).owners, Each(0));
}

// ---- the uplink ----

using namespace std::chrono_literals;

/// Samples `ticks` ticks of 50 ms at `rate` bytes per second.
void feed(transport::UplinkMeter& meter, std::chrono::milliseconds& now, std::uint64_t& written, int ticks,
          std::uint64_t rate, bool full) {
  for (int i = 0; i < ticks; ++i) {
    now += 50ms;
    written += rate / 20;
    meter.sample(now, written, full);
  }
}

TEST(UplinkMeter, KnowsNothingUntilTheLineWasFullForASecond) {
  transport::UplinkMeter meter;
  std::chrono::milliseconds now{};
  std::uint64_t written = 0;
  feed(meter, now, written, 200, 1'000'000, false);
  EXPECT_EQ(meter.bytes_per_second(), 0U) << "a link that is not full does not show its capacity";
  feed(meter, now, written, 15, 2'000'000, true);
  EXPECT_EQ(meter.bytes_per_second(), 0U) << "the link was full for less than a second";
  feed(meter, now, written, 10, 2'000'000, true);
  EXPECT_EQ(meter.bytes_per_second(), 2'000'000U);
}

TEST(UplinkMeter, WhatFillsTheSystemsBuffersDoesNotCount) {
  transport::UplinkMeter meter;
  std::chrono::milliseconds now{};
  std::uint64_t written = 0;
  for (int burst = 0; burst < 10; ++burst) {
    feed(meter, now, written, 5, 0, false);
    feed(meter, now, written, 1, 100'000'000, true);
    feed(meter, now, written, 10, 1'000'000, true);
  }
  EXPECT_EQ(meter.bytes_per_second(), 1'000'000U);
}

TEST(UplinkMeter, TheNewestSecondCounts) {
  transport::UplinkMeter meter;
  std::chrono::milliseconds now{};
  std::uint64_t written = 0;
  feed(meter, now, written, 30, 1'000'000, true);
  feed(meter, now, written, 60, 3'000'000, true);
  EXPECT_EQ(meter.bytes_per_second(), 3'000'000U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
