#pragma once
// Parameters in the safetensors format (https://github.com/huggingface/safetensors): u64 length of the
// header, little-endian; the header, JSON, filled up with spaces to a multiple of 8 bytes; the tensors' data
// without gaps.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace isthmus::outer_sync::log {

struct TensorView {
  std::string name;                 ///< each once; printable ASCII
  std::vector<std::int64_t> shape;  ///< row-major
  std::span<const float> values;
};

/// Writes the file whole or not at all. Metadata gets "format": "pt", which readers of model files ask for.
/// Throws Error(data) for two tensors of one name and when the file cannot be written.
void write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace isthmus::outer_sync::log
