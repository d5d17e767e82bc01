#pragma once
// A live stream of documents as a data set: documents are tokenised, put into a chunk store and given to
// training in order of arrival, all at once.
//
//   thread stream_read     stream -> documents -> batches of text
//   data.threads threads   text -> ids
//   thread stream_store    ids -> blocks -> store, and a ring that training reads from
//
// Each stage waits for the next one: the stream is read only as fast as training uses it, plus what the ring
// holds.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "corpus/id_ring.h"
#include "ids/token_source.h"
#include "isthmus/data/corpus.h"
#include "queues/ordered_stage.h"
#include "store/block_codec.h"
#include "store/store_reader.h"
#include "store/store_writer.h"
#include "text/documents.h"
#include "text/live_input.h"
#include "tokenize/text_batch.h"

namespace isthmus::data {

/// The held-out part is the start of the stream, extended to a document's end if that does not double it. As
/// a TokenSource it has all ids once the stream has ended, and the held-out ones before.
class TokenStream : public TokenSource {
 public:
  /// Waits for the held-out part. Continues a store that exists already. Throws Error(data) if the stream
  /// ends before, and what StoreWriter throws. `tokenizer` must outlive it.
  TokenStream(const DataConfig& config, const Tokenizer& tokenizer, const StreamOptions& options);
  ~TokenStream() override;

  [[nodiscard]] std::uint64_t heldout_tokens() const { return heldout_tokens_; }
  /// Ids for training that were in the store when it was opened.
  [[nodiscard]] std::uint64_t stored_tokens() const { return stored_ - std::min(stored_, heldout_tokens_); }
  /// Whether the stream has ended and all of it is in the store.
  [[nodiscard]] bool ended() const { return source_.load() != nullptr; }

  /// Waits for the ids [begin, begin + count) for training, at most one window, and writes them to `out`.
  /// Returns their number: fewer if the stream ends before or a stop was requested. Ids before `begin` are
  /// dropped. One thread. Throws an error of the stream or the store after the last ids that were sound.
  [[nodiscard]] std::uint64_t take(std::uint64_t begin, std::uint64_t count, std::byte* out,
                                   const std::stop_token& stop) {
    return take_any(heldout_tokens_ + begin, count, out, stop);
  }
  /// Returns once everything that take() has returned is on disk. Any thread.
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
  /// Where an interrupted stream continues: the ids behind the last whole block, and how far the stream was
  /// read.
  struct Position {
    Place place;
    std::uint64_t passed = 0;  ///< ids that reading from there returns once more
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
  std::uint64_t window_;  ///< maximum number of ids taken at once
  Bytes heldout_;
  std::uint64_t heldout_tokens_ = 0, stored_ = 0;

  std::mutex mutex_;
  /// The store; guarded by the lock.
  struct Kept {
    std::unique_ptr<StoreWriter> writer;
    std::unique_ptr<store::BlockEncoder> encoder;
    Position position;
    std::optional<Place> committed;
    std::unique_ptr<const StoreReader> store;
  } kept_;
  std::atomic<const StoreReader*> source_ = nullptr;  ///< the store, once it is complete
  /// Used by stream_read and stream_store.
  struct Arriving {
    Place end;
    std::uint64_t to_pass_over = 0;
    Bytes record, widened;
    std::chrono::steady_clock::time_point last_commit;
  } arriving_;
  /// Used by the thread that calls take().
  struct Taken {
    std::uint64_t written = 0;  ///< ids in blocks that were there at the start
    std::unique_ptr<WrittenBlocks> blocks;
    Bytes block;
    std::optional<std::uint64_t> held;  ///< the block that is in `block`
    std::uint64_t came = 0;             ///< ids that have arrived
    double waited = 0;                  ///< seconds since the last message
    std::chrono::steady_clock::time_point told;
  } taken_;

  std::unique_ptr<IdRing> ring_;
  std::unique_ptr<OrderedStage<TextBatch, TokenBatch>> tokenising_;
  std::jthread reading_, storing_;
};

}  // namespace isthmus::data
