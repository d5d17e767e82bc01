#include "isthmus/outer_sync/log/safetensors.h"

#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::outer_sync::log {
namespace {

/// Tensors in the order of their data.
std::string header_of(std::span<const TensorView> tensors, std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const auto end = at + tensor.values.size_bytes();
    if (header.contains(tensor.name))
      throw Error(ErrorKind::data, "safetensors has no place for a second tensor " + tensor.name);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  // Whoever wrote the metadata may have taken it from outside.
  auto text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto header = header_of(tensors, metadata);
  const std::uint64_t length = header.size();
  replace_file(file, [&](const File& out) {
    out.write(std::as_bytes(std::span(&length, 1)));
    out.write(std::as_bytes(std::span(header)));
    for (const auto& tensor : tensors) out.write(std::as_bytes(tensor.values));
  });
}

}  // namespace isthmus::outer_sync::log
