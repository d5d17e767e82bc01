#include "objects/folder_store.h"

#include <algorithm>
#include <system_error>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/walk.h"

namespace isthmus {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t copied_piece = std::uint64_t{1} << 20;

}  // namespace

fs::path FolderStore::path(const std::string& key) const {
  const fs::path relative(key);
  const bool inside = !key.empty() && relative.is_relative() &&
                      std::ranges::none_of(relative, [](const auto& part) { return part == ".."; });
  if (!inside) config_error("'" + key + "' is no name of an object; expected a relative path without '..'");
  return folder_ / relative;
}

std::string FolderStore::name(const std::string& key) const { return (folder_ / key).string(); }

void FolderStore::put(const std::string& key, std::span<const std::byte> bytes) {
  const auto file = path(key);
  std::error_code failed;  // replace_file reports it
  fs::create_directories(file.parent_path(), failed);
  replace_file(file, [&](const File& out) { out.write(bytes); });
}

bool FolderStore::put_file(const std::string& key, const fs::path& file, const Stopped& stopped) {
  const auto target = path(key);
  std::error_code failed;  // replace_file reports it
  fs::create_directories(target.parent_path(), failed);
  const File in(file, File::Mode::read);
  struct GaveUp {};
  try {
    replace_file(target, [&](const File& out) {
      Bytes memory(copied_piece);
      for (auto left = in.size(); left > 0;) {
        if (stopped()) throw GaveUp();
        const auto piece = std::span(memory).first(std::min(left, copied_piece));
        if (!in.read(piece)) data_error(file.string() + " became shorter while it was copied");
        out.write(piece);
        left -= piece.size();
      }
    });
  } catch (const GaveUp&) {
    return false;
  }
  return true;
}

std::optional<Bytes> FolderStore::get(const std::string& key, std::uint64_t offset, std::uint64_t most) {
  const auto file = path(key);
  std::optional<File> in;
  try {
    in.emplace(file, File::Mode::read);
  } catch (const Error&) {
    if (!may_be_there(file)) return std::nullopt;
    throw;
  }
  const auto size = in->size();
  if (offset >= size) return Bytes();
  Bytes bytes(std::min(most, size - offset));
  if (!in->read_at(offset, bytes)) data_error(file.string() + " became shorter while it was read");
  return bytes;
}

std::vector<ObjectEntry> FolderStore::list(const std::string& prefix) {
  std::vector<ObjectEntry> found;
  // Only the folder that the prefix names: a shared folder may hold much else.
  const auto slash = prefix.rfind('/');
  const auto below = slash == std::string::npos ? folder_ : path(prefix.substr(0, slash));
  const auto failed = walk_below(below, [&](const fs::directory_entry& entry) {
    std::error_code gone;  // another machine may remove a file at any time
    if (!entry.is_regular_file(gone) || entry.path().extension() == partial_suffix) return;
    auto key = entry.path().lexically_relative(folder_).generic_string();
    const auto size = entry.file_size(gone);
    if (!gone && key.starts_with(prefix)) found.push_back({std::move(key), size});
  });
  if (failed && failed != std::errc::no_such_file_or_directory)
    data_error(below.string() + " cannot be listed: " + failed.message());
  std::ranges::sort(found, {}, &ObjectEntry::key);
  return found;
}

void FolderStore::remove(const std::string& key) { remove_file(path(key)); }

}  // namespace isthmus
