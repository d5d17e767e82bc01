#include "worker/setup/step_probe.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/random_batch.h"
#include "isthmus/trainer/replica.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

double measure_step(const Experiment& experiment, std::int64_t vocab) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  if (experiment.replica.ranks_per_sequence > 1)
    throw Error(
        ErrorKind::config,
        "replica.ranks_per_sequence is " + std::to_string(experiment.replica.ranks_per_sequence) +
            ", and --probe measures one rank, with whole sequences; give --step-time, from a short run");
  trainer::prepare_process(experiment.trainer);
  const Hardware hardware(experiment);
  const data::RandomBatch batch(*hardware.memory, experiment.inner.batch, experiment.data.seq_len, vocab, 1);
  trainer::ReplicaOptions options;
  options.inner = experiment.inner;
  options.device = hardware.device;
  options.precision = hardware.precision;
  options.longest_sequence = experiment.data.seq_len;
  options.trainer = experiment.trainer;
  trainer::Replica replica(
      trainer::ParameterTable({experiment.model, vocab}, experiment.outer.num_fragments,
                              static_cast<std::uint64_t>(experiment.outer.chunk_elements)),
      options);
  constexpr std::size_t least = 3;
  constexpr Seconds long_enough{2};
  std::vector<double> took;
  const auto begin = Clock::now();
  // The first step allocates memory and does not count.
  for (std::size_t step = 0; step <= least || Clock::now() - begin < long_enough; ++step) {
    const auto from = Clock::now();
    static_cast<void>(replica.forward_backward(batch.get()));
    static_cast<void>(replica.inner_step(0));  // waits for the GPU, because it returns the norm
    if (step > 0) took.push_back(Seconds(Clock::now() - from).count());
  }
  std::ranges::nth_element(took, took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2));
  return took[took.size() / 2];
}

}  // namespace isthmus::app
