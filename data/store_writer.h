#pragma once
// A store while it is made: next to where it will lie, in FOLDER.partial, and under its own name once it is
// complete. FOLDER.partial has the journal, which says from where to go on after whatever has stopped the
// writer: what stands behind what the journal knows is dropped.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block_codec.h"
#include "isthmus/base/archive.h"
#include "isthmus/base/file.h"
#include "isthmus/data/store.h"
#include "store_format.h"

namespace isthmus::data {

class StoreWriter {
 public:
  /// What decides a store's bytes, by name: who goes on must have been started with the same.
  using Task = std::vector<std::pair<std::string, std::string>>;

  /// Throws Error(data): there is something under `folder` already, or what is in FOLDER.partial is of
  /// another task (naming what differs), or another process writes it; Error(config) for the spec.
  StoreWriter(const std::filesystem::path& folder, const StoreSpec& spec, const Task& task);
  /// Removes what it has begun where there is no journal, without which it is of no use.
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// Whether the store was complete already but for what is left beside it, which is gone now: nothing is to
  /// be done.
  [[nodiscard]] bool was_complete() const { return complete_; }
  /// What the last commit() of the writer that was here before said; none where this one begins.
  [[nodiscard]] const std::optional<Bytes>& resumed() const { return resumed_; }

  /// Blocks that are written, their ids, documents and bytes, those from before included.
  [[nodiscard]] std::uint64_t blocks() const { return counts_.blocks; }
  [[nodiscard]] std::uint64_t tokens() const { return counts_.tokens; }
  [[nodiscard]] std::uint64_t documents() const { return counts_.documents; }
  [[nodiscard]] std::uint64_t bytes() const { return counts_.bytes; }

  /// The next block, as a BlockEncoder made it: block_tokens ids, or fewer in the last one, beginning with
  /// `first`.
  void append(std::span<const std::byte> record, std::uint32_t tokens, std::uint32_t documents,
              std::uint32_t first);
  /// Returns when all blocks so far are on disk, together with `position`.
  void commit(const Bytes& position);
  /// Gives the complete store its name.
  void finish(const StoreSource& source);

 private:
  struct Counts {
    std::uint64_t blocks = 0, tokens = 0, documents = 0, bytes = 0;
    std::uint32_t largest = 0;
    template <class Archive>
    void serialize(Archive& ar) {
      ar(blocks, tokens, documents, bytes, largest);
    }
  };
  struct Journal;
  class Lock;

  void begin();
  void resume();
  void write_index(const StoreSource& source) const;

  std::filesystem::path folder_, partial_, store_;
  StoreSpec spec_;
  Task task_;
  std::unique_ptr<Lock> lock_;
  Counts counts_;
  std::optional<Bytes> resumed_;
  std::optional<File> blocks_, entries_;
  bool complete_ = false;
};

/// The blocks that are in a store while it is made.
class WrittenBlocks {
 public:
  /// `folder` as StoreWriter has it. Throws Error(data) where there is none.
  WrittenBlocks(const std::filesystem::path& folder, const StoreSpec& spec);
  /// The ids of a whole block, in spec.width() bytes each. Throws Error(data) naming file, offset and reason.
  void read(std::uint64_t block, std::span<std::byte> ids);

 private:
  StoreSpec spec_;
  File blocks_, entries_;
  store::BlockDecoder decoder_;
  Bytes record_;
};

/// A whole store at once: ids in 4 bytes each, and where documents begin, ascending from 0.
void write_store(const std::filesystem::path& folder, const StoreSpec& spec,
                 std::span<const std::uint32_t> ids, std::span<const std::uint64_t> starts);

}  // namespace isthmus::data
