#pragma once
// The folder of a replica's checkpoints: their names, which can be gone on with, and which are to be kept.

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
/// Steps, ascending, for which the replica has a file (only complete files bear that name). Empty without the
/// folder.
[[nodiscard]] std::vector<std::uint64_t> checkpoint_steps(const std::filesystem::path& folder,
                                                          std::uint64_t replica);
/// The latest step that is in every (ascending) list.
[[nodiscard]] std::optional<std::uint64_t> latest_common_step(
    std::span<const std::vector<std::uint64_t>> steps_of_replicas);

/// Which checkpoints stay.
struct KeepRule {
  std::uint64_t newest = 3;  ///< so many; 0: all. At least 2: while one replica writes its newest, the one
                             ///< before is what all have
  std::uint64_t every = 0;   ///< and those whose step is a multiple of this; 0: none
};
/// Those of `steps` (ascending) that may go. `common` is a step of which all replicas of the run have a
/// checkpoint: it stays, and what is newer, since it may be the next such.
[[nodiscard]] std::vector<std::uint64_t> superseded(std::span<const std::uint64_t> steps,
                                                    const KeepRule& rule, std::uint64_t common);

/// Steps, ascending, that the replica can go on from: the newest `in_full` that are sound are read to their
/// end, of older ones the header and the length. `refused` gets the reason, which names the file, for every
/// other one. Throws Error(data) with the newest one's reason where there are some and none is sound.
[[nodiscard]] std::vector<std::uint64_t> sound_checkpoints(
    const std::filesystem::path& folder, std::uint64_t replica, const Digest& model, std::size_t in_full,
    const std::function<void(const std::string&)>& refused);

/// What `set_aside_after` appends to a name.
inline constexpr const char* undone_suffix = ".undone";
/// A run goes on from an earlier step: later checkpoints are of a history that is none any more, and would be
/// taken for the new one's. They stay under another name. Returns how many there were.
std::size_t set_aside_after(const std::filesystem::path& folder, std::uint64_t replica, std::uint64_t step);

/// Makes the folder, also on disk, and removes what writes that never ended have left in it.
void prepare_checkpoint_folder(const std::filesystem::path& folder);

}  // namespace isthmus::trainer
