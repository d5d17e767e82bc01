#pragma once
// A live stream of documents as a data set: what is read is tokenised, put into a chunk store and given to
// training in the order in which it came, all at once.
//
//   thread stream_read     stream -> documents -> batches of text
//   data.threads threads   text -> ids
//   thread stream_store    ids -> blocks -> store, and a ring that training reads from
//
// Each waits for the next one: a stream is read no faster than training goes on, but for what the ring holds.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "block_codec.h"
#include "documents.h"
#include "id_ring.h"
#include "isthmus/data/corpus.h"
#include "live_input.h"
#include "ordered_stage.h"
#include "store_reader.h"
#include "store_writer.h"
#include "text_batch.h"
#include "token_source.h"

namespace isthmus::data {

/// The held-out part is the begin of the stream, on to a document's end where one is near enough that it is
/// not twice as much. As a TokenSource it has all ids once the stream has ended, and the held-out ones
/// before.
class TokenStream : public TokenSource {
 public:
  /// Waits for the held-out part. Where there is a store already, it goes on with that. Throws Error(data)
  /// where the stream ends before, and what StoreWriter throws. The tokenizer outlives it.
  TokenStream(const DataConfig& config, const Tokenizer& tokenizer, const StreamOptions& options);
  ~TokenStream() override;

  [[nodiscard]] std::uint64_t heldout_tokens() const { return heldout_tokens_; }
  /// Ids for training that were in the store when it was opened.
  [[nodiscard]] std::uint64_t stored_tokens() const { return stored_ - std::min(stored_, heldout_tokens_); }
  /// Whether the stream has ended and is all in the store.
  [[nodiscard]] bool ended() const { return source_.load() != nullptr; }

  /// The ids [begin, begin + count) for training, of one window at most, as soon as they have come, to `out`;
  /// how many of them: fewer where the stream ends before, or a stop was asked for. Ids before `begin` cannot
  /// be had any more. One thread. Throws what went wrong with the stream or the store, behind the last ids
  /// that were sound.
  [[nodiscard]] std::uint64_t take(std::uint64_t begin, std::uint64_t count, std::byte* out,
                                   const std::stop_token& stop) {
    return take_any(heldout_tokens_ + begin, count, out, stop);
  }
  /// Returns when all that take() has given is on disk. Any thread.
  void commit();

  [[nodiscard]] std::uint64_t tokens() const override;
  [[nodiscard]] std::uint32_t width() const override { return spec_.width(); }
  [[nodiscard]] std::uint64_t block_tokens() const override { return spec_.block_tokens; }
  [[nodiscard]] std::uint64_t heldout_begin(std::uint64_t) const override { return 0; }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override;
  [[nodiscard]] std::string place(std::uint64_t token) const override;
  [[nodiscard]] std::optional<std::uint32_t> separator() const override { return spec_.separator; }
  [[nodiscard]] Digest fingerprint() const override;

 private:
  /// From where an interrupted stream goes on: ids behind the last whole block, and what was read up to them.
  struct Position {
    Place place;
    std::uint64_t passed = 0;  ///< ids that reading from there gives once more
    IdBlock block;
    template <class Archive>
    void serialize(Archive& ar) {
      ar(place, passed, block.ids, block.starts);
    }
  };

  void open_writer(const DataConfig& config);
  void resume(const Bytes& position);
  void start(const DataConfig& config, const Tokenizer& tokenizer);
  void read_all();
  void store_all();
  void store(const TokenBatch& batch);
  void append_block();
  void finish();
  [[nodiscard]] bool give(std::span<const std::byte> ids);

  [[nodiscard]] std::uint64_t take_any(std::uint64_t begin, std::uint64_t count, std::byte* out,
                                       const std::stop_token& stop);
  [[nodiscard]] std::uint64_t take_written(std::uint64_t begin, std::uint64_t count, std::byte* out);
  void take_heldout(std::uint64_t wanted);
  void note_wait(std::chrono::duration<double> waited);

  StoreSpec spec_;
  StreamOptions options_;
  DocumentFormat format_;
  DocumentOptions document_options_;
  BadDocuments bad_;
  LiveInput input_;
  std::uint64_t window_;  ///< ids that are taken at once, at most
  Bytes heldout_;
  std::uint64_t heldout_tokens_ = 0, stored_ = 0;

  // Under the lock: what stands in the store.
  std::mutex mutex_;
  std::unique_ptr<StoreWriter> writer_;
  std::unique_ptr<store::BlockEncoder> encoder_;
  Position position_;
  std::optional<Place> committed_;
  std::unique_ptr<const StoreReader> store_;
  std::atomic<const StoreReader*> source_ = nullptr;  ///< that, once it is complete

  // stream_read's and stream_store's.
  Place end_;
  std::uint64_t to_pass_over_ = 0;
  Bytes record_, widened_;
  std::chrono::steady_clock::time_point last_commit_;

  // The reader's.
  std::uint64_t written_ = 0;  ///< ids in blocks that were there at the start
  std::unique_ptr<WrittenBlocks> written_blocks_;
  Bytes block_;
  std::optional<std::uint64_t> held_;  ///< the block that is in there
  std::uint64_t came_ = 0;             ///< ids that were taken
  double waited_ = 0;                  ///< seconds since somebody was told
  std::chrono::steady_clock::time_point told_;

  std::unique_ptr<IdRing> ring_;
  std::unique_ptr<OrderedStage<TextBatch, TokenBatch>> tokenising_;
  std::jthread reading_, storing_;
};

}  // namespace isthmus::data
