#include "isthmus/outer_sync/device_outer_state.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/audit.h"

namespace isthmus::outer_sync {
namespace {

/// Chunks that are on their way between device and host at a time; each has two marks at most.
constexpr std::size_t slot_count = 16;
static_assert(2 * slot_count < DevicePasses::marks);

std::size_t slot_size(const FragmentLayout& layout, const protocol::CodecPlan& codecs) {
  constexpr std::size_t alignment = 256;
  return (largest_encoded_chunk(layout, codecs) + alignment - 1) / alignment * alignment;
}

std::size_t tiles_in(std::size_t elements) {
  return (elements + quant::products_tile - 1) / quant::products_tile;
}

/// Of the fragment that has most, chunk by chunk.
std::size_t most_tiles(const FragmentLayout& layout) {
  std::size_t most = 0;
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    std::size_t tiles = 0;
    const auto chunks = layout.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) tiles += tiles_in(layout.chunk(k).size);
    most = std::max(most, tiles);
  }
  return most;
}

std::size_t longest_chunk(const FragmentLayout& layout) {
  std::size_t longest = 0;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k)
    longest = std::max<std::size_t>(longest, layout.chunk(k).size);
  return longest;
}

}  // namespace

DeviceOuterState::DeviceOuterState(const FragmentLayout& layout, const protocol::CodecPlan& codecs,
                                   DeviceParameters& local, std::unique_ptr<DevicePasses> passes)
    : layout_(layout),
      local_(local),
      error_feedback_(codecs.sender_feedback),
      passes_(std::move(passes)),
      global_(flat()),
      velocity_(flat()),
      residual_(error_feedback_ ? flat() : Flat{}) {
  const auto size = slot_size(layout, codecs);
  device_slots_ = passes_->device_memory(slot_count * size);
  host_slots_ = passes_->host_memory(slot_count * size);
  for (std::size_t i = 0; i < slot_count; ++i)
    slots_.push_back({{device_slots_.get() + i * size, size}, {host_slots_.get() + i * size, size}, nullptr});
  decoded_ = passes_->device_memory(longest_chunk(layout) * sizeof(float));
  const auto tiles = most_tiles(layout) * sizeof(quant::Products);
  device_tiles_ = passes_->device_memory(tiles);
  host_tiles_ = passes_->host_memory(tiles);
  passes_->clear(velocity_.values);
  if (error_feedback_) passes_->clear(residual_.values);
  take_local();
}

DeviceOuterState::~DeviceOuterState() = default;

DeviceOuterState::Flat DeviceOuterState::flat() {
  const auto size = layout_.buffer_size();
  auto memory = passes_->device_memory(size * sizeof(float));
  auto* values = reinterpret_cast<float*>(memory.get());
  return {std::move(memory), {values, size}};
}

// ---- chunks ----

/// The one that was used longest ago.
DeviceOuterState::Slot& DeviceOuterState::free_slot() {
  auto& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (slot.busy) slot.busy->wait();
  slot.busy = nullptr;
  return slot;
}

void DeviceOuterState::encode(FragmentId p, const OuterEncoding& how, const BufferPool& buffers,
                              const Leave& leave) {
  passes_->after_model();
  const auto chunks = layout_.chunks_of(p);
  std::deque<Leaving> leaving;
  for (auto k = chunks.first; k < chunks.last; ++k) {
    if (leaving.size() == slots_.size()) {
      hand_over(std::move(leaving.front()), buffers, leave);
      leaving.pop_front();
    }
    const auto& chunk = layout_.chunk(k);
    const auto bytes = quant::encoded_size(how.codec, chunk.size);
    const auto index = next_slot_;
    auto& slot = free_slot();
    quant::Feedback feedback;
    if (error_feedback_) feedback = {residual_.part(chunk), how.carried};
    auto encoded = passes_->encode_difference(
        how.codec, global_.part(chunk), local_.device_values().subspan(chunk.begin, chunk.size), feedback,
        noise_of(layout_, k, how.noise_seed, how.round), slot.device.first(bytes));
    passes_->copy(slot.device.data(), slot.host.data(), bytes);
    slot.busy = passes_->mark();
    leaving.push_back({k, bytes, index, std::move(encoded)});
  }
  // The next inner step changes the local parameters.
  passes_->before_model();
  for (; !leaving.empty(); leaving.pop_front()) hand_over(std::move(leaving.front()), buffers, leave);
}

void DeviceOuterState::hand_over(Leaving leaving, const BufferPool& buffers, const Leave& leave) {
  auto& slot = slots_[leaving.slot];
  slot.busy->wait();
  slot.busy = nullptr;
  const auto bad = leaving.encoded->wait();
  auto bytes = buffers.take(leaving.bytes);
  std::memcpy(bytes->data(), slot.host.data(), leaving.bytes);
  leave({leaving.chunk, bad, std::move(bytes)});
}

std::span<const std::byte> DeviceOuterState::upload(const Bytes& bytes, Slot& slot) {
  assert(bytes.size() <= slot.host.size());
  std::memcpy(slot.host.data(), bytes.data(), bytes.size());
  passes_->copy(slot.host.data(), slot.device.data(), bytes.size());
  return slot.device.first(bytes.size());
}

std::span<quant::Products> DeviceOuterState::device_tiles(std::size_t first, std::size_t count) const {
  return {reinterpret_cast<quant::Products*>(device_tiles_.get()) + first, count};
}

/// Waits for the passes that make them.
quant::Products DeviceOuterState::sum_of_tiles(std::size_t count) {
  const std::span tiles(reinterpret_cast<quant::Products*>(host_tiles_.get()), count);
  passes_->copy(device_tiles_.get(), tiles.data(), tiles.size_bytes());
  finish_copies();
  quant::Products out;
  quant::add_products(tiles, out);
  return out;
}

std::optional<quant::Products> DeviceOuterState::products(FragmentId p, const quant::CodecSpec& codec,
                                                          std::span<const protocol::SharedBytes> results) {
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  std::size_t tiles = 0;
  for (auto k = chunks.first; k < chunks.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    const auto& bytes = *results[k - chunks.first];
    if (!quant::valid(codec, bytes, chunk.size)) return std::nullopt;
    auto& slot = free_slot();
    const std::span decoded(reinterpret_cast<float*>(decoded_.get()), chunk.size);
    passes_->clear(decoded);
    passes_->decode_accumulate(codec, upload(bytes, slot), 1, decoded);
    slot.busy = passes_->mark();
    const auto count = tiles_in(chunk.size);
    passes_->products(velocity_.part(chunk), decoded, device_tiles(tiles, count));
    tiles += count;
  }
  return sum_of_tiles(tiles);
}

std::optional<ChunkId> DeviceOuterState::apply(FragmentId p, const quant::CodecSpec& codec,
                                               std::span<const protocol::SharedBytes> results,
                                               const methods::OuterRule& rule) {
  assert(!rule.co2);
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  passes_->after_model();
  std::optional<ChunkId> bad;
  for (auto k = chunks.first; k < chunks.last && !bad; ++k) {
    const auto& chunk = layout_.chunk(k);
    const auto& bytes = *results[k - chunks.first];
    if (!quant::valid(codec, bytes, chunk.size)) {
      bad = k;
      continue;
    }
    auto& slot = free_slot();
    const auto own = local_.device_values().subspan(chunk.begin, chunk.size);
    passes_->decode_apply(codec, upload(bytes, slot), rule.step, global_.part(chunk), velocity_.part(chunk),
                          own);
    slot.busy = passes_->mark();
  }
  passes_->before_model();
  local_.modified_on_device(layout_.fragment(p));
  return bad;
}

void DeviceOuterState::shift_local(FragmentId p, const quant::CodecSpec& codec,
                                   std::span<const protocol::SharedBytes> own, float weight) {
  passes_->after_model();
  const auto first = layout_.chunks_of(p).first;
  for (ChunkId i = 0; i < own.size(); ++i) {
    if (!own[i]) continue;
    const auto& chunk = layout_.chunk(first + i);
    assert(quant::valid(codec, *own[i], chunk.size));
    auto& slot = free_slot();
    passes_->decode_accumulate(codec, upload(*own[i], slot), weight,
                               local_.device_values().subspan(chunk.begin, chunk.size));
    slot.busy = passes_->mark();
  }
  passes_->before_model();
  local_.modified_on_device(layout_.fragment(p));
}

void DeviceOuterState::go_ahead(FragmentId, const quant::CodecSpec&, std::span<const protocol::SharedBytes>,
                                std::span<const protocol::SharedBytes>, float, const quant::OuterStep&) {
  throw Error(ErrorKind::config, "outer.method eager and co2 work on a CPU only");
}

// ---- all of it ----

void DeviceOuterState::take_local() {
  passes_->after_model();
  passes_->copy(local_.device_values().data(), global_.values.data(), global_.values.size_bytes());
  passes_->before_model();
}

void DeviceOuterState::begin_from_global() {
  passes_->after_model();
  passes_->copy(global_.values.data(), local_.device_values().data(), global_.values.size_bytes());
  if (error_feedback_) passes_->clear(residual_.values);
  passes_->before_model();
  local_.modified_on_device({0, layout_.buffer_size()});
}

void DeviceOuterState::finish_copies() { passes_->mark()->wait(); }

std::span<const float> DeviceOuterState::download(std::span<const float> values, AlignedVector<float>& to) {
  to.resize(values.size());
  passes_->copy(values.data(), to.data(), values.size_bytes());
  finish_copies();
  return to;
}

void DeviceOuterState::fill(std::span<float> to, std::span<const float> values) {
  assert(to.size() == values.size());
  passes_->copy(values.data(), to.data(), values.size_bytes());
  finish_copies();
}

std::span<const float> DeviceOuterState::global(Range range) {
  return download(global_.part(range), host_global_);
}
std::span<const float> DeviceOuterState::velocity(Range range) {
  return download(velocity_.part(range), host_velocity_);
}

void DeviceOuterState::install(FragmentId p, std::span<const float> theta, std::span<const float> velocity) {
  const auto& fragment = layout_.fragment(p);
  fill(global_.part(fragment), theta);
  fill(velocity_.part(fragment), velocity);
}

double DeviceOuterState::spread(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  const auto tiles = tiles_in(fragment.size);
  passes_->after_model();
  passes_->products(local_.device_values().subspan(fragment.begin, fragment.size), global_.part(fragment),
                    device_tiles(0, tiles));
  return distance_of(sum_of_tiles(tiles));
}

std::uint64_t DeviceOuterState::audit(FragmentId p) {
  const auto& fragment = layout_.fragment(p);
  return combined(passes_->digest(global_.part(fragment)), passes_->digest(velocity_.part(fragment)));
}

void DeviceOuterState::save_agreed(BinaryWriter& out) {
  out.expect(2 * layout_.buffer_size() * sizeof(float));
  static_cast<void>(download(global_.values, host_global_));
  static_cast<void>(download(velocity_.values, host_velocity_));
  out(host_global_, host_velocity_);
}

void DeviceOuterState::save_own(BinaryWriter& out) {
  if (error_feedback_) out.expect(layout_.buffer_size() * sizeof(float));
  out.count(layout_.chunk_count());
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
    host_velocity_.clear();
    if (error_feedback_) static_cast<void>(download(residual_.part(layout_.chunk(k)), host_velocity_));
    out(host_velocity_);
  }
  const AlignedVector<float> none;
  out(none, none);  // no eager updates here
}

void DeviceOuterState::restore(Vectors vectors) {
  assert(fits(vectors, layout_, false));
  fill(global_.values, vectors.global);
  fill(velocity_.values, vectors.velocity);
  if (!error_feedback_) return;
  passes_->clear(residual_.values);
  for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
    if (!vectors.residuals[k].empty()) fill(residual_.part(layout_.chunk(k)), vectors.residuals[k]);
  }
}

}  // namespace isthmus::outer_sync
