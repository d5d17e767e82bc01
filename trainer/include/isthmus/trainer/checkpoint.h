#pragma once
// One replica's complete state in one file, which is written completely or not at all.
//
// Layout, little-endian:
//   8 bytes magic "ISTHCKPT", u32 version, 32 bytes model fingerprint, u64 step, u32 number of sections,
//   per section: u16 length of the name, name, u64 length of the data, 32 bytes SHA-256 of the data,
//   32 bytes SHA-256 of all of the above, then the sections' data in the same order, then the file ends.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/config.h"
#include "isthmus/base/hash.h"

namespace isthmus::trainer {

class Replica;
struct ReplicaState;

inline constexpr std::uint32_t checkpoint_version = 6;
/// The section with the state that all replicas of a run agree on: two checkpoints of one step belong to one
/// history only if they have the same.
inline constexpr const char* agreed_section = "agreed";

/// The section with the config as YAML.
inline constexpr const char* config_section = "config";
/// The sections with a replica's own state.
inline constexpr const char *parameters_section = "parameters", *first_moment_section = "first_moment",
                            *second_moment_section = "second_moment";

/// A named section to write; the caller keeps the bytes.
struct SectionView {
  std::string name;  ///< 1 to 255 bytes, each name once
  std::span<const std::byte> bytes;
};

/// Writes to a temporary name in the same folder, syncs, renames, syncs the folder: the file appears complete
/// or not at all, even if the machine stops in between. Throws Error(data) naming the file and the system's
/// reason.
void write_checkpoint(const std::filesystem::path& file, const Digest& model, std::uint64_t step,
                      std::span<const SectionView> sections);

struct Checkpoint {
  std::filesystem::path file;
  Digest model;  ///< fingerprint of the model
  std::uint64_t step = 0;
  std::map<std::string, Bytes> sections;
  /// Throws Error(data) naming file and section if it is missing.
  [[nodiscard]] const Bytes& section(const std::string& name) const;
};

/// The config in a checkpoint. Throws Error(data) without one, and as Source::from_text does.
[[nodiscard]] config::Source config_of(const Checkpoint& checkpoint);

/// Throws Error(data) naming file, section and reason if anything is wrong. Lengths are trusted only as far
/// as the file reaches, and nothing is returned before all checksums have been verified.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& file, const Digest& model);
/// The same for any model.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& file);

/// Reads the whole file, in pieces, and keeps nothing of it. Throws like read_checkpoint.
void check_checkpoint(const std::filesystem::path& file, const Digest& model);
/// Checks only the header, and that the file has the length that it gives.
void check_checkpoint_header(const std::filesystem::path& file, const Digest& model);

/// Digest of a section, from the header alone; nullopt if there is no such section. Throws like
/// check_checkpoint_header, but accepts any model.
[[nodiscard]] std::optional<Digest> section_digest(const std::filesystem::path& file,
                                                   const std::string& name);

/// Digests of all sections, by name. Throws in the same way.
[[nodiscard]] std::map<std::string, Digest> section_digests(const std::filesystem::path& file);

/// The digest of one from the first bytes of a checkpoint, of which the caller has no more. `shown` names it
/// in errors.
[[nodiscard]] std::optional<Digest> section_digest(std::span<const std::byte> beginning,
                                                   const std::string& shown, const std::string& name);

/// A copy of a checkpoint with only some of its sections, for a machine that needs no more: its length, then
/// its bytes in pieces. Does not verify the sections' checksums, which the copy has too. Throws like
/// section_digest, and Error(data) naming the file if it lacks one of the sections.
struct PartialCopy {
  std::function<void(std::uint64_t)> length;
  std::function<void(std::span<const std::byte>)> bytes;
};
void copy_sections(const std::filesystem::path& file, std::span<const std::string> names,
                   const PartialCopy& to);

/// Writes a replica's state in its sections, next to the sections `others` (the outer loop's state, the
/// config as YAML). `model` is the table's fingerprint.
void save_replica(const std::filesystem::path& file, const Digest& model, const ReplicaState& state,
                  std::span<const SectionView> others);
void save_replica(const std::filesystem::path& file, Replica& replica, std::span<const SectionView> others);
/// Restores the replica and returns the other sections. Throws like read_checkpoint, and Error(data) if a
/// section of the replica is missing or has another size; the replica is then unchanged.
[[nodiscard]] Checkpoint load_replica(const std::filesystem::path& file, Replica& replica);

}  // namespace isthmus::trainer
