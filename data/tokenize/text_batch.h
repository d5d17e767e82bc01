#pragma once
// Text on its way to a store's blocks, in batches that a thread tokenises at once.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/data/store.h"
#include "isthmus/data/tokenizer.h"
#include "text/documents.h"

namespace isthmus::data {

/// Some pieces of documents, one after another.
struct TextBatch {
  static constexpr std::size_t usual_bytes = std::size_t{1} << 20;
  struct End {
    std::size_t at;  ///< end of the piece in the text
    bool first, last;
  };
  std::string text;
  std::vector<End> pieces;
  Place end;               ///< the place behind the last piece
  bool resumable = false;  ///< whether reading from there gives the text that follows
};

/// The ids of a TextBatch.
struct TokenBatch {
  Bytes ids;                          ///< in stored_width() bytes each
  std::vector<std::uint32_t> starts;  ///< indexes of ids that begin documents
  Place end;
  bool resumable = false;
};

/// Collects pieces in batches, which depend only on the pieces unless they are passed on early.
class BatchCollector {
 public:
  /// Takes a batch, and leaves an old one, so that its memory is reused. Returns false to stop.
  using Use = std::function<bool(TextBatch&)>;
  explicit BatchCollector(Use use) : use_(std::move(use)) {}

  /// Returns false if `use` asked to stop.
  bool add(const Piece& piece);
  /// Passes on the pieces so far, which were read up to `end`.
  bool pass_on(const Place& end, bool resumable = true);

 private:
  Use use_;
  TextBatch batch_;
};

/// Turns text into ids, in as few bytes as the vocabulary allows. Used by one thread.
class BatchEncoder {
 public:
  /// Both must outlive it.
  BatchEncoder(const Tokenizer& tokenizer, const StoreSpec& spec) : tokenizer_(tokenizer), spec_(spec) {}
  /// Throws Error(data) for an id outside the vocabulary, and what the tokenizer throws.
  void operator()(TextBatch& batch, TokenBatch& out);

 private:
  void append(Bytes& out) const;
  void check() const;

  const Tokenizer& tokenizer_;
  const StoreSpec& spec_;
  std::vector<std::uint32_t> ids_;
};

/// Ids of one block of a store.
struct IdBlock {
  Bytes ids;                          ///< in stored_width() bytes each
  std::vector<std::uint32_t> starts;  ///< indexes of ids that begin documents

  [[nodiscard]] bool full(const StoreSpec& spec) const {
    return ids.size() == std::size_t{spec.block_tokens} * spec.stored_width();
  }
  void clear() {
    ids.clear();
    starts.clear();
  }
  /// Takes ids of the batch from index `at` on, as many as there is room for; returns their number.
  std::size_t take(const TokenBatch& batch, std::size_t at, const StoreSpec& spec);
};

/// Whether text that is not UTF-8 is a bad document. With `bytes` each byte is an id; all other tokenizers
/// interpret characters.
[[nodiscard]] inline bool reads_utf8(const std::string& tokenizer) { return tokenizer != "bytes"; }

}  // namespace isthmus::data
