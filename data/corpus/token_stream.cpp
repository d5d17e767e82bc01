#include "corpus/token_stream.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "isthmus/base/error.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t waiting_batches = 2;
constexpr auto commit_every = 5s;
/// Report that training waits once it has waited this long since the last report, but not more often than
/// this:
constexpr double worth_saying = 5;
constexpr auto say_every = 60s;

DocumentFormat format_of(const DataConfig& config) {
  return config.format == "text" ? DocumentFormat::text : DocumentFormat::jsonl;
}

StoreSpec spec_of(const Tokenizer& tokenizer) {
  StoreSpec spec;
  spec.vocab_size = tokenizer.vocab_size();
  spec.separator = tokenizer.separator();
  spec.tokenizer = tokenizer.fingerprint();
  check(spec);
  return spec;
}

std::optional<Fault> fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return Fault{error.kind(), error.what()};
  } catch (const std::exception& error) {
    return Fault{ErrorKind::data, error.what()};
  }
  return {};
}

/// "12.3 s".
std::string seconds_text(double value) {
  const auto tenths = static_cast<std::uint64_t>(10 * value);
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace

TokenStream::TokenStream(const DataConfig& config, const Tokenizer& tokenizer, const StreamOptions& options)
    : spec_(spec_of(tokenizer)),
      options_(options),
      format_(format_of(config)),
      bad_(config.on_bad == "skip" ? BadDocuments::Policy::skip : BadDocuments::Policy::fail),
      input_({config.path, options.reader, options.say}),
      window_(static_cast<std::uint64_t>(config.seq_len) + 1),
      last_commit_(Clock::now()),
      told_(Clock::now() - say_every) {
  document_options_.text_field = config.text_field;
  document_options_.require_utf8 = reads_utf8(config.tokenizer);
  open_writer(config);
  if (!ended()) start(config, tokenizer);
  take_heldout(options.heldout_tokens);
}

TokenStream::~TokenStream() {
  input_.stop();
  if (tokenising_) tokenising_->stop();
  if (ring_) ring_->stop();
  if (reading_.joinable()) reading_.join();
  if (storing_.joinable()) storing_.join();
  // Lose as little as possible of what was read and not yet trained on.
  static_cast<void>(fault_of([this] { commit(); }));
}

void TokenStream::open_writer(const DataConfig& config) {
  std::error_code ignored;
  const bool complete =
      is_store(options_.store) && !fs::exists(options_.store.string() + partial_suffix, ignored);
  if (!complete) {
    writer_ = std::make_unique<StoreWriter>(
        options_.store, spec_,
        StoreWriter::Task{{"data.tokenizer", spec_.tokenizer.hex().substr(0, 16)},
                          {"data.format", config.format},
                          {"data.text_field", config.text_field}});
    if (!writer_->was_complete()) return;
    writer_.reset();
  }
  store_ = open_store(options_.store);
  if (store_->info().spec.tokenizer != spec_.tokenizer) {
    data_error(options_.store.string() + ": was made from a stream with another tokenizer, " +
               "fingerprint " + store_->info().spec.tokenizer.hex().substr(0, 16) +
               "; expected that of data.tokenizer, " + spec_.tokenizer.hex().substr(0, 16));
  }
  spec_ = store_->info().spec;
  source_ = store_.get();
  stored_ = store_->tokens();
}

void TokenStream::start(const DataConfig& config, const Tokenizer& tokenizer) {
  written_ = writer_->tokens();
  if (writer_->resumed()) resume(*writer_->resumed());
  stored_ = written_ + position_.block.ids.size() / spec_.stored_width();
  to_pass_over_ = position_.passed;
  encoder_ = std::make_unique<store::BlockEncoder>(spec_);
  ring_ = std::make_unique<IdRing>(std::max(options_.buffer_tokens, window_), spec_.width(), written_);
  tokenising_ = std::make_unique<OrderedStage<TextBatch, TokenBatch>>(
      static_cast<std::size_t>(config.threads), waiting_batches, [&] {
        return [encoder = BatchEncoder(tokenizer, spec_)](TextBatch& batch, TokenBatch& out) mutable {
          encoder(batch, out);
        };
      });
  reading_ = std::jthread([this] {
    pthread_setname_np(pthread_self(), "stream_read");
    tokenising_->close(fault_of([this] { read_all(); }));
  });
  storing_ = std::jthread([this] {
    pthread_setname_np(pthread_self(), "stream_store");
    ring_->close(fault_of([this] { store_all(); }));
  });
}

void TokenStream::resume(const Bytes& position) {
  written_blocks_ = std::make_unique<WrittenBlocks>(options_.store, spec_);
  position_ = from_bytes<Position>(position);
  committed_ = position_.place;
  const auto& block = position_.block;
  const auto ids = block.ids.size() / spec_.stored_width();
  const bool sound = block.ids.size() % spec_.stored_width() == 0 && ids <= spec_.block_tokens &&
                     std::is_sorted(block.starts.begin(), block.starts.end()) &&
                     (block.starts.empty() || block.starts.back() < ids);
  if (!sound) {
    data_error(options_.store.string() + partial_suffix +
               ": its journal does not belong to a stream; remove the folder to start over");
  }
}

// ---- the stream ----

void TokenStream::read_all() {
  BatchCollector batches([this](TextBatch& batch) { return tokenising_->push(batch); });
  try {
    end_ = for_each_document(
        input_, format_, document_options_, bad_, position_.place,
        [&](const Piece& piece) { return batches.add(piece); },
        [&](const Place& place) { static_cast<void>(batches.pass_on(place)); });
  } catch (const Error&) {
    batches.pass_on({}, false);  // what came before the error is sound
    throw;
  }
  if (!input_.stopped()) batches.pass_on(end_);
}

void TokenStream::store_all() {
  if (!give(position_.block.ids)) return;
  {
    // A block that could not be written before the interruption.
    const std::lock_guard lock(mutex_);
    if (position_.block.full(spec_)) append_block();
  }
  TokenBatch batch;
  while (tokenising_->pop(batch)) {
    store(batch);
    if (Clock::now() - last_commit_ >= commit_every) commit();
  }
  if (!input_.stopped()) finish();
}

void TokenStream::store(const TokenBatch& batch) {
  const auto width = spec_.stored_width();
  const auto count = batch.ids.size() / width;
  const auto known = std::min<std::uint64_t>(count, to_pass_over_);
  to_pass_over_ -= known;  // batches may end at other ids than before the interruption
  {
    const std::lock_guard lock(mutex_);
    for (auto at = known; at < count;) {
      const auto taken = position_.block.take(batch, at, spec_);
      at += taken;
      position_.passed += taken;  // consistent even if the next line throws
      if (position_.block.full(spec_)) append_block();
    }
    if (batch.resumable) {
      position_.place = batch.end;
      position_.passed = to_pass_over_;
    }
  }
  static_cast<void>(give(std::span(batch.ids).subspan(known * width)));
}

void TokenStream::append_block() {
  auto& block = position_.block;
  encoder_->encode(block.ids, block.starts, record_);
  std::uint32_t first = 0;
  std::memcpy(&first, block.ids.data(), spec_.stored_width());
  writer_->append(record_, static_cast<std::uint32_t>(block.ids.size() / spec_.stored_width()),
                  static_cast<std::uint32_t>(block.starts.size()), first);
  block.clear();
}

bool TokenStream::give(std::span<const std::byte> ids) {
  const auto from = spec_.stored_width(), to = spec_.width();
  if (from == to) return ring_->push(ids);
  widened_.resize(ids.size() / from * to);
  std::fill(widened_.begin(), widened_.end(), std::byte{0});
  for (std::size_t i = 0; i < ids.size() / from; ++i)
    std::memcpy(widened_.data() + i * to, ids.data() + i * from, from);
  return ring_->push(widened_);
}

void TokenStream::finish() {
  const std::lock_guard lock(mutex_);
  if (!position_.block.ids.empty()) append_block();
  if (writer_->tokens() == 0) {
    data_error(fmt::format("data.path {}: has ended without a usable document ({} empty, {} bad)",
                           input_.path(), end_.empty, end_.bad));
  }
  writer_->finish({end_.bytes, end_.empty, end_.bad});
  writer_.reset();
  store_ = open_store(options_.store);
  source_ = store_.get();
  options_.say(
      fmt::format("data.path {}: the stream has ended after {} documents, {} ids; training continues over {}",
                  input_.path(), store_->info().documents, store_->tokens(), options_.store.string()));
}

void TokenStream::commit() {
  const std::lock_guard lock(mutex_);
  if (!writer_ || (committed_ == position_.place && position_.passed == 0)) return;
  writer_->commit(to_bytes(position_));
  committed_ = position_.place;
  last_commit_ = Clock::now();
}

// ---- ids for training ----

void TokenStream::take_heldout(std::uint64_t wanted) {
  if (wanted == 0) return;
  const auto width = spec_.width();
  const std::stop_token never;
  const auto more = [&](std::uint64_t count) {
    heldout_.resize((heldout_tokens_ + count) * width);
    const auto got = take_any(heldout_tokens_, count, heldout_.data() + heldout_tokens_ * width, never);
    heldout_tokens_ += got;
    if (got == count) return;
    data_error(
        fmt::format("data.path {}: the stream has ended after {} ids, but the held-out part has {}: "
                    "use a longer stream, fewer run.eval_sequences or data.heldout 0",
                    input_.path(), heldout_tokens_, wanted));
  };
  while (heldout_tokens_ < wanted) more(std::min(window_, wanted - heldout_tokens_));
  while (heldout_tokens_ < 2 * wanted &&
         id_at(heldout_.data(), width, heldout_tokens_ - 1) != spec_.separator)
    more(1);
}

std::uint64_t TokenStream::take_any(std::uint64_t begin, std::uint64_t count, std::byte* out,
                                    const std::stop_token& stop) {
  if (!ring_) {
    const auto there = std::min(count, store_->tokens() - std::min(store_->tokens(), begin));
    if (there > 0) store_->read(begin, there, out);
    return there;
  }
  const auto done = take_written(begin, count, out);
  if (done == count) return done;
  const auto got = ring_->read(begin + done, count - done, out + done * spec_.width(), stop,
                               [this](std::chrono::duration<double> waited) { note_wait(waited); });
  came_ = std::max(came_, begin + done + got);
  return done + got;
}

/// Reads ids that were in the store at the start.
std::uint64_t TokenStream::take_written(std::uint64_t begin, std::uint64_t count, std::byte* out) {
  std::uint64_t done = 0;
  while (done < count && begin + done < written_) {
    const auto block = (begin + done) / spec_.block_tokens, first = (begin + done) % spec_.block_tokens;
    if (held_ != block) {
      block_.resize(std::size_t{spec_.block_tokens} * spec_.width());
      held_.reset();
      written_blocks_->read(block, block_);
      held_ = block;
    }
    const auto part = std::min(count - done, spec_.block_tokens - first);
    std::memcpy(out + done * spec_.width(), block_.data() + first * spec_.width(), part * spec_.width());
    done += part;
  }
  return done;
}

void TokenStream::note_wait(std::chrono::duration<double> waited) {
  waited_ += waited.count();
  const auto now = Clock::now();
  if (waited_ < worth_saying || now - told_ < say_every) return;
  options_.say(fmt::format(
      "data.path {}: training waits for the stream, {} since the last such message; {} ids have arrived",
      input_.path(), seconds_text(waited_), came_));
  waited_ = 0;
  told_ = now;
}

// ---- the store ----

std::uint64_t TokenStream::tokens() const {
  const auto* source = source_.load();
  return source == nullptr ? heldout_tokens_ : source->tokens();
}

void TokenStream::read(std::uint64_t begin, std::uint64_t count, std::byte* out) const {
  if (const auto* source = source_.load()) return source->read(begin, count, out);
  assert(begin <= heldout_tokens_ && count <= heldout_tokens_ - begin);
  std::memcpy(out, heldout_.data() + begin * spec_.width(), count * spec_.width());
}

std::string TokenStream::place(std::uint64_t token) const {
  const auto* source = source_.load();
  return source == nullptr ? fmt::format("{}, id {}", input_.path(), token) : source->place(token);
}

Digest TokenStream::fingerprint() const {
  return Hasher().update("stream").update(spec_.tokenizer.hex()).finish();
}

}  // namespace isthmus::data
