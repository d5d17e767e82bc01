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

/// Bytes of an id wherever ids are held or handed over: 2 where the vocabulary allows, else 4.
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
  /// The id that stands after every document.
  [[nodiscard]] virtual std::uint32_t separator() const = 0;
  /// Of what decides the ids: equal where the same kind and, for SentencePiece, the same model file is used;
  /// for a tokenizer.json of the vocabulary, merges, patterns and added tokens, however the file spells them.
  [[nodiscard]] virtual Digest fingerprint() const = 0;
};

/// `name` is one of
/// - "bytes": 256 ids, one for each byte. Byte 0 separates documents, since text does not hold it.
/// - "vocab:N": N ids (2 to 2^32 - 1) whose meaning is known elsewhere, for files that hold ids already. The
///   separator is 0, encode throws Error(data), decode writes the ids as numbers.
/// - a file whose name ends in ".json": a Hugging Face tokenizer.json of byte-level BPE, as GPT-2, Llama 3,
/// Qwen and
///   DeepSeek have it. Ids are those of the `tokenizers` package with add_special_tokens=False; what is not
///   supported is refused by name, never encoded otherwise. Added tokens, special ones too, are found in
///   text. The separator is the first that is there of the added tokens <|endoftext|>, <|end_of_text|>, </s>,
///   <|eos|>, <eos>, <｜end▁of▁sentence｜>, [EOS]. vocab_size() is the highest id + 1; an id below it that no
///   token has is decoded to nothing. Bytes that are no UTF-8, which the package cannot take, are a token
///   each, and text ends before them and begins behind them. Without a normalizer, add_prefix_space, lstrip
///   and rstrip, decoding gives the bytes of any text back. encode() takes time n log n whatever the text is,
///   and throws Error(data) when a pattern takes more steps than any sane one.
/// - a SentencePiece model file. The separator is its end-of-sentence id, or the unknown id if it has none.
///   Usual models take a line's end for a space, so lines are lost.
///
/// For all but "bytes" the end of a text is a border between words, so ids of text in pieces may differ from
/// those of the whole next to where it was cut.
///
/// Throws Error(config) for a file that is missing or is none of these, naming it, and for a tokenizer.json
/// the place in it, the value there and what was expected.
[[nodiscard]] std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name);

}  // namespace isthmus::data
