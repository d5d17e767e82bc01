#pragma once
// A store that is being written: in FOLDER.partial, which gets the store's own name once it is complete. The
// journal in FOLDER.partial records from where to continue after an interruption; everything behind that
// point is dropped.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/file.h"
#include "isthmus/data/store.h"
#include "store/block_codec.h"
#include "store/store_format.h"

namespace isthmus::data {

class StoreWriter {
 public:
  /// The settings that decide a store's bytes, by name. An interrupted run can be continued only with the
  /// same.
  using Task = std::vector<std::pair<std::string, std::string>>;

  /// Throws Error(data) if `folder` exists and is not empty, if FOLDER.partial belongs to another task
  /// (naming the difference), or if another process is writing it; Error(config) for the spec.
  StoreWriter(const std::filesystem::path& folder, const StoreSpec& spec, const Task& task);
  /// Removes unfinished files if there is no journal, without which they are useless.
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// Whether the store was complete already, and only FOLDER.partial was left over, which is removed now:
  /// nothing is left to do.
  [[nodiscard]] bool was_complete() const { return complete_; }
  /// The position in the last commit() of the interrupted writer; nullopt if this one starts anew.
  [[nodiscard]] const std::optional<Bytes>& resumed() const { return resumed_; }

  /// Blocks written, their ids, documents and bytes, including those of the interrupted writer.
  [[nodiscard]] std::uint64_t blocks() const { return counts_.blocks; }
  [[nodiscard]] std::uint64_t tokens() const { return counts_.tokens; }
  [[nodiscard]] std::uint64_t documents() const { return counts_.documents; }
  [[nodiscard]] std::uint64_t bytes() const { return counts_.bytes; }

  /// Appends the next block, as a BlockEncoder made it: block_tokens ids (fewer only in the last block), the
  /// first of which is `first`.
  void append(std::span<const std::byte> record, std::uint32_t tokens, std::uint32_t documents,
              std::uint32_t first);
  /// Returns once all blocks so far are on disk, together with `position`.
  void commit(const Bytes& position);
  /// Completes the store and gives it its name.
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

/// Reads the blocks of a store that is being written.
class WrittenBlocks {
 public:
  /// `folder` as in StoreWriter. Throws Error(data) if no store is being written there.
  WrittenBlocks(const std::filesystem::path& folder, const StoreSpec& spec);
  /// Reads the ids of a whole block, in spec.width() bytes each. Throws Error(data) naming file, offset and
  /// reason.
  void read(std::uint64_t block, std::span<std::byte> ids);

 private:
  StoreSpec spec_;
  File blocks_, entries_;
  store::BlockDecoder decoder_;
  Bytes record_;
};

/// Writes a whole store at once from ids and the positions where documents begin, ascending from 0.
void write_store(const std::filesystem::path& folder, const StoreSpec& spec,
                 std::span<const std::uint32_t> ids, std::span<const std::uint64_t> starts);

}  // namespace isthmus::data
