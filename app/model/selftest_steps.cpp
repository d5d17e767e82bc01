#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/random_batch.h"
#include "isthmus/trainer/replica.h"
#include "model/selftest_checks.h"
#include "run/process/machine.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {
namespace {

/// A replica of a small model with a batch of its own, on the CPU or on a GPU.
class SmallReplica {
 public:
  explicit SmallReplica(const Experiment& experiment, int gpu = 0)
      : hardware_(experiment, gpu),
        batch_(*hardware_.memory, experiment.inner.batch, experiment.data.seq_len, selftest_vocab,
               selftest_seed),
        replica_({{experiment.model, selftest_vocab},
                  experiment.outer.num_fragments,
                  static_cast<std::uint64_t>(experiment.outer.chunk_elements)},
                 replica_options(experiment, hardware_.device, hardware_.precision, -1)) {}

  void step() {
    replica_.forward_backward(batch_.get());
    replica_.inner_step(1e-3);
  }
  std::vector<float> gradient() {
    replica_.forward_backward(batch_.get());
    const auto values = replica_.gradients();
    return {values.begin(), values.end()};
  }
  trainer::Replica& get() { return replica_; }

 private:
  Hardware hardware_;
  data::RandomBatch batch_;
  trainer::Replica replica_;
};

std::vector<std::string> in_bf16() { return {"inner.precision=bf16"}; }

}  // namespace

Experiment selftest_experiment(std::int64_t ranks, bool gpus, const std::vector<std::string>& overrides) {
  const auto text = fmt::format(
      "device: {}\nmodel: {{layers: 2, dim: 64, heads: 4}}\ndata: {{seq_len: 64}}\n"
      "inner: {{batch: {}, precision: fp32, clip: 0.1}}\nreplica: {{ranks: {}}}\n"
      "trainer: {{threads: {}, deterministic: true}}\n",
      gpus ? "cuda" : "cpu", 4 * ranks, ranks, threads_each(ranks));
  return load_experiment(config::Source::from_text(text, "the self-test's config"), overrides, {},
                         Purpose::inference);
}

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double square = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += std::pow(double{a[i]} - b[i], 2);
    scale += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(square / scale);
}

Finding check_gpu_gradient(int gpu, const std::string& architecture) {
  const std::vector<std::string> model = {"model.architecture=" + architecture};
  const auto expected = SmallReplica(selftest_experiment(1, false, model)).gradient();
  const auto got = SmallReplica(selftest_experiment(1, true, model), gpu).gradient();
  const double error = relative_distance(got, expected);
  constexpr double rounding = 1e-4;
  return {error < rounding, fmt::format("relative difference {:.1e}", error)};
}

Finding check_gpu_repeats(int gpu) {
  constexpr int steps = 4;
  const auto train = [gpu] {
    SmallReplica replica(selftest_experiment(1, true, in_bf16()), gpu);
    for (int step = 0; step < steps; ++step) replica.step();
    return replica.get().state().parameters;
  };
  const bool same = train() == train();
  return {same, same ? fmt::format("{} steps, all bits equal", steps) : "bits differ"};
}

Finding check_gpu_reports_nan(int gpu) {
  SmallReplica replica(selftest_experiment(1, true, in_bf16()), gpu);
  // In the middle of the model, so that the NaN must pass through norms, products and the loss.
  const outer_sync::Range middle{replica.get().table().parameters() / 2, 1};
  replica.get().modify(middle).front() = std::numeric_limits<float>::infinity();
  replica.get().modified(middle);
  try {
    replica.step();
  } catch (const Error& error) {
    return {error.kind() == ErrorKind::divergence, error.what()};
  }
  return {false, "a step with an infinite parameter passed"};
}

}  // namespace isthmus::app
