// Only the names of checkpoint files: `launch` reads them too, even without libtorch.

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "isthmus/trainer/checkpoint_folder.h"

namespace isthmus::trainer {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view step_prefix = "step_";
constexpr std::size_t step_digits = 12;
constexpr std::string_view file_type = ".ckpt";

std::string file_suffix(std::uint64_t replica) {
  return "_replica_" + std::to_string(replica) + std::string(file_type);
}

/// The step in "step_<12 or more digits><suffix>".
std::optional<std::uint64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(step_prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < step_prefix.size() + step_digits + suffix.size()) return std::nullopt;
  const auto digits = name.substr(step_prefix.size(), name.size() - step_prefix.size() - suffix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return step;
}

}  // namespace

fs::path checkpoint_file(const fs::path& folder, std::uint64_t step, std::uint64_t replica) {
  auto digits = std::to_string(step);
  if (digits.size() < step_digits) digits.insert(0, step_digits - digits.size(), '0');
  return folder / (std::string(step_prefix) + digits + file_suffix(replica));
}

std::optional<std::uint64_t> step_of_checkpoint(const std::string& name, std::uint64_t replica) {
  return step_of(name, file_suffix(replica));
}

std::vector<std::uint64_t> checkpoint_steps(const fs::path& folder, std::uint64_t replica) {
  std::vector<std::uint64_t> steps;
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(folder, no_folder)) {
    if (const auto step = step_of_checkpoint(entry.path().filename().string(), replica))
      steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<std::uint64_t> latest_common_step(
    std::span<const std::vector<std::uint64_t>> steps_of_replicas) {
  if (steps_of_replicas.empty()) return std::nullopt;
  const auto& first = steps_of_replicas.front();
  for (auto step = first.rbegin(); step != first.rend(); ++step) {
    const auto has_it = [&](const auto& steps) {
      return std::binary_search(steps.begin(), steps.end(), *step);
    };
    if (std::all_of(steps_of_replicas.begin(), steps_of_replicas.end(), has_it)) return *step;
  }
  return std::nullopt;
}

}  // namespace isthmus::trainer
