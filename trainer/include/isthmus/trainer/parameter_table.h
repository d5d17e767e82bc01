#pragma once
// Where every tensor of a model lies in the flat parameter buffer, and how that buffer is cut into fragments.
//
// Order: fragment by fragment; inside a fragment all matrices, then all vectors (the norms' weights, and
// biases), so that weight decay acts on a range. A tied head has no entry: it is the embedding.
//   P = 1               one fragment.
//   1 < P <= layers + 1 layer l goes to fragment l mod (P - 1), which strides the layers (arXiv 2501.18512,
//   section
//                       3.1); embeddings, head and the final norm are the last fragment. Starts are multiples
//                       of 64 elements, the padding between is zero and belongs to no fragment.
//   P > layers + 1      one order as for P = 1, cut evenly into P ranges at element borders, without padding.
// Names and shapes are those of Llama's and GPT-2's checkpoints in Hugging Face's layout. Of Llama's, q, k
// and v of a layer follow each other, so do gate and up: the model multiplies by each group as one wide
// matrix. A LayerNorm's weight and bias follow each other too.

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

/// How a tensor starts: a matrix normal, one that writes to the residual stream normal and narrower, a norm's
/// weight 1, a bias 0.
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
  /// Where weight decay acts: the matrices.
  [[nodiscard]] std::span<const outer_sync::Range> decay_ranges() const { return decay_ranges_; }
  [[nodiscard]] std::uint64_t buffer_size() const { return layout_.buffer_size(); }
  [[nodiscard]] std::uint64_t parameters() const { return layout_.parameters(); }

  /// Digest of the model's settings and of all names, shapes and ranges: equal exactly if a buffer of one
  /// fits the other.
  [[nodiscard]] Digest fingerprint() const;
  /// The same in a line for people: "4 layers, dim 128, ..., vocabulary 256; 3 fragments of 0.4 M, ...
  /// parameters".
  [[nodiscard]] std::string description() const;

 private:
  struct Builder;
  ModelShape model_;
  std::vector<TensorEntry> tensors_;
  std::vector<outer_sync::Range> decay_ranges_;
  outer_sync::FragmentLayout layout_;
};

/// Names, shapes and places alone.
[[nodiscard]] std::vector<outer_sync::log::LoggedTensor> logged_tensors(const ParameterTable& table);

/// Initial values of the whole buffer, a pure function of table and seed and the same bits on every machine.
/// Normals are the sum of twelve uniforms of 21 bits, minus six (Irwin-Hall: mean 0, variance 1, cut at 6),
/// summed as integers and rounded once: no logarithm or cosine whose last bit depends on the C library. Each
/// tensor's numbers are a stream of its name, so they do not depend on P.
[[nodiscard]] std::vector<float> initial_parameters(const ParameterTable& table, std::uint64_t seed);

}  // namespace isthmus::trainer
