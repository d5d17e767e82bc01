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

/// Bytes of an id in token buffers and batches: 2 if the vocabulary allows, else 4.
[[nodiscard]] constexpr std::uint32_t id_width(std::uint32_t vocab_size) {
  return vocab_size <= 65536 ? 2 : 4;
}

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
  /// The token in its file's spelling, also if it decodes to nothing, like </s>. Throws as decode does.
  [[nodiscard]] virtual std::string spelling(std::uint32_t id) const { return decode(std::span(&id, 1)); }
  /// The id that follows every document.
  [[nodiscard]] virtual std::uint32_t separator() const = 0;
  /// Covers everything that decides ids: the kind of tokenizer and its size, a SentencePiece model's file, or
  /// a tokenizer.json's vocabulary, merges, patterns and added tokens, however the file spells them.
  [[nodiscard]] virtual Digest fingerprint() const = 0;
};

/// `name` is one of
/// - "bytes": 256 ids, one for each byte. Byte 0 separates documents, since text does not contain it.
/// - "vocab:N": N ids (2 to 2^32 - 1) of unknown meaning, for files that already hold ids. The separator is
///   0; encode throws Error(data), decode writes the ids as numbers.
/// - a file named "*.json": a Hugging Face tokenizer.json with byte-level BPE, as used by GPT-2, Llama 3,
///   Qwen and DeepSeek. Ids are those of the `tokenizers` package with add_special_tokens=False; unsupported
///   features are rejected by name. Added tokens, also special ones, are found in text. The separator is the
///   first of these added tokens that the file has: <|endoftext|>, <|end_of_text|>, </s>, <|eos|>, <eos>,
///   <｜end▁of▁sentence｜>, [EOS]. vocab_size() is the highest id + 1; an unused id below it decodes to
///   nothing. Bytes that are not UTF-8 (the package rejects them) become one token each and split the text.
///   Decoding restores any text's bytes, unless there is a normalizer, add_prefix_space, lstrip or rstrip.
///   encode() takes time n log n for any text, and throws Error(data) when a pattern takes more steps than
///   any sensible one.
/// - a SentencePiece model file. The separator is its end-of-sentence id, or the unknown id if it has none.
///   Most models turn line ends into spaces, so lines are lost.
///
/// For all but "bytes" the end of a text is a word border, so ids of a text in pieces may differ from those
/// of the whole text near the cuts.
///
/// Throws Error(config) naming the file if it is missing or none of these; for a tokenizer.json also the
/// place in it, the value there and what was expected.
[[nodiscard]] std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name);

}  // namespace isthmus::data
