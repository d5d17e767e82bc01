#include "coordinator/records/state_file.h"

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::app {

namespace {

std::filesystem::path state_file(const std::filesystem::path& folder) { return folder / "coordinator.state"; }

outer_sync::protocol::LastView last_view_of(const Bytes& bytes, const std::filesystem::path& path) {
  try {
    return from_bytes<outer_sync::protocol::LastView>(bytes);
  } catch (const Error&) {  // the digest is right, so it is not damaged
    data_error(path.string() +
               " was written by another build; start the coordinator with that build, or with --recover, "
               "which forms the run from its members");
  }
}

}  // namespace

void store_view(const std::filesystem::path& folder, const outer_sync::protocol::LastView& view) {
  const auto bytes = to_bytes(view);
  const auto digest = hash_of(bytes);
  replace_file(state_file(folder), [&](const File& file) {
    file.write(std::as_bytes(std::span(digest.bytes)));
    file.write(bytes);
  });
}

std::optional<outer_sync::protocol::LastView> read_view(const std::filesystem::path& folder) {
  const auto path = state_file(folder);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const File file(path, File::Mode::read);
  Digest digest;
  const auto size = file.size();
  constexpr std::uint64_t max_size = 1 << 20;
  if (size >= digest.bytes.size() && size <= max_size) {
    Bytes bytes(size - digest.bytes.size());
    if (file.read(std::as_writable_bytes(std::span(digest.bytes))) && file.read(bytes) &&
        hash_of(bytes) == digest)
      return last_view_of(bytes, path);
  }
  data_error(path.string() +
             " is damaged; start the coordinator with --recover, which forms the run from "
             "its members");
}

std::optional<outer_sync::protocol::LastView> read_view_if_sound(const std::filesystem::path& folder) {
  try {
    return read_view(folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void remove_view(const std::filesystem::path& folder) { remove_file(state_file(folder)); }

}  // namespace isthmus::app
