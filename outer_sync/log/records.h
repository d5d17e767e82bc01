#pragma once
// The files of a log: one per fragment, a snapshot and then the rounds after it, one behind the other.
//
// A record, little-endian: u32 kind ("SNAP" or "ROND"), u32 fragment, u64 round, u64 length of the body, 32
// bytes chain hash after the round; the body; 32 bytes SHA-256 of the header file's checksum and of all of
// the above, so that a record of another log is not taken for one of this. Body of a snapshot: the fragment's
// parameters, then its momentum, fp32. Body of a round: f32 outer learning rate, f32 momentum, u32 1 for
// Nesterov's form, f32 staleness penalty (0: not CO2's step), f32 momentum clip, then the result bytes of all
// chunks in order. How long a body is follows from the header, so a length only says the same once more.

#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/file.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/outer_sync/methods/outer_rule.h"

namespace isthmus::outer_sync::log {

enum class RecordKind : std::uint32_t { snapshot = 0x50414e53, round = 0x444e4f52 };

struct RecordHead {
  RecordKind kind = RecordKind::snapshot;
  std::uint32_t fragment = 0;
  std::uint64_t round = 0;
  std::uint64_t length = 0;  ///< bytes of the body
  Digest chain;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, fragment, round, length, chain);
  }
};

/// The fixed part of a round's body.
struct RecordRule {
  float lr = 0, momentum = 0;
  std::uint32_t nesterov = 0;
  float penalty = 0, clip = 0;
};
static_assert(sizeof(RecordRule) == 20);
[[nodiscard]] RecordRule record_of(const methods::OuterRule& rule);
/// Without a merge: a log has no local parameters.
[[nodiscard]] methods::OuterRule rule_of(const RecordRule& record);

inline constexpr std::size_t record_head_size = 56;
inline constexpr std::size_t record_checksum_size = 32;

/// Bytes of a record's body.
[[nodiscard]] std::uint64_t body_size(const LogHeader& header, FragmentId fragment, RecordKind kind);
/// Bytes of a whole record.
[[nodiscard]] inline std::uint64_t record_size(const LogHeader& header, FragmentId fragment,
                                               RecordKind kind) {
  return record_head_size + body_size(header, fragment, kind) + record_checksum_size;
}

/// What the checksums of a log's records begin with.
[[nodiscard]] Digest seed_of(const LogHeader& header);

/// "FOLDER/fragment_0003_round_000000000120.log" for a file whose snapshot is of that round.
[[nodiscard]] std::filesystem::path fragment_file(const std::filesystem::path& folder, FragmentId fragment,
                                                  protocol::Round round);

/// Files of a log by fragment, the newest snapshot first. Throws Error(data) if one is of a fragment that the
/// header does not have or is too short for its snapshot.
[[nodiscard]] std::vector<std::vector<std::filesystem::path>> fragment_files(
    const std::filesystem::path& folder, const LogHeader& header);
/// The round of the snapshot in one of these.
[[nodiscard]] protocol::Round first_round(const std::filesystem::path& file);

/// Reads the header file. Throws Error(data).
[[nodiscard]] LogHeader read_header(const std::filesystem::path& folder);

/// Reads a fragment's file from its start, record by record. It believes no length: every record is as long
/// as the header makes it.
class RecordReader {
 public:
  /// The header must outlive the reader.
  RecordReader(const std::filesystem::path& file, const LogHeader& header, FragmentId fragment);

  /// The next record's head: a snapshot, then rounds one after the other. False at the end of the file, and
  /// before a record that the file ends inside of (`torn`). Throws Error(data) naming file and offset for
  /// anything else.
  [[nodiscard]] bool next();
  [[nodiscard]] const RecordHead& head() const { return head_; }
  /// The body of that record, its checksum verified; valid until the next call. Throws as `next` does.
  [[nodiscard]] std::span<const std::byte> body();
  /// Where the record after this one begins.
  [[nodiscard]] std::uint64_t end() const { return next_; }
  [[nodiscard]] bool torn() const { return torn_; }
  /// Throws Error(data) naming the file and where the record begins.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  const std::filesystem::path path_;
  const LogHeader& header_;
  FragmentId fragment_;
  Digest seed_;
  File file_;
  std::uint64_t size_;
  std::uint64_t begin_ = 0, next_ = 0;  ///< of the current record, of the one after it
  bool body_unread_ = false, torn_ = false;
  RecordHead head_;
  std::array<std::byte, record_head_size> head_bytes_{};
  Bytes body_;
};

}  // namespace isthmus::outer_sync::log
