#include "run/objects/stored_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/number.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace fs = std::filesystem;

namespace {

/// A segment that is shorter is replaced by a longer one when the file has grown.
constexpr std::uint64_t full_segment = std::uint64_t{16} << 20;
constexpr std::size_t hash_digits = 16;

std::string hash_text(std::span<const std::byte> bytes) {
  return hash_of(bytes).hex().substr(0, hash_digits);
}

bool is_log_file(const std::string& name) {
  return name == "log.header" || (name.starts_with("fragment_") && name.ends_with(".log"));
}

struct NamedSegment {
  std::string file;
  LogSegment segment;
};

/// nullopt for an object that is no segment.
std::optional<NamedSegment> segment_of(const ObjectEntry& object, const std::string& prefix) {
  const auto rest = std::string_view(object.key).substr(prefix.size());
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  std::string file(rest.substr(0, slash));
  const auto name = rest.substr(slash + 1);
  const auto first = name.find('-'), second = name.rfind('-');
  if (!is_plain_name(file) || !is_log_file(file) || first == std::string_view::npos || first == second)
    return std::nullopt;
  const auto begin = whole_number(name.substr(0, first));
  const auto length = whole_number(name.substr(first + 1, second - first - 1));
  if (!begin || !length || *length != object.size || *length == 0) return std::nullopt;
  return NamedSegment{std::move(file), {*begin, *length, std::string(name.substr(second + 1)), object.key}};
}

/// The log's files in a folder. Others are not touched.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator(folder, no_folder)) {
    std::error_code gone;
    if (entry.is_regular_file(gone) && is_log_file(entry.path().filename().string()))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::map<std::string, StoredLogFile> stored_files(ObjectStore& store, const std::string& prefix) {
  std::map<std::string, StoredLogFile> files;
  for (const auto& object : store.list(prefix)) {
    auto named = segment_of(object, prefix);
    if (!named) continue;
    auto& file = files[named->file];
    file.keys.push_back(object.key);
    auto& known = file.segments[named->segment.begin];
    if (known.length < named->segment.length) known = std::move(named->segment);
  }
  return files;
}

}  // namespace

StoredLog::StoredLog(ObjectStore& store, std::string prefix, fs::path folder)
    : store_(store), prefix_(std::move(prefix)), folder_(std::move(folder)) {}

/// Lists the segments that earlier processes have stored. `copy` compares their bytes.
void StoredLog::learn() {
  files_ = stored_files(store_, prefix_);
  known_ = true;
}

/// Leaves the segments that the file still has, from its start on and without a gap. A file that was
/// truncated or begun anew differs in its first or its last segment; then all are compared.
void StoredLog::forget_other_bytes(const fs::path& file, LogSegments& segments) {
  if (segments.empty()) return;
  const File in(file, File::Mode::read);
  const auto size = in.size();
  const auto is_in_file = [&](const LogSegment& segment) {
    if (segment.begin > size || segment.length > size - segment.begin) return false;
    Bytes bytes(segment.length);
    return in.read_at(segment.begin, bytes) && hash_text(bytes) == segment.hash;
  };
  const bool unchanged = segments.begin()->first == 0 && is_in_file(segments.begin()->second) &&
                         is_in_file(segments.rbegin()->second);
  std::uint64_t end = 0;
  for (auto next = segments.begin(); next != segments.end();) {
    const bool follows = next->first == end && (unchanged || is_in_file(next->second));
    if (!follows) {
      segments.erase(next, segments.end());
      return;
    }
    end += next->second.length;
    ++next;
  }
}

bool StoredLog::copy_file(const fs::path& file, StoredLogFile& stored, const ObjectStore::Stopped& stopped) {
  auto& segments = stored.segments;
  const auto name = file.filename().string();
  forget_other_bytes(file, segments);
  remove_others(stored);  // before others with the same beginning are stored
  const File in(file, File::Mode::read);
  const auto size = in.size();
  while (true) {
    const auto* last = segments.empty() ? nullptr : &segments.rbegin()->second;
    const bool grows = last != nullptr && last->length < full_segment;
    const auto end = last == nullptr ? 0 : last->begin + last->length;
    if (end >= size) return true;
    if (stopped()) return false;
    LogSegment next{.begin = grows ? last->begin : end};
    next.length = std::min(size - next.begin, full_segment);
    Bytes bytes(next.length);
    if (!in.read_at(next.begin, bytes)) return true;  // truncated meanwhile; the next call sees it
    next.hash = hash_text(bytes);
    next.key = fmt::format("{}{}/{:016}-{}-{}", prefix_, name, next.begin, next.length, next.hash);
    store_.put(next.key, bytes);
    stored.keys.push_back(next.key);
    segments[next.begin] = std::move(next);
  }
}

/// Removes the segments that a longer one contains, or that no longer match the file.
void StoredLog::remove_others(StoredLogFile& stored) {
  std::vector<std::string> kept;
  for (auto& key : stored.keys) {
    const auto is_this = [&](const auto& segment) { return segment.second.key == key; };
    if (std::ranges::any_of(stored.segments, is_this)) {
      kept.push_back(key);
    } else {
      store_.remove(key);
    }
  }
  stored.keys = std::move(kept);
}

bool StoredLog::copy(const ObjectStore::Stopped& stopped) {
  if (!known_) learn();
  const auto files = files_in(folder_);
  for (const auto& file : files) {
    try {
      if (!copy_file(file, files_[file.filename().string()], stopped)) return false;
    } catch (const Error&) {
      if (may_be_there(file)) throw;  // otherwise the log has replaced it by a newer one
    }
  }
  // Only now, so that the store has a complete log at any time.
  for (auto next = files_.begin(); next != files_.end();) {
    const bool exists = fs::exists(folder_ / next->first);
    if (!exists) next->second.segments.clear();
    remove_others(next->second);
    next = exists ? std::next(next) : files_.erase(next);
  }
  return true;
}

namespace {

std::uint64_t fetch_file(ObjectStore& store, const LogSegments& segments, const fs::path& file) {
  std::uint64_t end = 0;
  replace_file(file, [&](const File& out) {
    for (const auto& [begin, segment] : segments) {
      if (begin < end) continue;  // an old segment, not removed yet
      if (begin > end)
        data_error(fmt::format("{} begins at byte {}, but its file ends at {}: a segment is missing",
                               store.name(segment.key), segment.begin, end));
      // No segment is larger: its name may lie.
      const auto bytes = store.get(segment.key, 0, std::min(segment.length, full_segment));
      if (!bytes || bytes->size() != segment.length || hash_text(*bytes) != segment.hash)
        data_error(fmt::format("{} is damaged", store.name(segment.key)));
      out.write(*bytes);
      end += segment.length;
    }
  });
  return end;
}

}  // namespace

std::uint64_t fetch_log(ObjectStore& store, const std::string& prefix, const fs::path& folder) {
  const auto files = stored_files(store, prefix);
  if (files.empty()) return 0;
  for (const auto& old : files_in(folder)) remove_file(old);
  std::error_code failed;  // replace_file reports it
  fs::create_directories(folder, failed);
  std::uint64_t sum = 0;
  for (const auto& [name, stored] : files) sum += fetch_file(store, stored.segments, folder / name);
  return sum;
}

}  // namespace isthmus::app
