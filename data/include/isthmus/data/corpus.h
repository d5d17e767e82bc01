#pragma once
// A corpus: tokens in one array, split into a training and a held-out part.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/data/config.h"
#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

enum class Split : std::uint8_t { train, heldout };

/// `data.path` is one of
/// - a text file: one document. The held-out part is its tail.
/// - a folder: every regular file below it is a document. Names that start with a dot are left out; links are
///   followed, each real folder once. Documents stand in the byte order of their relative paths, so the same
///   folder is the same corpus everywhere. Held out are whole documents, chosen by a hash of their relative
///   path.
/// - a .bin file, nanoGPT's format: token ids as little-endian uint16, nothing else. It is mapped, not read,
///   and its ids are checked when they are used. The held-out part is its tail.
///
/// A held-out tail is at least one window, so that a small corpus can be evaluated too. Text is read up to
/// `data.max_bytes`, and a separator follows each document.
/// Immutable once made; every function may be called from any thread.
class Corpus {
 public:
  /// Throws Error(data) naming the file and what to do if the corpus is missing, unreadable, empty, or
  /// shorter than one window of seq_len + 1 tokens in either part; Error(config) for the tokenizer.
  explicit Corpus(const DataConfig& config);
  ~Corpus();
  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;

  [[nodiscard]] const Tokenizer& tokenizer() const;
  [[nodiscard]] std::uint32_t vocab_size() const { return tokenizer().vocab_size(); }
  /// Number of tokens in one part.
  [[nodiscard]] std::uint64_t tokens(Split split) const;
  /// Copies the tokens [begin, begin + out.size()) of one part. Throws Error(data) naming file, offset and id
  /// for an id outside the vocabulary.
  void read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const;

  /// Of names and contents. A .bin file over 256 MiB is hashed at 256 evenly spaced places.
  [[nodiscard]] const Digest& fingerprint() const;
  [[nodiscard]] Digest tokenizer_fingerprint() const { return tokenizer().fingerprint(); }
  /// Sentences for the user, for example that `data.max_bytes` cut the corpus.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Contents;
  std::unique_ptr<const Contents> contents_;
};

}  // namespace isthmus::data
