#pragma once
// Text to token ids and back.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::data {

/// Immutable; every function may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Ids are 0 .. vocab_size() - 1.
  [[nodiscard]] virtual std::uint32_t vocab_size() const = 0;
  /// Appends the ids of `text` to `out`.
  virtual void encode(std::string_view text, std::vector<std::uint32_t>& out) const = 0;
  /// Throws Error(data) for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::uint32_t> ids) const = 0;
  /// The id that stands after every document.
  [[nodiscard]] virtual std::uint32_t separator() const = 0;
  /// Of what decides the ids: equal where the same kind and, for SentencePiece, the same model file is used.
  [[nodiscard]] virtual Digest fingerprint() const = 0;
};

/// `name` is one of
/// - "bytes": 256 ids, one for each byte. Byte 0 separates documents, since text does not hold it.
/// - "vocab:N": N ids (2 to 2^32 - 1) whose meaning is known elsewhere, for files that hold ids already. The
///   separator is 0, encode throws Error(data), decode writes the ids as numbers.
/// - a SentencePiece model file. The separator is its end-of-sentence id, or the unknown id if it has none.
///   Usual models take a line's end for a space, so lines are lost.
///
/// Throws Error(config) for a file that is missing or is not a SentencePiece model, naming it.
[[nodiscard]] std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name);

}  // namespace isthmus::data
