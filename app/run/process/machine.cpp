#include "run/process/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "isthmus/base/error.h"
#include "run/process/joined.h"

namespace isthmus::app {

std::string machine_name() {
  std::array<char, 256> name{};
  const bool known = gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return known ? name.data() : "localhost";
}

std::filesystem::path own_program() {
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    data_error(fmt::format("cannot read /proc/self/exe ({}), which names the program to start; mount /proc",
                           error.message()));
  return program;
}

std::string processor_here() {
  // Hypervisors hide instructions, so the model alone does not determine which code runs.
  constexpr std::array vector_prefixes = {"avx", "amx", "fma", "sve", "asimd"};
  std::ifstream in("/proc/cpuinfo");
  std::string model;
  std::set<std::string> vectors;
  for (std::string line; std::getline(in, line) && !line.empty();) {  // the first processor
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const auto value = line.substr(colon + 2);
    if (line.starts_with("model name")) model = value;
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(value);
    for (std::string word; words >> word;) {
      if (std::ranges::any_of(vector_prefixes, [&](const char* prefix) { return word.starts_with(prefix); }))
        vectors.insert(word);
    }
  }
  for (const auto& vector : vectors) model += ' ' + vector;
  return model;
}

std::int64_t threads_each(std::int64_t processes, std::int64_t cores) {
  return std::max<std::int64_t>(1, cores / processes);
}
std::int64_t threads_each(std::int64_t processes) { return threads_each(processes, cores_here()); }
std::int64_t cores_here() { return std::max(1U, std::thread::hardware_concurrency()); }

std::vector<std::string> listed_gpus(const std::string& text) {
  std::vector<std::string> gpus;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    auto name = text.substr(begin, end - begin);
    std::erase(name, ' ');
    if (name.empty() || name == "-1") break;
    gpus.push_back(std::move(name));
    begin = end + 1;
  }
  return gpus;
}

std::vector<std::string> gpus_here() {
  // CUDA's own variable, not a setting of this project.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) return listed_gpus(visible);
  std::vector<std::string> gpus;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", none)) {
    const auto name = entry.path().filename().string();
    constexpr std::string_view prefix = "nvidia";
    const bool is_gpu = name.starts_with(prefix) && name.size() > prefix.size() &&
                        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (is_gpu) gpus.push_back(std::to_string(gpus.size()));  // a container may lack the first ones
  }
  return gpus;
}

std::vector<std::vector<std::string>> assign_gpus(std::span<const std::string> gpus,
                                                  std::span<const std::string> workers,
                                                  std::span<const std::int64_t> ranks) {
  std::vector<std::vector<std::string>> out(workers.size());
  if (gpus.empty()) return out;
  const auto needed = std::accumulate(ranks.begin(), ranks.end(), std::int64_t{0});
  const bool shared = needed > static_cast<std::int64_t>(gpus.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (shared && ranks[i] > 1) {
      throw Error(
          ErrorKind::config,
          fmt::format(
              "replica.ranks of {} puts {} ranks on its machine, which has {} GPUs for the {} ranks of "
              "its {} workers; expected a GPU for each rank: use fewer ranks or replicas, or "
              "list more GPUs in CUDA_VISIBLE_DEVICES",
              workers[i], ranks[i], gpus.size(), needed, workers.size()));
    }
    for (std::int64_t rank = 0; rank < ranks[i]; ++rank) out[i].push_back(gpus[next++ % gpus.size()]);
  }
  return out;
}

std::vector<std::string> gpu_environment(std::span<const std::string> gpus) {
  if (gpus.empty()) return {};
  return {fmt::format("CUDA_VISIBLE_DEVICES={}", joined({gpus.begin(), gpus.end()}, ","))};
}

}  // namespace isthmus::app
