#pragma once
// One replica's complete state in one file, written whole or not at all.
//
// Layout, little-endian:
//   8 bytes magic "ISTHCKPT", u32 version, 32 bytes model fingerprint, u64 step, u32 number of sections,
//   per section: u16 length of the name, name, u64 length of the data, 32 bytes SHA-256 of the data,
//   32 bytes SHA-256 of all of the above, then the sections' data in the same order, then the file ends.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

inline constexpr std::uint32_t checkpoint_version = 5;
/// The section with what all replicas of a run agree on: two checkpoints of one step are of one history only
/// if it is the same in both.
inline constexpr const char* agreed_section = "agreed";

/// A named run of bytes that is to be written; the bytes stay the owner's.
struct SectionView {
  std::string name;  ///< 1 to 255 bytes, each name once
  std::span<const std::byte> bytes;
};

/// Writes to a temporary name in the same folder, syncs, renames, syncs the folder: the file appears complete
/// or not at all, also when the machine stops in between. Throws Error(data) naming the file and the system's
/// reason.
void write_checkpoint(const std::filesystem::path& file, const Digest& model, std::uint64_t step,
                      std::span<const SectionView> sections);

struct Checkpoint {
  std::filesystem::path file;
  Digest model;  ///< its fingerprint
  std::uint64_t step = 0;
  std::map<std::string, Bytes> sections;
  /// Throws Error(data) naming file and section if it is not there.
  [[nodiscard]] const Bytes& section(const std::string& name) const;
};

/// Throws Error(data) naming file, section and reason if anything is wrong: a length is believed only as far
/// as the file reaches, and nothing is returned before all checksums were right.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& file, const Digest& model);
/// The same of any model.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& file);

/// Reads all of the file, in pieces, and keeps none of it. Throws as read_checkpoint does.
void check_checkpoint(const std::filesystem::path& file, const Digest& model);
/// The same of the header alone, and of whether the file is as long as that says.
void check_checkpoint_header(const std::filesystem::path& file, const Digest& model);

/// Digest of that section, from the header alone; nothing where there is no such section. Throws as
/// check_checkpoint_header does, but for the model.
[[nodiscard]] std::optional<Digest> section_digest(const std::filesystem::path& file,
                                                   const std::string& name);

/// A replica's state in the sections "parameters", "first_moment" and "second_moment", and whatever else must
/// stand beside it (the outer loop's state, the config as YAML). `model` is the table's fingerprint.
void save_replica(const std::filesystem::path& file, const Digest& model, const ReplicaState& state,
                  std::span<const SectionView> others);
void save_replica(const std::filesystem::path& file, const Replica& replica,
                  std::span<const SectionView> others);
/// Restores the replica and returns the other sections. Throws as read_checkpoint does, and Error(data) for a
/// section of the replica that is missing or has another size; the replica is then as it was.
[[nodiscard]] Checkpoint load_replica(const std::filesystem::path& file, Replica& replica);

}  // namespace isthmus::trainer
