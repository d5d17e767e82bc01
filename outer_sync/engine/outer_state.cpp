#include "isthmus/outer_sync/engine/outer_state.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "engine/host_passes.h"
#include "isthmus/outer_sync/engine/state_digest.h"

namespace isthmus::outer_sync {
namespace {

void write(BinaryWriter& out, std::span<const float> values) {
  out.count(values.size());
  out.raw(values.data(), values.size_bytes());
}

}  // namespace

bool fits(const OuterState::Vectors& vectors, const FragmentLayout& layout) {
  const auto n = layout.buffer_size();
  if (vectors.global.size() != n || vectors.velocity.size() != n) return false;
  if (vectors.residuals.size() != layout.chunk_count()) return false;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto size = vectors.residuals[k].size();
    if (size != 0 && size != layout.chunk(k).size) return false;
  }
  return true;
}

double distance_of(const quant::Products& products) {
  const double squared = (products.xx - products.xy) - (products.xy - products.yy);
  return squared < 0 ? 0 : std::sqrt(squared);
}

OuterState::OuterState(const FragmentLayout& layout, LocalParameters& local, bool error_feedback)
    : layout_(layout),
      local_(local),
      device_(nullptr),
      error_feedback_(error_feedback),
      passes_(std::make_unique<HostPasses>()),
      global_(flat()),
      velocity_(flat()),
      residual_(error_feedback_ ? flat() : Flat{}),
      chunks_(layout, *passes_) {
  prepare(StagingRoom(layout, {}, {.batch_elements = 0}));
}

OuterState::OuterState(const FragmentLayout& layout, const protocol::CodecPlan& codecs,
                       DeviceParameters& local, std::unique_ptr<Passes> passes, const Staging& staging)
    : layout_(layout),
      local_(local),
      device_(&local),
      error_feedback_(codecs.sender_feedback),
      passes_(std::move(passes)),
      global_(flat()),
      velocity_(flat()),
      residual_(error_feedback_ ? flat() : Flat{}),
      chunks_(layout, *passes_, StagingRoom(layout, codecs.codec, staging), staging) {
  prepare(StagingRoom(layout, codecs.codec, staging));
}

/// Allocates the rest of the memory and sets the first values.
void OuterState::prepare(const StagingRoom& room) {
  decoded_ = passes_->device_memory(room.decoded);
  device_tiles_ = passes_->device_memory(room.tiles);
  host_tiles_ = passes_->host_memory(room.tiles);
  passes_->clear(velocity_.values);
  if (error_feedback_) passes_->clear(residual_.values);
  take_local();
}

OuterState::Flat OuterState::flat() {
  const auto size = layout_.buffer_size();
  auto memory = passes_->device_memory(size * sizeof(float));
  auto* values = reinterpret_cast<float*>(memory.get());
  return {std::move(memory), {values, size}};
}

// ---- the local parameters, where the passes see them ----

std::span<const float> OuterState::read_local(Range range) {
  return device_ != nullptr ? modify_local(range) : local_.read(range);
}
std::span<float> OuterState::modify_local(Range range) {
  return device_ != nullptr ? device_->device_values(range) : local_.modify(range);
}
void OuterState::local_modified(Range range) {
  device_ != nullptr ? device_->modified_on_device(range) : local_.modified(range);
}

// ---- a fragment's round ----

HandOver OuterState::encode(FragmentId p, const OuterEncoding& how, const BufferPool& buffers,
                            OnEncoded on_encoded) {
  const auto& fragment = layout_.fragment(p);
  const auto local = read_local(fragment);
  const auto encode_batch = [&](const ChunkBatch& batch, std::span<std::byte> out) {
    quant::Feedback feedback;
    if (error_feedback_ && how.uses_residual) feedback = {residual_.part(batch.range), how.carried};
    return passes_->encode_difference(how.codec, global_.part(batch.range),
                                      local.subspan(batch.range.begin - fragment.begin, batch.range.size),
                                      feedback, noise_of(layout_, batch.first, how.noise_seed, how.round),
                                      out);
  };
  return chunks_.send(p, how.codec, buffers, std::move(on_encoded), encode_batch);
}

/// The first chunk that does not decode.
std::optional<ChunkId> OuterState::first_invalid(FragmentId p, const quant::CodecSpec& codec,
                                                 std::span<const protocol::SharedBytes> results) const {
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  for (auto k = chunks.first; k < chunks.last; ++k)
    if (!quant::valid(codec, *results[k - chunks.first], layout_.chunk(k).size)) return k;
  return std::nullopt;
}

std::optional<quant::Products> OuterState::products(FragmentId p, const quant::CodecSpec& codec,
                                                    std::span<const protocol::SharedBytes> results) {
  if (first_invalid(p, codec, results)) return std::nullopt;
  std::size_t tiles = 0;
  for (const auto& batch : chunks_.batches_of(p, codec, results)) {
    const std::span decoded(reinterpret_cast<float*>(decoded_.get()), batch.range.size);
    passes_->clear(decoded);
    passes_->decode_accumulate(codec, chunks_.load(batch, codec, results), 1, decoded);
    chunks_.loaded();
    for (auto k = batch.first; k < batch.last; ++k) {
      const auto& chunk = layout_.chunk(k);
      const auto count = tiles_in(chunk.size);
      passes_->products(velocity_.part(chunk), decoded.subspan(chunk.begin - batch.range.begin, chunk.size),
                        device_tiles(tiles, count));
      tiles += count;
    }
  }
  return sum_of_tiles(tiles);
}

std::optional<ChunkId> OuterState::apply(FragmentId p, const quant::CodecSpec& codec,
                                         std::span<const protocol::SharedBytes> results,
                                         const quant::OuterStep& step) {
  if (const auto bad = first_invalid(p, codec, results)) return bad;
  const auto& fragment = layout_.fragment(p);
  const auto local = modify_local(fragment);
  passes_->after_model();
  for (const auto& batch : chunks_.batches_of(p, codec, results)) {
    const auto in = chunks_.load(batch, codec, results);
    const auto theta = global_.part(batch.range), velocity = velocity_.part(batch.range);
    const auto own = local.subspan(batch.range.begin - fragment.begin, batch.range.size);
    passes_->decode_apply(codec, in, step, theta, velocity, own);
    chunks_.loaded();
  }
  passes_->before_model();
  local_modified(fragment);
  return std::nullopt;
}

void OuterState::shift_local(FragmentId p, const quant::CodecSpec& codec,
                             std::initializer_list<Shift> shifts) {
  const auto& fragment = layout_.fragment(p);
  const auto local = modify_local(fragment);
  passes_->after_model();
  for (const auto& [chunks, weight] : shifts) {
    for (const auto& batch : chunks_.batches_of(p, codec, chunks)) {
      passes_->decode_accumulate(codec, chunks_.load(batch, codec, chunks), weight,
                                 local.subspan(batch.range.begin - fragment.begin, batch.range.size));
      chunks_.loaded();
    }
  }
  passes_->before_model();
  local_modified(fragment);
}

// ---- figures ----

std::span<quant::Products> OuterState::device_tiles(std::size_t first, std::size_t count) const {
  return {reinterpret_cast<quant::Products*>(device_tiles_.get()) + first, count};
}

/// Waits for the passes that compute the tiles.
quant::Products OuterState::sum_of_tiles(std::size_t count) {
  const std::span tiles(reinterpret_cast<quant::Products*>(host_tiles_.get()), count);
  passes_->copy(device_tiles_.get(), tiles.data(), tiles.size_bytes());
  finish_copies();
  quant::Products out;
  quant::add_products(tiles, out);
  return out;
}

double OuterState::spread(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  const auto tiles = tiles_in(fragment.size);
  const auto local = read_local(fragment);
  passes_->after_model();
  passes_->products(local, global_.part(fragment), device_tiles(0, tiles));
  return distance_of(sum_of_tiles(tiles));
}

std::uint64_t OuterState::digest(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  return combined(passes_->digest(global_.part(fragment)), passes_->digest(velocity_.part(fragment)));
}

// ---- the whole state ----

void OuterState::take_local() {
  const auto local = read_local({0, layout_.buffer_size()});
  passes_->after_model();
  passes_->copy(local.data(), global_.values.data(), global_.values.size_bytes());
  passes_->before_model();
}

void OuterState::begin_from_global() {
  const Range all{0, layout_.buffer_size()};
  const auto local = modify_local(all);
  passes_->after_model();
  passes_->copy(global_.values.data(), local.data(), global_.values.size_bytes());
  if (error_feedback_) passes_->clear(residual_.values);
  passes_->before_model();
  local_modified(all);
}

void OuterState::finish_copies() { passes_->mark()->wait(); }

std::span<const float> OuterState::download(std::span<const float> values, AlignedVector<float>& to) {
  if (device_ == nullptr) return values;
  to.resize(values.size());
  passes_->copy(values.data(), to.data(), values.size_bytes());
  finish_copies();
  return to;
}

void OuterState::fill(std::span<float> to, std::span<const float> values) {
  assert(to.size() == values.size());
  passes_->copy(values.data(), to.data(), values.size_bytes());
  finish_copies();
}

std::span<const float> OuterState::global(Range range) { return download(global_.part(range), host_global_); }
std::span<const float> OuterState::velocity(Range range) {
  return download(velocity_.part(range), host_velocity_);
}

void OuterState::install(FragmentId p, std::span<const float> theta, std::span<const float> velocity) {
  const auto& fragment = layout_.fragment(p);
  fill(global_.part(fragment), theta);
  fill(velocity_.part(fragment), velocity);
}

void OuterState::save_agreed(BinaryWriter& out) {
  out.expect(2 * layout_.buffer_size() * sizeof(float));
  write(out, download(global_.values, host_global_));
  write(out, download(velocity_.values, host_velocity_));
}

void OuterState::save_own(BinaryWriter& out) {
  if (error_feedback_) out.expect(layout_.buffer_size() * sizeof(float));
  out.count(layout_.chunk_count());
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k)
    write(out, error_feedback_ ? download(residual_.part(layout_.chunk(k)), host_velocity_)
                               : std::span<const float>());
}

void OuterState::restore(const Vectors& vectors) {
  assert(fits(vectors, layout_));
  fill(global_.values, vectors.global);
  fill(velocity_.values, vectors.velocity);
  if (!error_feedback_) return;
  passes_->clear(residual_.values);
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
    if (!vectors.residuals[k].empty()) fill(residual_.part(layout_.chunk(k)), vectors.residuals[k]);
  }
}

}  // namespace isthmus::outer_sync
