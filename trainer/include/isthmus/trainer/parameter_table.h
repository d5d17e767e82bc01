#pragma once
// The place of every tensor of a model in the flat parameter buffer, and how that buffer is divided into
// fragments.
//
// Order: fragment by fragment; inside a fragment all matrices, then all vectors (norm weights and biases), so
// that weight decay acts on a range. A tied head has no entry: it is the embedding.
//   P = 1               one fragment.
//   1 < P <= layers + 1 layer l goes to fragment l mod (P - 1), which strides the layers (arXiv 2501.18512,
//                       section 3.1); embeddings, head and the final norm are the last fragment. Starts are
//                       multiples of 64 elements; the padding between is zero and belongs to no fragment.
//   P > layers + 1      the order of P = 1, divided evenly into P ranges at element borders, without padding.
// Names and shapes are those of Llama's and GPT-2's checkpoints in Hugging Face's layout. Tensors that the
// model uses as one are adjacent: q, k and v of a Llama layer, its gate and up, and a LayerNorm's weight and
// bias.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/trainer/config.h"

namespace isthmus::trainer {

inline constexpr std::uint64_t fragment_alignment = 64;  ///< elements

/// Initial values: normal numbers for matrices, with a smaller deviation if they write to the residual
/// stream; 1 for norms' weights, 0 for biases.
enum class Init : std::uint8_t { normal, residual, one, zero };

struct TensorEntry {
  std::string name;
  std::vector<std::int64_t> shape;  ///< row-major; matrices [out, in], in GPT-2's layers [in, out]
  outer_sync::Range range;          ///< elements of the flat buffer
  Init init = Init::normal;
};

struct ModelShape {
  ModelConfig config;  ///< resolved
  std::int64_t vocab = 0;
};

class ParameterTable {
 public:
  /// `fragments` is P, `chunk_elements` as in FragmentLayout. Throws Error(config) if P is larger than the
  /// number of parameters, naming both.
  ParameterTable(const ModelShape& model, std::int64_t fragments, std::uint64_t chunk_elements);

  [[nodiscard]] const ModelShape& model() const { return model_; }
  [[nodiscard]] std::span<const TensorEntry> tensors() const { return tensors_; }  ///< in buffer order
  /// Throws std::out_of_range for an unknown name.
  [[nodiscard]] const TensorEntry& tensor(const std::string& name) const;
  [[nodiscard]] const outer_sync::FragmentLayout& layout() const { return layout_; }
  /// The ranges that weight decay acts on: the matrices.
  [[nodiscard]] std::span<const outer_sync::Range> decay_ranges() const { return decay_ranges_; }
  [[nodiscard]] std::uint64_t buffer_size() const { return layout_.buffer_size(); }
  [[nodiscard]] std::uint64_t parameters() const { return layout_.parameters(); }

  /// Digest of the model's settings and of all names, shapes and ranges: equal exactly if both tables can use
  /// the same buffer.
  [[nodiscard]] Digest fingerprint() const;
  /// A human-readable description in one line: "4 layers, dim 128, ..., vocabulary 256; 1000000 parameters in
  /// 3 fragments (...)".
  [[nodiscard]] std::string description() const;

 private:
  struct Builder;
  ModelShape model_;
  std::vector<TensorEntry> tensors_;
  std::vector<outer_sync::Range> decay_ranges_;
  outer_sync::FragmentLayout layout_;
};

/// Names, shapes and ranges of the tensors.
[[nodiscard]] std::vector<outer_sync::log::LoggedTensor> logged_tensors(const ParameterTable& table);

/// Initial values of the whole buffer: a pure function of table and seed, with the same bits on every
/// machine. A normal number is the sum of twelve uniforms of 21 bits, minus six (Irwin-Hall: mean 0, variance
/// 1, cut at 6), added as integers and rounded once: no logarithm or cosine of the C library, which differ in
/// the last bit. Each tensor's random stream depends on its name, so values do not depend on P.
[[nodiscard]] std::vector<float> initial_parameters(const ParameterTable& table, std::uint64_t seed);

}  // namespace isthmus::trainer
