#pragma once
// The checks of `isthmus selftest`, by what they look at. Each throws what went wrong, or tells whether it
// is right, with a figure to show.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/experiment.h"

namespace isthmus::app {

inline constexpr std::int64_t selftest_vocab = 256;
inline constexpr std::uint64_t selftest_seed = 1;

struct Finding {
  bool ok = true;
  std::string figure;
};

/// A small Llama, or `architecture`, on the CPU or on GPUs; `overrides` as --set takes them.
[[nodiscard]] Experiment selftest_experiment(std::int64_t ranks, bool gpus,
                                             const std::vector<std::string>& overrides = {});

/// Bytes of known values and the parameters made of them: those that every machine gets.
[[nodiscard]] Finding check_cpu_codecs();
/// The same on a GPU, against the CPU.
[[nodiscard]] Finding check_gpu_codecs(int gpu);

/// |a - b| / |b|
[[nodiscard]] double relative_distance(std::span<const float> a, std::span<const float> b);
/// The gradient of one step in fp32, against the CPU's.
[[nodiscard]] Finding check_gpu_gradient(int gpu, const std::string& architecture);
/// Steps in bf16 with trainer.deterministic, twice.
[[nodiscard]] Finding check_gpu_repeats(int gpu);
/// One parameter that is not finite has to end the step.
[[nodiscard]] Finding check_gpu_reports_nan(int gpu);

}  // namespace isthmus::app
