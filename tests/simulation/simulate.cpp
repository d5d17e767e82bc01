// simulate [--seeds N] [--from SEED] [--failures N]: runs the protocol in simulated worlds, one per core at a
// time. For a seed that fails it prints the command that shows the world's events. simulate --seed SEED:
// prints the events of that world. simulate --twice N: runs N worlds twice each; both must be equal to the
// last event.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.h"

using isthmus::outer_sync::protocol::Tally;
using isthmus::outer_sync::protocol::World;

namespace {

/// At least this many worlds must have seen all of the following. An event that no longer occurs is no longer
/// tested.
constexpr std::uint64_t enough_worlds = 2000;
struct Required {
  const char* what;
  const char* why;
};
constexpr std::array required{
    Required{"ambush", "a fault between two steps that belong together"},
    Required{"carried by a relay", "two members that cannot connect stay in the view"},
    Required{"came back", "a member continues from its own rounds, with results that the others keep for it"},
    Required{"came back too late", "no member keeps the results that it needs"},
    Required{"closed by quorum", "the grace, the lease, and which contributions are in a result"},
    Required{"command carried out", "settings change at all members"},
    Required{"command refused", "no view can carry the change"},
    Required{"contribution committed", "it is in exactly one result"},
    Required{"contribution rejected", "it is in no result and does not come back"},
    Required{"contribution returned", "it is in no result, and its sender is notified"},
    Required{"control connection broken", "members say hello again"},
    Required{"coordinator and its disk lost", "view numbers rise above the forgotten ones"},
    Required{"coordinator crash", "it continues from its disk"},
    Required{"cut", "a member is alone without knowing it"},
    Required{"cut off before it applied a round of its checkpoint", "the others have applied it"},
    Required{"disk full at the coordinator", "a view that was not stored was not sent"},
    Required{"evicted", "the member copies the state from others"},
    Required{"evicted by its own chain", "the member has applied more rounds since it sealed"},
    Required{"evicted for its lag", "with a quorum the others do not wait"},
    Required{"exchange complete", "the partner's chunks arrived, once and in their place"},
    Required{"exchange without a partner", "the number of trainers is odd"},
    Required{"fragment taken from a donor", "newcomers start from it"},
    Required{"had another history", "a member applied rounds that the others have made again"},
    Required{"joined", "a newcomer enters a view"},
    Required{"lane broken", "unacknowledged chunks are repeated"},
    Required{"lane down", "some of a member's fragments advance, others do not"},
    Required{"late contribution", "the round is committed when it arrives"},
    Required{"left out for want of a link", "two members reach the coordinator but not each other"},
    Required{"member crash", "the others continue"},
    Required{"member restart", "the same name is another replica"},
    Required{"member slowed down", "the others wait, or do not"},
    Required{"member stopped and continued", "it relies on a lease that is over"},
    Required{"message lost in a break", "messages on their way are lost"},
    Required{"one-way cut", "a member sends but receives nothing"},
    Required{"operator recovers the run", "all members of the last view are gone"},
    Required{"one severed from all for long", "no member can relay for it, and the others do not wait"},
    Required{"owner's residual forgotten", "its results were dropped"},
    Required{"partition", "several members are cut off together"},
    Required{"reduced by a reducer", "a reducer owns chunks and contributes nothing"},
    Required{"reducer got a round of a checkpoint", "the trainers have it, and the reducer does not"},
    Required{"relay ended", "the two are connected again"},
    Required{"relay named", "a third member reaches both"},
    Required{"round applied", "the run advances"},
    Required{"round of a checkpoint applied", "it was in flight when the checkpoint was written"},
    Required{"run begun anew", "no member with the state is left, and an operator confirms it"},
    Required{"round withdrawn", "it was delivered, and others have made it again"},
    Required{"round under changed settings", "all members apply the same settings"},
    Required{"round followed", "a newcomer keeps up until it enters a view"},
    Required{"side without the coordinator came back", "it had not continued alone"},
    Required{"silent coordinator noticed", "the connection is open, and no message comes"},
    Required{"state of the run lost", "the member that was copying it has neither it nor initial parameters"},
    Required{"suspended", "too few members, or none of the last view"},
    Required{"two severed for long", "the others do not wait for them"},
    Required{"two torn apart", "each closes chunks by quorum that the other never gets"},
    Required{"waited in a pause", "and continued"},
    Required{"view begun by a newcomer first", "it keeps no earlier results"},
};

int tell(std::uint64_t seed) {
  World world(seed, true);
  std::printf("%s\n", world.describe().c_str());
  const auto problem = world.run();
  for (const auto& line : world.story()) std::printf("%s\n", line.c_str());
  std::printf("%s\n", problem.empty() ? "no rule is broken" : problem.c_str());
  return problem.empty() ? 0 : 1;
}

void on_all_cores(const std::function<void()>& work) {
  std::vector<std::jthread> cores;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) cores.emplace_back(work);
}

int run_twice(std::uint64_t seeds) {
  std::atomic<std::uint64_t> begun = 0;
  std::atomic<bool> all_repeat = true;
  on_all_cores([&] {
    for (auto seed = ++begun; seed <= seeds && all_repeat; seed = ++begun) {
      World first(seed, false), second(seed, true);
      static_cast<void>(first.run());
      static_cast<void>(second.run());
      if (first.fingerprint() == second.fingerprint() && first.tally() == second.tally()) continue;
      all_repeat = false;
      std::printf("world %llu differs when it runs again: something depends on more than its seed\n",
                  static_cast<unsigned long long>(seed));
    }
  });
  if (!all_repeat) return 1;
  std::printf("%llu worlds ran twice with the same events\n", static_cast<unsigned long long>(seeds));
  return 0;
}

int missing(const Tally& reached) {
  int missing = 0;
  for (const auto& [what, why] : required) {
    if (reached.contains(what)) continue;
    std::printf("  never happened: '%s' (%s); the simulator no longer tests it\n", what, why);
    ++missing;
  }
  return missing;
}

int simulate(const char* program, std::uint64_t from, std::uint64_t seeds, int max_failures) {
  std::mutex mutex;  // guards all that follows
  Tally reached, worlds;
  int failures = 0;
  std::uint64_t begun = 0;
  on_all_cores([&] {
    std::unique_lock lock(mutex);
    while (begun < seeds && failures < max_failures) {
      const auto seed = from + begun++;
      lock.unlock();
      World world(seed, false);
      const auto problem = world.run();
      lock.lock();
      for (const auto& [what, times] : world.tally()) {
        reached[what] += times;
        ++worlds[what];
      }
      if (problem.empty()) continue;
      ++failures;
      std::printf("%s\n  %s\n  to see it: %s --seed %llu\n", world.describe().c_str(), problem.c_str(),
                  program, static_cast<unsigned long long>(seed));
    }
  });
  std::printf("%llu worlds, %d with a broken rule. Events in them:\n", static_cast<unsigned long long>(begun),
              failures);
  for (const auto& [what, times] : reached) {
    std::printf("  %-40s %10llu times in %llu worlds\n", what.c_str(), static_cast<unsigned long long>(times),
                static_cast<unsigned long long>(worlds[what]));
  }
  if (begun >= enough_worlds) failures += missing(reached);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 2000, from = 1, failures = 5;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const auto value = i + 1 < argc ? std::strtoull(argv[i + 1], nullptr, 10) : 0;
    if (flag == "--seed" && value > 0) return tell(value);
    if (flag == "--twice" && value > 0) return run_twice(value);
    if (flag == "--seeds" && value > 0) {
      seeds = value;
    } else if (flag == "--from" && value > 0) {
      from = value;
    } else if (flag == "--failures" && value > 0) {
      failures = value;
    } else {
      std::fprintf(stderr, "usage: %s [--seeds N] [--from SEED] [--failures N] | --seed SEED | --twice N\n",
                   argv[0]);
      return 2;
    }
  }
  return simulate(argv[0], from, seeds, static_cast<int>(failures));
}
