#pragma once
// Text on its way to a store's blocks, in parts that a thread tokenises at once.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "documents.h"
#include "isthmus/base/archive.h"
#include "isthmus/data/store.h"
#include "isthmus/data/tokenizer.h"

namespace isthmus::data {

/// Some pieces of documents, one behind the other.
struct TextBatch {
  static constexpr std::size_t usual_bytes = std::size_t{1} << 20;
  struct End {
    std::size_t at;  ///< in the text
    bool first, last;
  };
  std::string text;
  std::vector<End> pieces;
  Place end;               ///< of the last of them
  bool resumable = false;  ///< whether reading on from there gives what follows
};

/// What became of a batch.
struct TokenBatch {
  Bytes ids;                          ///< in stored_width() bytes each
  std::vector<std::uint32_t> starts;  ///< of documents among them
  Place end;
  bool resumable = false;
};

/// Pieces to batches, which depend on the pieces alone unless they are passed on early.
class BatchCollector {
 public:
  /// Leaves a batch whose memory is used again, and returns false where no more is wanted.
  using Use = std::function<bool(TextBatch&)>;
  explicit BatchCollector(Use use) : use_(std::move(use)) {}

  /// False where no more is wanted.
  bool add(const Piece& piece);
  /// What there is so far, read up to `end`.
  bool pass_on(const Place& end, bool resumable = true);

 private:
  Use use_;
  TextBatch batch_;
};

/// One thread's: text to ids, as few bytes wide as the vocabulary allows.
class BatchEncoder {
 public:
  /// Both outlive it.
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
  std::vector<std::uint32_t> starts;  ///< of documents among them

  [[nodiscard]] bool full(const StoreSpec& spec) const {
    return ids.size() == std::size_t{spec.block_tokens} * spec.stored_width();
  }
  void clear() {
    ids.clear();
    starts.clear();
  }
  /// Takes ids of the batch from number `at` on, as many as there is room for; how many.
  std::size_t take(const TokenBatch& batch, std::size_t at, const StoreSpec& spec);
};

/// Whether text that is not UTF-8 is a bad document: each byte is an id of its own for `bytes`; all others
/// take text for what it means.
[[nodiscard]] inline bool reads_utf8(const std::string& tokenizer) { return tokenizer != "bytes"; }

}  // namespace isthmus::data
