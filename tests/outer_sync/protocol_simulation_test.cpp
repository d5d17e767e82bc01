// Thousands of random runs of the members' state machines: every round of every fragment reaches every member
// once, with the same bytes, whatever the network does, and nothing is kept for longer than it is needed.

#include <gtest/gtest.h>

#include <cstdlib>

#include "simulation.h"

namespace isthmus::outer_sync::protocol {
namespace {

TEST(Simulation, EveryRoundReachesEverybodyOnce) {
  // ISTHMUS_SIMULATION_SEED=n repeats one run, ISTHMUS_SIMULATION_RUNS=n makes as many.
  const char* one = std::getenv("ISTHMUS_SIMULATION_SEED");
  const char* many = std::getenv("ISTHMUS_SIMULATION_RUNS");
  const std::uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 0;
  const std::uint64_t runs = one != nullptr ? 1 : many != nullptr ? std::strtoull(many, nullptr, 10) : 3000;
  Simulation::Totals totals;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    Simulation simulation(seed);
    const auto problem = simulation.run();
    ASSERT_EQ(problem, "") << simulation.describe() << "; ISTHMUS_SIMULATION_SEED=" << seed << " repeats it";
    totals.breaks += simulation.totals().breaks;
    totals.lost += simulation.totals().lost;
    totals.repeated += simulation.totals().repeated;
    totals.duplicates += simulation.totals().duplicates;
  }
  if (one != nullptr) return;
  EXPECT_GT(totals.lost, runs) << "the network is too kind: hardly anything was lost";
  EXPECT_GT(totals.repeated, runs) << "hardly anything was sent again";
  EXPECT_GT(totals.duplicates, runs);
}

TEST(Simulation, OneSeedIsOneRun) {
  for (const std::uint64_t seed : {3, 14, 159}) {
    Simulation a(seed);
    Simulation b(seed);
    EXPECT_EQ(a.run(), b.run());
    EXPECT_EQ(a.totals().lost, b.totals().lost);
    EXPECT_EQ(a.totals().repeated, b.totals().repeated);
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
