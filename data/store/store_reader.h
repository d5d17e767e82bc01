#pragma once
// A chunk store as a source of ids. Its files are read as ids are requested. Memory is 4 bytes for each
// block, and a few blocks for each thread that reads at the same time; in a store of up to 16 MiB and 256
// blocks, all blocks that such a thread has read in part.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ids/token_source.h"
#include "isthmus/base/file.h"
#include "isthmus/data/store.h"
#include "store/store_format.h"

namespace isthmus::data {

class StoreReader : public TokenSource {
 public:
  /// Reads the whole index (24 bytes a block), to check it. Throws Error(data) naming file, offset and
  /// reason.
  explicit StoreReader(const std::filesystem::path& folder);
  ~StoreReader() override;

  [[nodiscard]] const StoreInfo& info() const { return info_; }
  [[nodiscard]] std::uint64_t tokens() const override { return info_.tokens; }
  [[nodiscard]] std::uint32_t width() const override;
  [[nodiscard]] std::uint64_t block_tokens() const override { return info_.spec.block_tokens; }
  /// The last start of a document that leaves at least `wanted` and at most twice as many ids. If there is no
  /// such document, `wanted` before the end: one long document at the end must not take the rest with it.
  [[nodiscard]] std::uint64_t heldout_begin(std::uint64_t wanted) const override;
  /// Decompresses whole blocks into `out`. Keeps the last block that was read in part (of a small store, all
  /// of them), so that continuing in it costs no more than a copy.
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override;
  [[nodiscard]] std::string place(std::uint64_t token) const override;
  [[nodiscard]] std::optional<std::uint32_t> separator() const override { return info_.spec.separator; }
  [[nodiscard]] Digest fingerprint() const override { return info_.fingerprint; }

  /// Where documents begin in a block, relative to the block. Throws Error(data) like read().
  [[nodiscard]] std::vector<std::uint32_t> document_starts(std::uint64_t block) const;
  /// Reads the block and checks everything in it; throws Error(data) like read(). Returns the number of
  /// documents that begin in it.
  [[nodiscard]] std::uint64_t verify(std::uint64_t block) const;

 private:
  /// The state of one thread while it reads; reused by later readers.
  struct Worker;
  struct Held;
  class Lease;
  struct Record {
    std::uint64_t begin = 0;
    store::Entry entry;
  };

  void check_entries();
  [[nodiscard]] Record find(std::uint64_t block) const;
  [[nodiscard]] std::span<const std::byte> fetch(std::uint64_t block, const Record& record,
                                                 Worker& worker) const;
  void decode(std::uint64_t block, std::span<std::byte> out, Worker& worker) const;
  void hold(std::uint64_t block, Held& held, Worker& worker) const;
  [[nodiscard]] std::uint64_t tokens_of(std::uint64_t block) const;
  [[noreturn]] void fail(std::uint64_t offset, std::uint64_t block, std::string_view why) const;

  std::filesystem::path index_path_, blocks_path_;
  File index_, blocks_;
  StoreInfo info_;
  std::vector<std::uint32_t> firsts_;  ///< each block's first id
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Worker>> idle_;
};

/// Throws Error(data) naming file, offset and reason.
[[nodiscard]] std::unique_ptr<StoreReader> open_store(const std::filesystem::path& folder);

}  // namespace isthmus::data
