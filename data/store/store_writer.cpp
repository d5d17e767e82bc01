#include "store/store_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "isthmus/base/checksum.h"
#include "isthmus/base/error.h"

namespace isthmus::data {

namespace fs = std::filesystem;
using store::Entry;

namespace {

constexpr const char* entries_name = "entries";
constexpr const char* store_name = "store";
constexpr std::uint64_t max_journal_bytes = std::uint64_t{64} << 20;

/// "/a/b/" and "/a/b" name the same folder, but only the latter has "b" as its last part.
fs::path without_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

fs::path partial_folder(const fs::path& folder) { return without_slash(folder).string() + partial_suffix; }

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) data_error("cannot make " + folder.string() + ": " + error.message());
}

void sync_folder(const fs::path& folder) {
  File(folder.empty() ? fs::path(".") : folder, File::Mode::folder).sync();
}

}  // namespace

/// Locks out other writers.
class StoreWriter::Lock {
 public:
  explicit Lock(const fs::path& folder)
      : number_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (number_ < 0) data_error("cannot open " + folder.string() + ": " + std::strerror(errno));
    if (::flock(number_, LOCK_EX | LOCK_NB) == 0) return;
    const bool busy = errno == EWOULDBLOCK;
    const std::string why = std::strerror(errno);
    ::close(number_);
    data_error(busy ? folder.string() + ": another process is writing it"
                    : "cannot lock " + folder.string() + ": " + why);
  }
  ~Lock() { ::close(number_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int number_;
};

struct StoreWriter::Journal {
  StoreSpec spec;
  Task task;
  Counts counts;
  Bytes position;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(spec, task, counts, position);
  }
};

StoreWriter::StoreWriter(const fs::path& folder, const StoreSpec& spec, const Task& task)
    : folder_(without_slash(folder)),
      partial_(partial_folder(folder)),
      store_(partial_ / store_name),
      spec_(spec),
      task_(task) {
  check(spec);
  std::error_code ignored;
  const bool there = fs::exists(fs::symlink_status(folder_)) && !fs::is_empty(folder_, ignored);
  const bool half = fs::exists(partial_);
  if (there && half && is_store(folder_) && !fs::exists(store_)) {
    complete_ = true;
    fs::remove_all(partial_, ignored);
    return;
  }
  if (there) data_error(folder_.string() + " already exists: remove it, or choose another folder");
  make_folder(partial_);
  lock_ = std::make_unique<Lock>(partial_);
  // The journal marks a folder that can be resumed; without it the content is useless.
  if (fs::exists(partial_ / store::journal_name)) {
    resume();
  } else {
    begin();
  }
}

StoreWriter::~StoreWriter() {
  std::error_code ignored;
  if (complete_ || fs::exists(partial_ / store::journal_name, ignored)) return;
  fs::remove_all(partial_, ignored);
}

void StoreWriter::begin() {
  make_folder(store_);
  blocks_.emplace(store_ / store::blocks_name, File::Mode::replace);
  entries_.emplace(partial_ / entries_name, File::Mode::replace);
}

void StoreWriter::resume() {
  const auto path = partial_ / store::journal_name;
  const auto unusable = [&](const std::string& why) {
    data_error(path.string() + ": " + why + "; remove " + partial_.string() + " to start over");
  };
  Journal journal;
  {
    const File file(path, File::Mode::read);
    const auto size = file.size();
    if (size > max_journal_bytes)
      unusable(fmt::format("it has {} bytes, more than a journal can have", size));
    Bytes bytes(size);
    if (!file.read(bytes) || size < sizeof(Digest::bytes)) unusable("it was truncated");
    const auto content = std::span<const std::byte>(bytes).first(size - sizeof(Digest::bytes));
    const auto digest = hash_of(content);
    if (std::memcmp(digest.bytes.data(), bytes.data() + content.size(), digest.bytes.size()) != 0)
      unusable("it does not match its checksum");
    try {
      journal = from_bytes<Journal>(content);
    } catch (const Error& error) {
      unusable(error.what());
    }
  }
  for (std::size_t i = 0; i < std::max(task_.size(), journal.task.size()); ++i) {
    if (i < task_.size() && i < journal.task.size() && task_[i] == journal.task[i]) continue;
    const auto at = [&](const Task& task) {
      return i < task.size() ? task[i] : std::pair(std::string(), std::string("not set"));
    };
    const auto now = at(task_), before = at(journal.task);
    unusable("it belongs to a run that was started differently: " + (now.first.empty() ? before : now).first +
             " is " + now.second + ", but was " + before.second);
  }
  if (!(journal.spec == spec_)) unusable("it belongs to a run with another tokenizer or format");
  counts_ = journal.counts;
  resumed_ = std::move(journal.position);
  blocks_.emplace(store_ / store::blocks_name, File::Mode::append);
  entries_.emplace(partial_ / entries_name, File::Mode::append);
  if (blocks_->size() < counts_.bytes || entries_->size() < counts_.blocks * store::entry_bytes)
    unusable("the files have less data than it records");
  blocks_->truncate(counts_.bytes);
  entries_->truncate(counts_.blocks * store::entry_bytes);
}

void StoreWriter::append(std::span<const std::byte> record, std::uint32_t tokens, std::uint32_t documents,
                         std::uint32_t first) {
  assert(counts_.tokens % spec_.block_tokens == 0 && tokens <= spec_.block_tokens);
  blocks_->write(record);
  counts_.bytes += record.size();
  counts_.largest = std::max(counts_.largest, static_cast<std::uint32_t>(record.size()));
  const Entry entry{counts_.bytes, crc32c(record), documents, first};
  entries_->write(std::as_bytes(std::span(&entry, 1)));
  ++counts_.blocks;
  counts_.tokens += tokens;
  counts_.documents += documents;
}

void StoreWriter::commit(const Bytes& position) {
  blocks_->sync();
  entries_->sync();
  Journal journal{spec_, task_, counts_, position};
  const auto bytes = to_bytes(journal);
  const auto digest = hash_of(bytes);
  replace_file(partial_ / store::journal_name, [&](const File& file) {
    file.write(bytes);
    file.write(std::as_bytes(std::span(digest.bytes)));
  });
}

void StoreWriter::write_index(const StoreSource& source) const {
  const File entries(partial_ / entries_name, File::Mode::read);
  Bytes some(std::size_t{1} << 16);
  const auto all = counts_.blocks * store::entry_bytes;
  const auto each_part = [&](const auto& use) {
    for (std::uint64_t done = 0; done < all;) {
      const auto part = std::span(some).first(std::min<std::uint64_t>(some.size(), all - done));
      if (!entries.read_at(done, part))
        data_error((partial_ / entries_name).string() + ": has become shorter");
      use(part);
      done += part.size();
    }
  };
  Hasher hasher;
  each_part([&](std::span<const std::byte> part) { hasher.update(part); });
  StoreInfo info;
  info.spec = spec_;
  info.source = source;
  info.tokens = counts_.tokens;
  info.documents = counts_.documents;
  info.data_bytes = counts_.bytes;
  info.largest_record = counts_.largest;
  info.entries = hasher.finish();
  replace_file(store_ / store::index_name, [&](const File& file) {
    file.write(store::header_of(info));
    each_part([&](std::span<const std::byte> part) { file.write(part); });
  });
}

void StoreWriter::finish(const StoreSource& source) {
  blocks_->sync();
  write_index(source);
  std::error_code error;
  fs::rename(store_, folder_, error);
  if (error)
    data_error("cannot rename " + store_.string() + " to " + folder_.string() + ": " + error.message());
  sync_folder(folder_.parent_path());
  lock_.reset();
  fs::remove_all(partial_, error);
  if (error) data_error("cannot remove " + partial_.string() + ": " + error.message());
  complete_ = true;
}

WrittenBlocks::WrittenBlocks(const fs::path& folder, const StoreSpec& spec)
    : spec_(spec),
      blocks_(partial_folder(folder) / store_name / store::blocks_name, File::Mode::read),
      entries_(partial_folder(folder) / entries_name, File::Mode::read),
      decoder_(spec) {}

void WrittenBlocks::read(std::uint64_t block, std::span<std::byte> ids) {
  std::array<Entry, 2> both = {};
  const bool is_first = block == 0;
  const auto wanted = std::span(both).subspan(is_first ? 1 : 0);
  if (!entries_.read_at((is_first ? 0 : block - 1) * store::entry_bytes, std::as_writable_bytes(wanted)))
    data_error(entries_.path().string() + ": has become shorter");
  const auto &before = both[0], &entry = both[1];
  const auto refuse = [&](std::string_view why) {
    data_error(fmt::format("{}, offset {}: block {}: {}", blocks_.path().string(), before.end, block, why));
  };
  if (entry.end < before.end || entry.end - before.end > store::max_record_bytes(spec_))
    refuse("its end does not match that of the one before it");
  record_.resize(entry.end - before.end);
  if (!blocks_.read_at(before.end, record_)) refuse("the file has become shorter");
  if (crc32c(record_) != entry.checksum) refuse("it does not match its checksum: the file is damaged");
  if (const auto problem = decoder_.ids(record_, ids); !problem.empty()) refuse(problem);
}

void write_store(const fs::path& folder, const StoreSpec& spec, std::span<const std::uint32_t> ids,
                 std::span<const std::uint64_t> starts) {
  StoreWriter writer(folder, spec, {});
  store::BlockEncoder encoder(spec);
  const auto width = spec.stored_width();
  Bytes block, record;
  std::vector<std::uint32_t> in_block;
  for (std::uint64_t begin = 0; begin < ids.size(); begin += spec.block_tokens) {
    const auto part = ids.subspan(begin, std::min<std::uint64_t>(spec.block_tokens, ids.size() - begin));
    block.resize(part.size() * width);
    for (std::size_t i = 0; i < part.size(); ++i) {
      assert(part[i] < spec.vocab_size);
      std::memcpy(block.data() + i * width, &part[i], width);
    }
    in_block.clear();
    for (; !starts.empty() && starts.front() < begin + part.size(); starts = starts.subspan(1))
      in_block.push_back(static_cast<std::uint32_t>(starts.front() - begin));
    encoder.encode(block, in_block, record);
    writer.append(record, static_cast<std::uint32_t>(part.size()),
                  static_cast<std::uint32_t>(in_block.size()), part.front());
  }
  writer.finish({});
}

}  // namespace isthmus::data
