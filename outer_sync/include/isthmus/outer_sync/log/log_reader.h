#pragma once
// Reads a log round by round, with the global parameters after each round. `replay` and audits use it.

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/state.h"

namespace isthmus::outer_sync::log {

class RecordReader;

/// One fragment: a snapshot, then consecutive rounds.
class LoggedFragment {
 public:
  /// Begins with the snapshot in `file`. `theta` is the memory for the fragment's parameters; it, the header
  /// and the layout must outlive this. Throws Error(data) naming file and offset.
  LoggedFragment(const std::filesystem::path& file, const LogHeader& header, const FragmentLayout& layout,
                 FragmentId fragment, std::span<float> theta);
  ~LoggedFragment();
  LoggedFragment(LoggedFragment&&) noexcept;
  LoggedFragment& operator=(LoggedFragment&&) = delete;

  /// Applies the next round; false if the log has no further one. Throws Error(data) as above, and
  /// Error(divergence) naming fragment and round if its results do not give the recorded chain hash.
  [[nodiscard]] bool next();

  [[nodiscard]] protocol::Round first() const { return first_; }  ///< of the snapshot
  [[nodiscard]] const protocol::FragmentState& state() const { return state_; }
  [[nodiscard]] std::span<const float> theta() const { return theta_; }
  [[nodiscard]] std::span<const float> velocity() const { return velocity_; }
  /// Results of the round that `next` has applied, in chunk order.
  [[nodiscard]] std::vector<protocol::SharedBytes> results() const;
  /// Whether an incomplete record follows the last one: after a crash, or in a log in use.
  [[nodiscard]] bool torn() const;

 private:
  [[noreturn]] void refuse(protocol::Round round, const std::string& reason) const;
  [[nodiscard]] std::span<const std::byte> bytes_of(ChunkId chunk) const;

  const LogHeader& header_;
  const FragmentLayout& layout_;
  FragmentId fragment_;
  std::unique_ptr<RecordReader> reader_;
  std::span<float> theta_;
  AlignedVector<float> velocity_;
  AlignedVector<float> local_;          ///< of one chunk; the pass needs local parameters, and a log has none
  std::vector<std::uint64_t> places_;   ///< by chunk: first byte of its result
  std::span<const std::byte> results_;  ///< of the newest round, in the reader's memory
  protocol::Round first_ = 0;
  protocol::FragmentState state_;
};

class LogReader {
 public:
  /// Reads the header and lists the files. Throws Error(data).
  explicit LogReader(std::filesystem::path folder);

  [[nodiscard]] const LogHeader& header() const { return header_; }
  /// Allocates nothing on the header's word: every element in it is backed by bytes of a file. Throws
  /// Error(data) if a fragment has no file that begins at or before its round `from`.
  [[nodiscard]] FragmentLayout layout_from(std::span<const protocol::Round> from) const;
  /// The last complete round of the file that `open` would read, by the file's size alone. Throws as
  /// `layout_from`.
  [[nodiscard]] protocol::Round last_round(FragmentId fragment, protocol::Round from) const;
  /// The fragment from its newest snapshot at or before round `from`. The arguments must outlive it. Throws
  /// as LoggedFragment does, and as `layout_from`.
  [[nodiscard]] LoggedFragment open(const FragmentLayout& layout, FragmentId fragment, protocol::Round from,
                                    std::span<float> theta) const;

 private:
  [[nodiscard]] const std::filesystem::path& file_of(FragmentId fragment, protocol::Round from) const;

  std::filesystem::path folder_;
  LogHeader header_;
  std::vector<std::vector<std::filesystem::path>> files_;  ///< by fragment, the newest first
};

}  // namespace isthmus::outer_sync::log
