#pragma once
// The checks of `isthmus selftest`, by subject. Each throws an error or returns whether the result is right,
// with a figure to print.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/experiment/experiment.h"

namespace isthmus::app {

inline constexpr std::int64_t selftest_vocab = 256;
inline constexpr std::uint64_t selftest_seed = 1;

struct Finding {
  bool ok = true;
  std::string figure;
};

/// Settings of a small Llama on the CPU or on GPUs; `overrides` as for --set.
[[nodiscard]] Experiment selftest_experiment(std::int64_t ranks, bool gpus,
                                             const std::vector<std::string>& overrides = {});

/// Compares the codecs' bytes for known values, and the parameters after an outer step with them, with those
/// of all other machines.
[[nodiscard]] Finding check_cpu_codecs();
/// The same on a GPU, compared with the CPU.
[[nodiscard]] Finding check_gpu_codecs(int gpu);

/// |a - b| / |b|
[[nodiscard]] double relative_distance(std::span<const float> a, std::span<const float> b);
/// Compares the gradient of one step in fp32 with the CPU's.
[[nodiscard]] Finding check_gpu_gradient(int gpu, const std::string& architecture);
/// Makes the same steps in bf16 with trainer.deterministic twice and compares the bits.
[[nodiscard]] Finding check_gpu_repeats(int gpu);
/// Checks that a parameter that is not finite makes the step fail.
[[nodiscard]] Finding check_gpu_reports_nan(int gpu);

}  // namespace isthmus::app
