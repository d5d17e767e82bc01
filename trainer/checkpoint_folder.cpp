#include "isthmus/trainer/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/trainer/checkpoint.h"

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

std::vector<std::uint64_t> checkpoint_steps(const fs::path& folder, std::uint64_t replica) {
  std::vector<std::uint64_t> steps;
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(folder, no_folder)) {
    if (const auto step = step_of(entry.path().filename().string(), file_suffix(replica)))
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

std::vector<std::uint64_t> superseded(std::span<const std::uint64_t> steps, const KeepRule& rule,
                                      std::uint64_t common) {
  if (rule.newest == 0 || steps.size() <= rule.newest) return {};
  std::vector<std::uint64_t> out;
  for (const auto step : steps.first(steps.size() - rule.newest)) {
    const bool for_good = rule.every > 0 && step % rule.every == 0;
    if (step < common && !for_good) out.push_back(step);
  }
  return out;
}

std::vector<std::uint64_t> sound_checkpoints(const fs::path& folder, std::uint64_t replica,
                                             const Digest& model, std::size_t in_full,
                                             const std::function<void(const std::string&)>& refused) {
  std::vector<std::uint64_t> sound;
  std::optional<Error> newest_reason;
  const auto steps = checkpoint_steps(folder, replica);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto file = checkpoint_file(folder, *step, replica);
    try {
      sound.size() < in_full ? check_checkpoint(file, model) : check_checkpoint_header(file, model);
      sound.push_back(*step);
    } catch (const Error& why) {
      if (!newest_reason) newest_reason = why;
      refused(why.what());
    }
  }
  if (sound.empty() && newest_reason) throw Error(*newest_reason);
  std::ranges::reverse(sound);
  return sound;
}

std::size_t set_aside_after(const fs::path& folder, std::uint64_t replica, std::uint64_t step) {
  std::size_t count = 0;
  for (const auto later : checkpoint_steps(folder, replica)) {
    if (later <= step) continue;
    const auto file = checkpoint_file(folder, later, replica);
    auto name = file;
    name += undone_suffix;
    std::error_code error;
    fs::rename(file, name, error);
    if (error) throw Error(ErrorKind::data, "cannot rename " + file.string() + ": " + error.message());
    ++count;
  }
  if (count > 0) File(folder, File::Mode::folder).sync();
  return count;
}

void prepare_checkpoint_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directories(folder, error))
    File(folder.has_parent_path() ? folder.parent_path() : ".", File::Mode::folder).sync();
  if (error)
    throw Error(ErrorKind::data, "cannot make the folder " + folder.string() + ": " + error.message());
  const auto partial = std::string(file_type) + partial_suffix;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with(partial)) remove_file(entry.path());
  }
}

}  // namespace isthmus::trainer
