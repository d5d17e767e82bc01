// simulate [--seeds N] [--from SEED] [--seed SEED]: runs the protocol in simulated worlds. Of a seed that
// fails it prints the command that tells its story; `--seed` tells it.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "world.h"

using isthmus::outer_sync::protocol::Tally;
using isthmus::outer_sync::protocol::World;

namespace {

int tell(std::uint64_t seed) {
  World world(seed, true);
  std::printf("%s\n", world.describe().c_str());
  const auto problem = world.run();
  for (const auto& line : world.story()) std::printf("%s\n", line.c_str());
  std::printf("%s\n", problem.empty() ? "nothing is wrong" : problem.c_str());
  return problem.empty() ? 0 : 1;
}

int simulate(const char* program, std::uint64_t from, std::uint64_t seeds) {
  constexpr int most_failures = 5;
  Tally reached, worlds;
  int failures = 0;
  for (auto seed = from; seed < from + seeds && failures < most_failures; ++seed) {
    World world(seed, false);
    const auto problem = world.run();
    for (const auto& [what, times] : world.tally()) {
      reached[what] += times;
      ++worlds[what];
    }
    if (problem.empty()) continue;
    ++failures;
    std::printf("%s\n  %s\n  to see it: %s --seed %llu\n", world.describe().c_str(), problem.c_str(), program,
                static_cast<unsigned long long>(seed));
  }
  std::printf("%llu worlds, %d with a broken rule. What happened in them:\n",
              static_cast<unsigned long long>(seeds), failures);
  for (const auto& [what, times] : reached)
    std::printf("  %-40s %10llu times in %llu worlds\n", what.c_str(), static_cast<unsigned long long>(times),
                static_cast<unsigned long long>(worlds[what]));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 2000, from = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seed") == 0) return tell(value);
    if (std::strcmp(argv[i], "--seeds") == 0) seeds = value;
    if (std::strcmp(argv[i], "--from") == 0) from = value;
  }
  return simulate(argv[0], from, seeds);
}
