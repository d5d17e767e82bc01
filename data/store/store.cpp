#include "isthmus/data/store.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "ids/highest_id.h"
#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"
#include "store/block_codec.h"
#include "store/store_reader.h"

namespace isthmus::data {

using store::Entry;

namespace {

/// How many blocks with their ids to keep: all of a small store, since its windows may be drawn in any order,
/// and each would decompress its block again.
std::size_t blocks_to_hold(const StoreInfo& info) {
  constexpr std::uint64_t max_blocks = 256, max_bytes = 16 << 20;
  const bool small = info.blocks() <= max_blocks && info.tokens * info.spec.width() <= max_bytes;
  return small ? std::max<std::size_t>(1, static_cast<std::size_t>(info.blocks())) : 1;
}

}  // namespace

struct StoreReader::Held {
  std::uint64_t block = none;
  Bytes ids;
  static constexpr std::uint64_t none = ~std::uint64_t{0};
};

struct StoreReader::Worker {
  explicit Worker(const StoreInfo& info) : decoder(info.spec), held(blocks_to_hold(info)) {}
  /// The slot for a block's ids: it holds them if the block was read in part and no other block replaced it
  /// since.
  Held& place_of(std::uint64_t block) { return held[block % held.size()]; }

  store::BlockDecoder decoder;
  Bytes record;  ///< as in the file
  std::vector<Held> held;
};

/// Borrows a worker until destroyed. The worker returned last is lent first: its memory is warm.
class StoreReader::Lease {
 public:
  explicit Lease(const StoreReader& reader) : reader_(reader) {
    {
      const std::lock_guard lock(reader.mutex_);
      if (!reader.idle_.empty()) {
        worker_ = std::move(reader.idle_.back());
        reader.idle_.pop_back();
      }
    }
    if (!worker_) worker_ = std::make_unique<Worker>(reader.info_);
  }
  ~Lease() {
    const std::lock_guard lock(reader_.mutex_);
    reader_.idle_.push_back(std::move(worker_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  [[nodiscard]] Worker& operator*() const { return *worker_; }

 private:
  const StoreReader& reader_;
  std::unique_ptr<Worker> worker_;
};

namespace {

[[noreturn]] void fail_at(const std::filesystem::path& file, std::uint64_t offset, const std::string& why) {
  data_error(fmt::format("{}, offset {}: {}", file.string(), offset, why));
}

StoreInfo read_header(const File& file, const std::filesystem::path& path) {
  std::array<std::byte, store::header_bytes> bytes;
  if (!file.read_at(0, bytes)) {
    data_error(fmt::format("{}: not the index of a store: it has {} bytes; expected {} at least",
                           path.string(), file.size(), bytes.size()));
  }
  return store::parse_header(bytes, path.string());
}

void check_size(const File& file, const std::filesystem::path& path, std::uint64_t expected) {
  const auto size = file.size();
  if (size == expected) return;
  fail_at(path, std::min(size, expected),
          fmt::format("the file has {} bytes; expected {}: it was {}", size, expected,
                      (size < expected ? "truncated" : "extended")));
}

}  // namespace

StoreReader::StoreReader(const std::filesystem::path& folder)
    : index_path_(folder / store::index_name),
      blocks_path_(folder / store::blocks_name),
      index_(index_path_, File::Mode::read),
      blocks_(blocks_path_, File::Mode::read),
      info_(read_header(index_, index_path_)) {
  check_size(index_, index_path_, store::header_bytes + info_.blocks() * store::entry_bytes);
  check_size(blocks_, blocks_path_, info_.data_bytes);
  check_entries();
}

StoreReader::~StoreReader() = default;

void StoreReader::check_entries() {
  std::array<Entry, 4096> some;
  Hasher hasher;
  std::uint64_t end = 0, documents = 0;
  for (std::uint64_t done = 0; done < info_.blocks();) {
    const auto part = std::span(some).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(some.size(), info_.blocks() - done)));
    const auto at = store::header_bytes + done * store::entry_bytes;
    if (!index_.read_at(at, std::as_writable_bytes(part)))
      fail_at(index_path_, at, "the file has become shorter while it was read");
    hasher.update(std::as_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto size = part[i].end - end;
      if (part[i].end < end || size < store::record_head_bytes || size > info_.largest_record) {
        fail_at(index_path_, at + i * store::entry_bytes,
                fmt::format(
                    "block {} ends at {}, and the one before it at {}; expected it to have {} to {} bytes",
                    done + i, part[i].end, end, store::record_head_bytes, info_.largest_record));
      }
      if (part[i].first >= info_.spec.vocab_size) {
        fail_at(index_path_, at + i * store::entry_bytes + offsetof(Entry, first),
                fmt::format("the first id of block {} is {}, outside the store's vocabulary of {}", done + i,
                            part[i].first, info_.spec.vocab_size));
      }
      end = part[i].end;
      documents += part[i].documents;
      firsts_.push_back(static_cast<std::uint32_t>(part[i].first));
    }
    done += part.size();
  }
  if (hasher.finish() != info_.entries)
    fail_at(index_path_, store::header_bytes, "the entries do not match their checksum: the file is damaged");
  if (end != info_.data_bytes || documents != info_.documents)
    fail_at(index_path_, store::header_bytes, "the entries do not match the counts in the header");
}

std::uint32_t StoreReader::width() const { return info_.spec.width(); }

std::uint64_t StoreReader::tokens_of(std::uint64_t block) const {
  return std::min<std::uint64_t>(info_.spec.block_tokens, info_.tokens - block * info_.spec.block_tokens);
}

void StoreReader::fail(std::uint64_t offset, std::uint64_t block, std::string_view why) const {
  fail_at(blocks_path_, offset, fmt::format("block {}: {}", block, why));
}

StoreReader::Record StoreReader::find(std::uint64_t block) const {
  std::array<Entry, 2> entries = {};
  const bool first = block == 0;
  const auto at = store::header_bytes + (first ? 0 : block - 1) * store::entry_bytes;
  const auto wanted = std::span(entries).subspan(first ? 1 : 0);
  if (!index_.read_at(at, std::as_writable_bytes(wanted)))
    fail_at(index_path_, at, "the file has become shorter since it was opened");
  const auto [before, entry] = entries;
  // Checked when the store was opened, but the file may have been overwritten since.
  if (entry.end < before.end || entry.end - before.end > info_.largest_record)
    fail_at(index_path_, at, "the file has changed since it was opened");
  return {before.end, entry};
}

std::span<const std::byte> StoreReader::fetch(std::uint64_t block, const Record& record,
                                              Worker& worker) const {
  const auto size = record.entry.end - record.begin;
  if (worker.record.size() < size) worker.record.resize(size);
  const auto bytes = std::span(worker.record).first(size);
  if (!blocks_.read_at(record.begin, bytes)) {
    fail(record.begin, block,
         fmt::format("the file has {} bytes; expected {}: it has become shorter since it was opened",
                     blocks_.size(), info_.data_bytes));
  }
  if (crc32c(bytes) != record.entry.checksum) {
    fail(record.begin, block,
         fmt::format("its {} bytes do not match their checksum: the file is damaged", size));
  }
  return bytes;
}

void StoreReader::decode(std::uint64_t block, std::span<std::byte> out, Worker& worker) const {
  const auto record = find(block);
  const auto problem = worker.decoder.ids(fetch(block, record, worker), out);
  if (!problem.empty()) fail(record.begin, block, problem);
  if (std::memcmp(out.data(), &firsts_[block], width()) != 0)
    fail(record.begin, block, "its first id differs from the one in the index");
}

void StoreReader::hold(std::uint64_t block, Held& held, Worker& worker) const {
  const auto bytes = tokens_of(block) * width();
  held.block = Held::none;
  if (held.ids.size() < bytes) held.ids.resize(bytes);
  decode(block, std::span(held.ids).first(bytes), worker);
  held.block = block;
}

void StoreReader::read(std::uint64_t begin, std::uint64_t count, std::byte* out) const {
  assert(begin <= info_.tokens && count <= info_.tokens - begin);
  const Lease lease(*this);
  auto& worker = *lease;
  while (count > 0) {
    const auto block = begin / info_.spec.block_tokens, first = begin % info_.spec.block_tokens;
    const auto in_block = tokens_of(block), part = std::min(count, in_block - first);
    auto& held = worker.place_of(block);
    if (first == 0 && part == 1 && held.block != block) {
      // Rows of tokens end with the first id of the next block, which need not be decompressed for that.
      std::memcpy(out, &firsts_[block], width());
    } else if (part == in_block && held.block != block) {
      decode(block, {out, part * width()}, worker);
    } else {
      if (held.block != block) hold(block, held, worker);
      std::memcpy(out, held.ids.data() + first * width(), part * width());
    }
    out += part * width();
    begin += part;
    count -= part;
  }
}

std::uint64_t StoreReader::heldout_begin(std::uint64_t wanted) const {
  if (wanted >= info_.tokens) return 0;
  const auto last = info_.tokens - wanted, least = last - std::min(last, wanted);
  const auto size = info_.spec.block_tokens;
  for (auto block = last / size + 1; block-- > least / size;) {
    if (block >= info_.blocks() || find(block).entry.documents == 0) continue;
    const auto starts = document_starts(block);
    for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
      const auto token = block * size + *start;
      // At 0 nothing would be left to train on.
      if (token <= last && token >= least && token > 0) return token;
    }
  }
  return last;
}

std::string StoreReader::place(std::uint64_t token) const {
  const auto block = token / info_.spec.block_tokens;
  return fmt::format("{}, offset {} (block {}, id {} in it)", blocks_path_.string(), find(block).begin, block,
                     token % info_.spec.block_tokens);
}

std::vector<std::uint32_t> StoreReader::document_starts(std::uint64_t block) const {
  assert(block < info_.blocks());
  const Lease lease(*this);
  const auto record = find(block);
  std::vector<std::uint32_t> starts;
  const auto problem =
      store::BlockDecoder::starts(fetch(block, record, *lease), static_cast<std::uint32_t>(tokens_of(block)),
                                  record.entry.documents, starts);
  if (!problem.empty()) fail(record.begin, block, problem);
  return starts;
}

std::uint64_t StoreReader::verify(std::uint64_t block) const {
  const auto starts = document_starts(block);
  if (block == 0 && (starts.empty() || starts.front() != 0))
    fail(0, 0, "the first document does not begin with the first id");
  const Lease lease(*this);
  auto& held = (*lease).place_of(block);
  hold(block, held, *lease);
  if (highest_id(held.ids.data(), width(), tokens_of(block)) >= info_.spec.vocab_size)
    fail(find(block).begin, block, "an id in it is outside the store's vocabulary");
  return starts.size();
}

std::unique_ptr<StoreReader> open_store(const std::filesystem::path& folder) {
  return std::make_unique<StoreReader>(folder);
}

StoreInfo store_info(const std::filesystem::path& folder) { return StoreReader(folder).info(); }

void verify_store(const std::filesystem::path& folder, const std::function<void(const std::string&)>& bad,
                  const std::function<void(std::uint64_t)>& progress) {
  const StoreReader reader(folder);
  for (std::uint64_t block = 0; block < reader.info().blocks(); ++block) {
    try {
      (void)reader.verify(block);
    } catch (const Error& error) {
      bad(error.what());
    }
    progress(block + 1);
  }
}

}  // namespace isthmus::data
