#pragma once
// What a machine has for the processes that share it: cores and GPUs, and who gets which.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace isthmus::app {

/// Cores for each rank of `processes` that share a machine with so many cores; at least one.
[[nodiscard]] std::int64_t threads_each(std::int64_t processes, std::int64_t cores);
/// The same on this machine.
[[nodiscard]] std::int64_t threads_each(std::int64_t processes);
[[nodiscard]] std::int64_t cores_here();

/// GPUs that a process started here would see, each as CUDA_VISIBLE_DEVICES names it: what that variable
/// lists where it is set, else 0, 1, ... for as many as there are.
[[nodiscard]] std::vector<std::string> gpus_here();
/// The GPUs in the text of a CUDA_VISIBLE_DEVICES. As for CUDA, the list ends before the first that is none:
/// "-1", or empty.
[[nodiscard]] std::vector<std::string> listed_gpus(const std::string& text);

/// Which of `gpus` each worker gets: `ranks[i]` of them for worker i, in a row, none of them twice. Where
/// there are fewer than that, workers of one rank share them in turn; a worker of several ranks cannot. Empty
/// where there are no GPUs. Throws Error(config) naming the worker for which there are too few.
[[nodiscard]] std::vector<std::vector<std::string>> assign_gpus(std::span<const std::string> gpus,
                                                                std::span<const std::string> workers,
                                                                std::span<const std::int64_t> ranks);

/// "CUDA_VISIBLE_DEVICES=0,1", or nothing for no GPUs.
[[nodiscard]] std::vector<std::string> gpu_environment(std::span<const std::string> gpus);

}  // namespace isthmus::app
