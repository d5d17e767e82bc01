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

/// One data set of a corpus. Immutable; every function may be called from any thread. Copies share the ids.
class DataSet {
 public:
  /// `source` provides ids below `vocab_size`; those from index `heldout_begin` on are held out.
  DataSet(std::unique_ptr<const TokenSource> source, std::uint32_t vocab_size, std::uint64_t heldout_begin,
          std::string name, double weight);
  /// A stream: its first tokens are held out, the rest is the training part.
  DataSet(std::unique_ptr<TokenStream> stream, std::uint32_t vocab_size, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Fraction of all sequences that come from this data set; the weights of a corpus add up to 1.
  [[nodiscard]] double weight() const { return weight_; }
  /// Number of tokens in one part. The training part of a stream has 0 until the stream has ended.
  [[nodiscard]] std::uint64_t tokens(Split split) const;
  /// The stream, from which training reads until it has ended; null for any other data set.
  [[nodiscard]] TokenStream* stream() const { return stream_; }
  /// Tokens of a block, which are best read together; 0 if it does not matter what is read together.
  [[nodiscard]] std::uint64_t block_tokens() const;
  [[nodiscard]] Digest fingerprint() const;
  /// Reads the tokens [begin, begin + count) of one part as unsigned little-endian numbers of `width` bytes
  /// (the corpus's width). Throws Error(data) naming file and offset, also for an id outside the vocabulary.
  void read(Split split, std::uint64_t begin, std::uint64_t count, std::uint32_t width, std::byte* out) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  TokenStream* stream_ = nullptr;  ///< source_, if that is a stream
  std::uint32_t vocab_size_;
  std::uint64_t heldout_begin_;
  std::string name_;
  double weight_;
};

/// Settings of a live stream that are not in the config.
struct StreamOptions {
  std::filesystem::path store;                  ///< folder of the stream's store, which is created or
                                                ///< continued
  std::string reader;                           ///< name of this reader, sent to the other end of a socket
  std::uint64_t heldout_tokens = 0;             ///< minimum size of the held-out part, the start of the
                                                ///< stream
  std::uint64_t buffer_tokens = 0;              ///< tokens to read ahead of the loader
  std::function<void(const std::string&)> say;  ///< takes sentences for the user; called on any thread
};

/// A corpus in one of the formats of docs/data.md: a live stream, text or JSONL files,
/// a chunk store, .bin files, a Megatron data set, or a mixture of these. Text is tokenised in memory, up to
/// `data.max_bytes`; ids are read from disk as they are used, and checked then. Held out is data.val_path, or
/// the held-out files of a folder of .bin files, or whole files of a folder of text, else the tail: at least
/// one window, so that a small corpus can be evaluated too. Immutable; every function may be called from any
/// thread.
class Corpus {
 public:
  /// Throws Error(data) naming the file and what to do if the corpus is missing, unreadable or empty, or if
  /// either part is shorter than one window of seq_len + 1 tokens; Error(config) for the tokenizer and the
  /// mixture.
  explicit Corpus(const DataConfig& config);
  /// A stream. Returns once its held-out part has arrived. Throws like the other constructor.
  Corpus(const DataConfig& config, const StreamOptions& options);
  /// A data set that the caller made. Throws like the first constructor, except for files.
  Corpus(const DataConfig& config, std::unique_ptr<const TokenSource> source);
  ~Corpus();
  Corpus(Corpus&&) noexcept;
  Corpus& operator=(Corpus&&) noexcept;

  [[nodiscard]] const Tokenizer& tokenizer() const;
  [[nodiscard]] std::uint32_t vocab_size() const { return tokenizer().vocab_size(); }
  /// The id that ends a document; nullopt if unknown.
  [[nodiscard]] std::optional<std::uint32_t> separator() const;
  /// The separator if it bounds attention (`data.document_mask`), else -1.
  [[nodiscard]] std::int64_t mask_separator() const;
  /// Bytes of a token in batches: 2 if the vocabulary allows, else 4.
  [[nodiscard]] std::uint32_t width() const { return id_width(vocab_size()); }
  /// The data sets that training takes sequences from. At least one.
  [[nodiscard]] std::span<const DataSet> sets() const;
  /// The data sets with the held-out parts, as many as sets(), or data.val_path alone.
  [[nodiscard]] std::span<const DataSet> heldout_sets() const;
  /// Number of tokens in one part of all data sets.
  [[nodiscard]] std::uint64_t tokens(Split split) const;
  /// Reads the tokens [begin, begin + out.size()) of one part of all data sets, one after another.
  void read(Split split, std::uint64_t begin, std::span<std::int64_t> out) const;

  /// Covers names and contents; of large files that are read from disk, 256 evenly spaced MiB.
  [[nodiscard]] const Digest& fingerprint() const;
  [[nodiscard]] Digest tokenizer_fingerprint() const { return tokenizer().fingerprint(); }
  /// For a stream: returns once everything that a loader has provided is in the store on disk, so that a
  /// checkpoint can be resumed from. Does nothing otherwise.
  void commit() const;
  /// For a stream that has not ended: sequences that were in its store when it was opened; otherwise nullopt.
  [[nodiscard]] std::optional<std::uint64_t> stored_sequences(std::int64_t seq_len) const;
  /// Sentences for the user, for example that `data.max_bytes` cut the corpus.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Contents;
  std::unique_ptr<const Contents> contents_;
};

/// Whether `path` is a folder of .bin files of which some are held out by their names.
[[nodiscard]] bool has_heldout_files(const std::string& path);

}  // namespace isthmus::data
