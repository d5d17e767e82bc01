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

StoreSpec spec_of_tokenizer(const Tokenizer& tokenizer) {
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
    : spec_(spec_of_tokenizer(tokenizer)),
      options_(options),
      format_(format_of(config)),
      bad_(config.on_bad == "skip" ? BadDocuments::Policy::skip : BadDocuments::Policy::fail),
      input_({config.path, options.reader, options.say}),
      window_(static_cast<std::uint64_t>(config.seq_len) + 1) {
  arriving_.last_commit = Clock::now();
  taken_.told = Clock::now() - say_every;
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
    kept_.writer = std::make_unique<StoreWriter>(
        options_.store, spec_,
        StoreWriter::Task{{"data.tokenizer", spec_.tokenizer.hex().substr(0, 16)},
                          {"data.format", config.format},
                          {"data.text_field", config.text_field}});
    if (!kept_.writer->was_complete()) return;
    kept_.writer.reset();
  }
  kept_.store = open_store(options_.store);
  if (kept_.store->info().spec.tokenizer != spec_.tokenizer) {
    data_error(options_.store.string() + ": was made from a stream with another tokenizer, " +
               "fingerprint " + kept_.store->info().spec.tokenizer.hex().substr(0, 16) +
               "; expected that of data.tokenizer, " + spec_.tokenizer.hex().substr(0, 16));
  }
  spec_ = kept_.store->info().spec;
  source_ = kept_.store.get();
  stored_ = kept_.store->tokens();
}

void TokenStream::start(const DataConfig& config, const Tokenizer& tokenizer) {
  taken_.written = kept_.writer->tokens();
  if (kept_.writer->resumed()) resume(*kept_.writer->resumed());
  stored_ = taken_.written + kept_.position.block.ids.size() / spec_.stored_width();
  arriving_.to_pass_over = kept_.position.passed;
  kept_.encoder = std::make_unique<store::BlockEncoder>(spec_);
  ring_ = std::make_unique<IdRing>(std::max(options_.buffer_tokens, window_), spec_.width(), taken_.written);
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
  taken_.blocks = std::make_unique<WrittenBlocks>(options_.store, spec_);
  kept_.position = from_bytes<Position>(position);
  kept_.committed = kept_.position.place;
  const auto& block = kept_.position.block;
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
    arriving_.end = for_each_document(
        input_, format_, document_options_, bad_, kept_.position.place,
        [&](const Piece& piece) { return batches.add(piece); },
        [&](const Place& place) { static_cast<void>(batches.pass_on(place)); });
  } catch (const Error&) {
    batches.pass_on({}, false);  // what came before the error is sound
    throw;
  }
  if (!input_.stopped()) batches.pass_on(arriving_.end);
}

void TokenStream::store_all() {
  if (!give(kept_.position.block.ids)) return;
  {
    // A block that could not be written before the interruption.
    const std::lock_guard lock(mutex_);
    if (kept_.position.block.full(spec_)) append_block();
  }
  TokenBatch batch;
  while (tokenising_->pop(batch)) {
    store(batch);
    if (Clock::now() - arriving_.last_commit >= commit_every) commit();
  }
  if (!input_.stopped()) finish();
}

void TokenStream::store(const TokenBatch& batch) {
  const auto width = spec_.stored_width();
  const auto count = batch.ids.size() / width;
  const auto known = std::min<std::uint64_t>(count, arriving_.to_pass_over);
  arriving_.to_pass_over -= known;  // batches may end at other ids than before the interruption
  {
    const std::lock_guard lock(mutex_);
    for (auto at = known; at < count;) {
      const auto taken = kept_.position.block.take(batch, at, spec_);
      at += taken;
      kept_.position.passed += taken;  // consistent even if the next line throws
      if (kept_.position.block.full(spec_)) append_block();
    }
    if (batch.resumable) {
      kept_.position.place = batch.end;
      kept_.position.passed = arriving_.to_pass_over;
    }
  }
  static_cast<void>(give(std::span(batch.ids).subspan(known * width)));
}

void TokenStream::append_block() {
  auto& block = kept_.position.block;
  kept_.encoder->encode(block.ids, block.starts, arriving_.record);
  std::uint32_t first = 0;
  std::memcpy(&first, block.ids.data(), spec_.stored_width());
  kept_.writer->append(arriving_.record, static_cast<std::uint32_t>(block.ids.size() / spec_.stored_width()),
                       static_cast<std::uint32_t>(block.starts.size()), first);
  block.clear();
}

bool TokenStream::give(std::span<const std::byte> ids) {
  const auto from = spec_.stored_width(), to = spec_.width();
  if (from == to) return ring_->push(ids);
  arriving_.widened.resize(ids.size() / from * to);
  std::fill(arriving_.widened.begin(), arriving_.widened.end(), std::byte{0});
  for (std::size_t i = 0; i < ids.size() / from; ++i)
    std::memcpy(arriving_.widened.data() + i * to, ids.data() + i * from, from);
  return ring_->push(arriving_.widened);
}

void TokenStream::finish() {
  const std::lock_guard lock(mutex_);
  if (!kept_.position.block.ids.empty()) append_block();
  if (kept_.writer->tokens() == 0) {
    data_error(fmt::format("data.path {}: has ended without a usable document ({} empty, {} bad)",
                           input_.path(), arriving_.end.empty, arriving_.end.bad));
  }
  kept_.writer->finish({arriving_.end.bytes, arriving_.end.empty, arriving_.end.bad});
  kept_.writer.reset();
  kept_.store = open_store(options_.store);
  source_ = kept_.store.get();
  options_.say(fmt::format(
      "data.path {}: the stream has ended after {} documents, {} ids; training continues over {}",
      input_.path(), kept_.store->info().documents, kept_.store->tokens(), options_.store.string()));
}

void TokenStream::commit() {
  const std::lock_guard lock(mutex_);
  if (!kept_.writer || (kept_.committed == kept_.position.place && kept_.position.passed == 0)) return;
  kept_.writer->commit(to_bytes(kept_.position));
  kept_.committed = kept_.position.place;
  arriving_.last_commit = Clock::now();
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
    const auto there = std::min(count, kept_.store->tokens() - std::min(kept_.store->tokens(), begin));
    if (there > 0) kept_.store->read(begin, there, out);
    return there;
  }
  const auto done = take_written(begin, count, out);
  if (done == count) return done;
  const auto got = ring_->read(begin + done, count - done, out + done * spec_.width(), stop,
                               [this](std::chrono::duration<double> waited) { note_wait(waited); });
  taken_.came = std::max(taken_.came, begin + done + got);
  return done + got;
}

/// Reads ids that were in the store at the start.
std::uint64_t TokenStream::take_written(std::uint64_t begin, std::uint64_t count, std::byte* out) {
  std::uint64_t done = 0;
  while (done < count && begin + done < taken_.written) {
    const auto block = (begin + done) / spec_.block_tokens, first = (begin + done) % spec_.block_tokens;
    if (taken_.held != block) {
      taken_.block.resize(std::size_t{spec_.block_tokens} * spec_.width());
      taken_.held.reset();
      taken_.blocks->read(block, taken_.block);
      taken_.held = block;
    }
    const auto part = std::min(count - done, spec_.block_tokens - first);
    std::memcpy(out + done * spec_.width(), taken_.block.data() + first * spec_.width(),
                part * spec_.width());
    done += part;
  }
  return done;
}

void TokenStream::note_wait(std::chrono::duration<double> waited) {
  taken_.waited += waited.count();
  const auto now = Clock::now();
  if (taken_.waited < worth_saying || now - taken_.told < say_every) return;
  options_.say(fmt::format(
      "data.path {}: training waits for the stream, {} since the last such message; {} ids have arrived",
      input_.path(), seconds_text(taken_.waited), taken_.came));
  taken_.waited = 0;
  taken_.told = now;
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
