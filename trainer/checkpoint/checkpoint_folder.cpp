#include "isthmus/trainer/checkpoint_folder.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/trainer/checkpoint.h"

namespace isthmus::trainer {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view file_type = ".ckpt";
}  // namespace

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
    if (error) data_error("cannot rename " + file.string() + ": " + error.message());
    ++count;
  }
  if (count > 0) File(folder, File::Mode::folder).sync();
  return count;
}

void prepare_checkpoint_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directories(folder, error))
    File(folder.has_parent_path() ? folder.parent_path() : ".", File::Mode::folder).sync();
  if (error) data_error("cannot make the folder " + folder.string() + ": " + error.message());
  const auto partial = std::string(file_type) + partial_suffix;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().ends_with(partial)) remove_file(entry.path());
  }
}

}  // namespace isthmus::trainer
