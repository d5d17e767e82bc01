#pragma once
// Parameters in the safetensors format (https://github.com/huggingface/safetensors): u64 length of the
// header, little-endian; the header, JSON, padded with spaces to a multiple of 8 bytes; the tensors' data
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
  std::string name;                 ///< unique; printable ASCII
  std::vector<std::int64_t> shape;  ///< row-major
  std::span<const float> values;
};

/// How values are written: as they are, or rounded to the nearest bf16 number, ties to even.
enum class ValueType : std::uint8_t { fp32, bf16 };

/// Writes the file completely or not at all. Adds "format": "pt" to the metadata, which readers of model
/// files ask for. Throws Error(data) if two tensors have the same name or the file cannot be written.
void write_safetensors(const std::filesystem::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, ValueType type = ValueType::fp32);

/// Reads an untrusted file. Allocates no more than the file's size, and accepts only headers that describe
/// each byte of the data exactly once.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string name, dtype;
    std::vector<std::int64_t> shape;  ///< row-major; up to 8 extents
    std::uint64_t begin = 0;          ///< of its data, in bytes from the beginning of all data
    std::uint64_t elements = 0;
  };

  /// Reads the header. Throws Error(data) naming the file, the tensor and what was expected.
  explicit SafetensorsFile(const std::filesystem::path& file);

  /// In the order of their data.
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }
  /// The texts of the metadata.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Reads an F32, F16 or BF16 tensor into `out`, which must have its number of elements. Throws Error(data)
  /// for another dtype and for a value that is not finite.
  void read(const Tensor& tensor, std::span<float> out) const;
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  [[noreturn]] void refuse(const std::string& reason) const;
  [[nodiscard]] std::string header_text();

  File file_;
  std::uint64_t data_begin_ = 0;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace isthmus::outer_sync::log
