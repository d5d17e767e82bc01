#pragma once
// A corpus: one data set, or several with weights, each split into a training and a held-out part.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/data/config.h"
#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

class TokenSource;
class TokenStream;

enum class Split : std::uint8_t { train, heldout };

/// One data set of a corpus. Immutable; every function may be called from any thread.
class DataSet {
 public:
  /// `source` gives ids below `vocab_size`, of which the ones from `heldout_begin` on are held out.
  DataSet(std::unique_ptr<const TokenSource> source, std::uint32_t vocab_size, std::uint64_t heldout_begin,
          std::string name, double weight);
  /// Of a stream, which is the training part behind its held-out one.
  DataSet(std::unique_ptr<TokenStream> stream, std::uint32_t vocab_size, std::string name);
  ~DataSet();
  DataSet(DataSet&&) noexcept;
  DataSet& operator=(DataSet&&) noexcept;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// The part of all sequences that come from here; the weights of a corpus add up to 1.
  [[nodiscard]] double weight() const { return weight_; }
  /// Number of tokens in one part; 0 in the training part of a stream that has not ended.
  [[nodiscard]] std::uint64_t tokens(Split split) const;
  /// Where they come from as long as it has not ended, if that is a stream.
  [[nodiscard]] TokenStream* stream() const { return stream_; }
  /// How many ids of the training part are best read together; 0 where it is all the same.
  [[nodiscard]] std::uint64_t block_tokens() const;
  [[nodiscard]] Digest fingerprint() const;
  /// The tokens [begin, begin + count) of one part as `width` bytes each, little-endian without a sign (the
  /// corpus' width). Throws Error(data) naming file and offset, and for an id outside the vocabulary.
  void read(Split split, std::uint64_t begin, std::uint64_t count, std::uint32_t width, std::byte* out) const;

 private:
  std::unique_ptr<const TokenSource> source_;
  TokenStream* stream_ = nullptr;  ///< the same, if it is one
  std::uint32_t vocab_size_;
  std::uint64_t heldout_begin_;
  std::string name_;
  double weight_;
};

/// What a stream (`data.source: pipe`) needs to know beside the config.
struct StreamOptions {
  std::filesystem::path store;                  ///< folder of the store that is made of it, or gone on with
  std::string reader;                           ///< who reads it, as the other end of a socket is told
  std::uint64_t heldout_tokens = 0;             ///< at its begin, at least
  std::uint64_t buffer_tokens = 0;              ///< that are read ahead of the loader
  std::function<void(const std::string&)> say;  ///< sentences for the user; any thread
};

/// With `data.source: pipe`, `data.path` is a live stream (docs/data.md). Else it is one of
/// - a text file: one document. The held-out part is its tail.
/// - a JSONL file: a document for each line. The held-out part is its last ones.
/// - a folder of such: every regular file below it. Names that start with a dot are left out; links are
///   followed, each real folder once. Files stand in the byte order of their relative paths, so the same
///   folder is the same corpus everywhere. Held out are whole files, chosen by a hash of their relative path.
/// - a chunk store (docs/data.md).
/// - a .bin file of nanoGPT's or llm.c's, or a folder of nothing else, which is its files in the order of
///   their names; or a Megatron data set, named by its prefix, its .idx or its .bin file.
///
/// Text is read into memory, up to `data.max_bytes`, and a separator follows each document. Ids are read in
/// place, as they are used, and checked then; their held-out part is the tail, from the border of a document
/// on where one can be told. A held-out tail is at least one window, so that a small corpus can be evaluated
/// too. `data.mixture` names several of these with weights. Immutable once made; every function may be called
/// from any thread.
class Corpus {
 public:
  /// Throws Error(data) naming the file and what to do if the corpus is missing, unreadable, empty, or
  /// shorter than one window of seq_len + 1 tokens in either part; Error(config) for the tokenizer and the
  /// mixture.
  explicit Corpus(const DataConfig& config);
  /// Of a stream. Returns when its held-out part is there. Throws like the other.
  Corpus(const DataConfig& config, const StreamOptions& options);
  /// Of a data set that is made otherwise. Throws like the other, but for files.
  Corpus(const DataConfig& config, std::unique_ptr<const TokenSource> source);
  ~Corpus();
  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;

  [[nodiscard]] const Tokenizer& tokenizer() const;
  [[nodiscard]] std::uint32_t vocab_size() const { return tokenizer().vocab_size(); }
  /// What ends a document among its ids; nothing where it is not known.
  [[nodiscard]] std::optional<std::uint32_t> separator() const;
  /// The same where attention is to be bounded by it (`data.document_mask`), else -1.
  [[nodiscard]] std::int64_t mask_separator() const;
  /// Bytes of a token in batches: 2 where the vocabulary allows, else 4.
  [[nodiscard]] std::uint32_t width() const { return id_width(vocab_size()); }
  /// At least one.
  [[nodiscard]] std::span<const DataSet> sets() const;
  /// Number of tokens in one part of all data sets.
  [[nodiscard]] std::uint64_t tokens(Split split) const;
  /// The tokens [begin, begin + out.size()) of one part, data sets one after another.
  void read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const;

  /// Of names and contents; of large files that are read in place, of 256 evenly spaced MiB.
  [[nodiscard]] const Digest& fingerprint() const;
  [[nodiscard]] Digest tokenizer_fingerprint() const { return tokenizer().fingerprint(); }
  /// Of a stream: returns when all that a loader has given is in the store on disk, without which no
  /// checkpoint could be gone on with.
  void commit() const;
  /// Of a stream: how many sequences were in its store when it was opened, as long as it has not ended.
  [[nodiscard]] std::optional<std::uint64_t> stored_sequences(std::int64_t seq_len) const;
  /// Sentences for the user, for example that `data.max_bytes` cut the corpus.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Contents;
  std::unique_ptr<const Contents> contents_;
};

}  // namespace isthmus::data
