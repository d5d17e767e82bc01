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

#include "isthmus/base/file.h"

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

/// A file of anybody's. Nothing is allocated that it is not long enough for, and no header is believed that
/// does not describe all of the data, each byte once.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string name, dtype;
    std::vector<std::int64_t> shape;  ///< row-major; up to 8 extents
    std::uint64_t begin = 0;          ///< of its data, in bytes of all data
    std::uint64_t elements = 0;
  };

  /// Reads the header. Throws Error(data) naming the file, the tensor and what was expected.
  explicit SafetensorsFile(const std::filesystem::path& file);

  /// In the order of their data.
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  /// Fills `out`, which is as long as the tensor has elements, from F32, F16 or BF16. Throws Error(data) for
  /// another dtype and for a value that is not finite.
  void read(const Tensor& tensor, std::span<float> out) const;
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  [[nodiscard]] std::string header_text();

  File file_;
  std::uint64_t data_begin_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace isthmus::outer_sync::log
