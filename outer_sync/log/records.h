#pragma once
// The files of a log: one per fragment, with a snapshot and then the rounds after it.
//
// A record, little-endian: u32 kind ("SNAP" or "ROND"), u32 fragment, u64 round, u64 length of the body, 32
// bytes chain hash after the round; the body; 32 bytes SHA-256 of the header file's SHA-256 and of all of the
// above, so that a record of another log is rejected. Body of a snapshot: the fragment's parameters, then its
// momentum, fp32. Body of a round: f32 outer learning rate, f32 momentum, u32 1 for Nesterov's form, then
// the result bytes of all chunks in order. The header determines the length of every body; the length field
// only repeats it.

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
#include "isthmus/quant/passes.h"

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
};
static_assert(sizeof(RecordRule) == 12);
[[nodiscard]] RecordRule record_of(const quant::OuterStep& rule);
/// The rule without a merge: a log has no local parameters.
[[nodiscard]] quant::OuterStep rule_of(const RecordRule& record);

inline constexpr std::size_t record_head_size = 56;
inline constexpr std::size_t record_checksum_size = 32;

/// Bytes of a record's body.
[[nodiscard]] std::uint64_t body_size(const LogHeader& header, FragmentId fragment, RecordKind kind);
/// Bytes of a whole record.
[[nodiscard]] inline std::uint64_t record_size(const LogHeader& header, FragmentId fragment,
                                               RecordKind kind) {
  return record_head_size + body_size(header, fragment, kind) + record_checksum_size;
}

/// Prefix of the checksums of a log's records.
[[nodiscard]] Digest seed_of(const LogHeader& header);

/// "FOLDER/fragment_0003_round_000000000120.log" for a file that begins with a snapshot of this round.
[[nodiscard]] std::filesystem::path fragment_file(const std::filesystem::path& folder, FragmentId fragment,
                                                  protocol::Round round);

/// A log's files by fragment, the newest snapshot first. Throws Error(data) if a file's fragment is not in
/// the header or the file is too short for its snapshot.
[[nodiscard]] std::vector<std::vector<std::filesystem::path>> fragment_files(
    const std::filesystem::path& folder, const LogHeader& header);
/// The round of the snapshot in such a file, from its name.
[[nodiscard]] protocol::Round first_round(const std::filesystem::path& file);

/// Reads the header file. Throws Error(data).
[[nodiscard]] LogHeader read_header(const std::filesystem::path& folder);

/// Reads a fragment's file from its start, record by record. It trusts no stored length: the header
/// determines the length of every record.
class RecordReader {
 public:
  /// The header must outlive the reader.
  RecordReader(const std::filesystem::path& file, const LogHeader& header, FragmentId fragment);

  /// Reads the next record's head: a snapshot, then consecutive rounds. False at the end of the file, and at
  /// a last record that is incomplete (`torn`). Throws Error(data) naming file and offset for anything else.
  [[nodiscard]] bool next();
  [[nodiscard]] const RecordHead& head() const { return head_; }
  /// The body of that record, with its checksum verified; valid until the next call. Throws as `next` does.
  [[nodiscard]] std::span<const std::byte> body();
  /// Offset of the record after this one.
  [[nodiscard]] std::uint64_t end() const { return next_; }
  [[nodiscard]] bool torn() const { return torn_; }
  /// Throws Error(data) naming the file and the record's offset.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  const std::filesystem::path path_;
  const LogHeader& header_;
  FragmentId fragment_;
  Digest seed_;
  File file_;
  std::uint64_t size_;
  std::uint64_t begin_ = 0, next_ = 0;  ///< offsets of the current record and of the next one
  bool body_unread_ = false, torn_ = false;
  RecordHead head_;
  std::array<std::byte, record_head_size> head_bytes_{};
  Bytes body_;
};

}  // namespace isthmus::outer_sync::log
