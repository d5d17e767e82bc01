// A bit flips in the memory of a running worker: the others notice it, and the worker copies the state from
// them.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "elastic_run.h"
#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "process_memory.h"

namespace isthmus {
namespace {

/// 32 of the global parameters in the newest checkpoint; empty if no checkpoint can be read yet.
std::vector<float> newest_parameters(const std::filesystem::path& folder) {
  const auto steps = trainer::checkpoint_steps(folder, 0);
  if (steps.empty()) return {};
  try {
    const auto checkpoint = trainer::read_checkpoint(trainer::checkpoint_file(folder, steps.back(), 0));
    BoundedReader reader(checkpoint.section(trainer::agreed_section));
    std::uint64_t step = 0;
    std::vector<outer_sync::protocol::FragmentState> fragments;
    std::vector<float> global;
    reader(step, fragments, global);
    constexpr std::ptrdiff_t place = 200, count = 32;
    return {global.begin() + place, global.begin() + place + count};
  } catch (const Error&) {  // the checkpoint was superseded meanwhile
    return {};
  }
}

/// Repeatedly suspends the worker and flips a bit of its global parameters wherever its memory holds them,
/// until `noticed`. The newest checkpoint shows what to look for; on a busy disk it can be several rounds
/// old, so nearby values count as well. Each try takes a different value.
template <class Noticed>
void flip_parameters(const ElasticRun& run, const std::string& worker, Noticed noticed) {
  constexpr off_t high_byte = 2;  // of the mantissa; the next round may round the last bits away
  const auto pid = run.site().process("--name " + worker);
  const auto folder = run.site().run() / worker / "checkpoints";
  std::size_t tries = 0, flips = 0;
  auto next = std::chrono::steady_clock::now();
  const auto done = [&] {
    if (noticed()) return true;
    if (std::chrono::steady_clock::now() < next) return false;
    kill(pid, SIGSTOP);
    const auto values = newest_parameters(folder);
    const ProcessMemory memory(pid);
    for (const auto place : values.empty() ? std::vector<off_t>() : memory.places_near(values)) {
      memory.flip(place + static_cast<off_t>(tries % values.size() * sizeof(float)) + high_byte);
      ++flips;
    }
    ++tries;
    kill(pid, SIGCONT);
    next = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    return false;
  };
  ASSERT_TRUE(eventually(done)) << "not noticed after " << flips << " flips in " << tries << " tries"
                                << run.logs();
}

const Words settings = {"run.steps=100000",      "run.checkpoint_every=40", "run.eval_every=0",
                        "outer.num_fragments=2", "outer.sync_every=12",     "outer.warmup_steps=0"};

Words with(const Words& more) {
  auto all = settings;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(FlippedBit, OfThreeTheOddOneTakesTheStateAnew) {
  ElasticRun run(with({"replicas=3"}));
  run.start({"eu-1", "eu-2", "us-1"});
  ASSERT_TRUE(run.reaches("us-1", 130)) << run.logs();
  flip_parameters(run, "eu-2", [&] {
    return run.logs().find("eu-2 must copy the state from others: its global parameters differ") !=
           std::string::npos;
  });
  ASSERT_TRUE(run.joined_at("eu-2")) << run.logs();
  run.stop();
  EXPECT_EQ(run.hash().size(), 64U) << "the hash must be equal on all" << run.logs();
}

TEST(LongFlippedBit, OfTwoNobodyCanTellAndTheRunEnds) {
  ElasticRun run(with({"replicas=2"}));
  run.start({"eu-1", "us-1"});
  ASSERT_TRUE(run.reaches("us-1", 130)) << run.logs();
  flip_parameters(run, "us-1", [&] {
    return run.logs().find("the global parameters of eu-1, us-1 differ after round") != std::string::npos;
  });
  for (const auto* worker : {"eu-1", "us-1"}) EXPECT_NE(run.end_of(worker).status, 0) << run.logs();
}

}  // namespace
}  // namespace isthmus
