#pragma once
// A machine's name, the program that runs here, its cores and GPUs, and their distribution to the processes
// that share it.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace isthmus::app {

/// The host name of this machine; "localhost" if it has none.
[[nodiscard]] std::string machine_name();

/// The program file of this process. Throws Error(data) if there is no /proc.
[[nodiscard]] std::filesystem::path own_program();

/// Cores for each of `processes` ranks that share a machine with `cores` cores; at least one.
[[nodiscard]] std::int64_t threads_each(std::int64_t processes, std::int64_t cores);
/// The same on this machine.
[[nodiscard]] std::int64_t threads_each(std::int64_t processes);
[[nodiscard]] std::int64_t cores_here();

/// Model of the processor and its vector instructions, as the kernel reports them; empty if it does not.
[[nodiscard]] std::string processor_here();

/// GPUs that a process started here would see, as named in CUDA_VISIBLE_DEVICES: the list of that variable if
/// it is set, otherwise 0, 1, ... for the GPUs present.
[[nodiscard]] std::vector<std::string> gpus_here();
/// The GPUs listed in a CUDA_VISIBLE_DEVICES. As for CUDA, the list ends before the first invalid entry:
/// "-1", or empty.
[[nodiscard]] std::vector<std::string> listed_gpus(const std::string& text);

/// The GPUs of each worker: `ranks[i]` consecutive ones for worker i, without overlap. If there are too few,
/// workers of one rank share them in turn; workers of several ranks cannot. Empty without GPUs. Throws
/// Error(config) naming the worker that gets too few.
[[nodiscard]] std::vector<std::vector<std::string>> assign_gpus(std::span<const std::string> gpus,
                                                                std::span<const std::string> workers,
                                                                std::span<const std::int64_t> ranks);

/// "CUDA_VISIBLE_DEVICES=0,1", or empty without GPUs.
[[nodiscard]] std::vector<std::string> gpu_environment(std::span<const std::string> gpus);

}  // namespace isthmus::app
