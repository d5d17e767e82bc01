#pragma once
// A chunk store as a source of ids. Its files are read where ids are asked for, and 4 bytes are kept of each
// block: memory is that and a few blocks for each thread that reads at the same time, of a store of up to
// 16 MiB and 256 blocks all that thread has read in part.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/file.h"
#include "isthmus/data/store.h"
#include "store_format.h"
#include "token_source.h"

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
  /// The last document's border that leaves `wanted` ids and not twice as many; where there is none, `wanted`
  /// before the end: one long document at the end must not take the rest with it.
  [[nodiscard]] std::uint64_t heldout_begin(std::uint64_t wanted) const override;
  /// Whole blocks are decompressed into `out`. Of those that are read in parts the last one is kept, of a
  /// small store all of them, so that reading on costs no more than a copy.
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override;
  [[nodiscard]] std::string place(std::uint64_t token) const override;
  [[nodiscard]] std::optional<std::uint32_t> separator() const override { return info_.spec.separator; }
  [[nodiscard]] Digest fingerprint() const override { return info_.fingerprint; }

  /// Where documents begin in a block, counted from the block's begin. Throws Error(data) like read().
  [[nodiscard]] std::vector<std::uint32_t> document_starts(std::uint64_t block) const;
  /// Reads the block and checks all that is in it; throws Error(data) like read(). Returns how many documents
  /// begin in it.
  [[nodiscard]] std::uint64_t verify(std::uint64_t block) const;

 private:
  /// What one thread needs while it reads; used again by whoever reads next.
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
