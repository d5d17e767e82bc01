#pragma once
// The folder of a replica's checkpoints: their names, which of them can be resumed from, and which to keep.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::trainer {

/// "FOLDER/step_000000001200_replica_3.ckpt"
[[nodiscard]] std::filesystem::path checkpoint_file(const std::filesystem::path& folder, std::uint64_t step,
                                                    std::uint64_t replica);
/// The step in the name of a checkpoint file; nullopt for another name.
[[nodiscard]] std::optional<std::uint64_t> step_of_checkpoint(const std::string& name, std::uint64_t replica);
/// Steps, ascending, for which the replica has a file (only complete files have that name). Empty if there is
/// no folder.
[[nodiscard]] std::vector<std::uint64_t> checkpoint_steps(const std::filesystem::path& folder,
                                                          std::uint64_t replica);
/// The latest step that is in all of the (ascending) lists.
[[nodiscard]] std::optional<std::uint64_t> latest_common_step(
    std::span<const std::vector<std::uint64_t>> steps_of_replicas);

/// Which checkpoints to keep.
struct KeepRule {
  std::uint64_t newest = 3;  ///< number of newest ones; 0: all. At least 2: while one replica writes its
                             ///< newest, the one before is the newest that all have
  std::uint64_t every = 0;   ///< also every multiple of this step; 0: none
};
/// Those `steps` (ascending) that may be removed. All replicas of the run have a checkpoint of step `common`:
/// it stays, and so do newer ones, which may become the next common one.
[[nodiscard]] std::vector<std::uint64_t> superseded(std::span<const std::uint64_t> steps,
                                                    const KeepRule& rule, std::uint64_t common);

/// Steps, ascending, from which the replica can resume. Reads the newest `in_full` sound files completely,
/// and of older ones the header and the length. Calls `refused` with the reason, which names the file, for
/// each unsound file. Throws Error(data) with the newest file's reason if there are files but all are
/// unsound.
[[nodiscard]] std::vector<std::uint64_t> sound_checkpoints(
    const std::filesystem::path& folder, std::uint64_t replica, const Digest& model, std::size_t in_full,
    const std::function<void(const std::string&)>& refused);

/// Suffix that `set_aside_after` appends to a name.
inline constexpr const char* undone_suffix = ".undone";
/// Renames checkpoints later than `step`, from which the run continues: they belong to a discarded history,
/// and would be mistaken for checkpoints of the new one. Returns how many there were.
std::size_t set_aside_after(const std::filesystem::path& folder, std::uint64_t replica, std::uint64_t step);

/// Creates the folder, also on disk, and removes the remains of interrupted writes.
void prepare_checkpoint_folder(const std::filesystem::path& folder);

}  // namespace isthmus::trainer
