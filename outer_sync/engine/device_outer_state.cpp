#include "isthmus/outer_sync/engine/device_outer_state.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/audit.h"

namespace isthmus::outer_sync {
namespace {

/// Number of batches in flight. An outgoing batch uses two marks, an incoming one uses one.
constexpr std::size_t fewest_slots = 2;
constexpr std::size_t max_slots = DevicePasses::marks / 4;

std::size_t tiles_in(std::size_t elements) {
  return (elements + quant::products_tile - 1) / quant::products_tile;
}

/// Tiles of the fragment with the most tiles, counted chunk by chunk.
std::size_t max_tiles(const FragmentLayout& layout) {
  std::size_t most = 0;
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    std::size_t tiles = 0;
    const auto chunks = layout.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) tiles += tiles_in(layout.chunk(k).size);
    most = std::max(most, tiles);
  }
  return most;
}

/// The longest batch that begins with chunk `first` and ends before `last`.
ChunkBatch batch_from(const FragmentLayout& layout, ChunkId first, ChunkId last,
                      const quant::CodecSpec& codec, const Staging& staging) {
  auto range = layout.chunk(first);
  const bool joins = quant::joins(codec, range.size);
  auto k = first + 1;
  for (; joins && k < last && range.size + layout.chunk(k).size <= staging.batch_elements; ++k)
    range.size += layout.chunk(k).size;
  return {first, k, range};
}

/// A fragment's batches, in order.
std::vector<ChunkBatch> all_batches(const FragmentLayout& layout, FragmentId p, const quant::CodecSpec& codec,
                                    const Staging& staging) {
  std::vector<ChunkBatch> batches;
  const auto chunks = layout.chunks_of(p);
  for (auto k = chunks.first; k < chunks.last; k = batches.back().last)
    batches.push_back(batch_from(layout, k, chunks.last, codec, staging));
  return batches;
}

/// Offsets and sizes, in bytes, of a chunk's scales and codes in its batch.
struct Place {
  Place(const quant::CodecSpec& codec, std::size_t batch, std::size_t offset, std::size_t chunk)
      : scales(quant::scale_part(codec, offset)),
        scales_size(quant::scale_part(codec, chunk)),
        codes(quant::scale_part(codec, batch) + quant::encoded_size(codec, offset) - scales),
        codes_size(quant::encoded_size(codec, chunk) - scales_size) {}

  std::size_t scales, scales_size, codes, codes_size;
};

}  // namespace

StagingRoom::StagingRoom(const FragmentLayout& layout, const quant::CodecSpec& codec,
                         const Staging& staging) {
  std::size_t most = 0, bytes = 1;
  std::uint64_t longest = 0;
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    most = std::max(most, all_batches(layout, p, codec, staging).size());
    // A batch may begin at any chunk, because shift_local skips chunks.
    const auto chunks = layout.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k) {
      const auto batch = batch_from(layout, k, chunks.last, codec, staging);
      longest = std::max(longest, batch.range.size);
      bytes = std::max(bytes, quant::encoded_size(codec, batch.range.size));
    }
  }
  constexpr std::size_t alignment = 256;
  slot = (bytes + alignment - 1) / alignment * alignment;
  const auto slots = [&](std::size_t limit) {
    return std::max(fewest_slots, std::min({most, max_slots, limit / slot}));
  };
  outgoing = slots(staging.outgoing);
  incoming = slots(staging.incoming);
  decoded = longest * sizeof(float);
  tiles = max_tiles(layout) * sizeof(quant::Products);
}

DeviceOuterState::DeviceOuterState(const FragmentLayout& layout, const protocol::CodecPlan& codecs,
                                   DeviceParameters& local, std::unique_ptr<DevicePasses> passes,
                                   const Staging& staging)
    : layout_(layout),
      local_(local),
      error_feedback_(codecs.sender_feedback),
      staging_(staging),
      passes_(std::move(passes)),
      global_(flat()),
      velocity_(flat()),
      residual_(error_feedback_ ? flat() : Flat{}) {
  const StagingRoom room(layout, codecs.codec, staging_);
  outgoing_ = make_slots(room.outgoing, room.slot);
  incoming_ = make_slots(room.incoming, room.slot);
  decoded_ = passes_->device_memory(room.decoded);
  device_tiles_ = passes_->device_memory(room.tiles);
  host_tiles_ = passes_->host_memory(room.tiles);
  passes_->clear(velocity_.values);
  if (error_feedback_) passes_->clear(residual_.values);
  take_local();
}

DeviceOuterState::~DeviceOuterState() {
  if (handed_over_.valid()) handed_over_.wait();
}

DeviceOuterState::Flat DeviceOuterState::flat() {
  const auto size = layout_.buffer_size();
  auto memory = passes_->device_memory(size * sizeof(float));
  auto* values = reinterpret_cast<float*>(memory.get());
  return {std::move(memory), {values, size}};
}

// ---- batches of chunks ----

std::vector<ChunkBatch> DeviceOuterState::batches_of(FragmentId p, const quant::CodecSpec& codec) const {
  return all_batches(layout_, p, codec, staging_);
}

DeviceOuterState::Slots DeviceOuterState::make_slots(std::size_t count, std::size_t bytes) const {
  Slots slots{passes_->device_memory(count * bytes), passes_->host_memory(count * bytes), {}};
  for (std::size_t i = 0; i < count; ++i) {
    slots.slots.push_back(
        {{slots.device.get() + i * bytes, bytes}, {slots.host.get() + i * bytes, bytes}, nullptr});
  }
  return slots;
}

/// Returns the least recently used slot, once it is free.
DeviceOuterState::Slot& DeviceOuterState::next_slot(Slots& slots) {
  auto& slot = slots.slots[slots.next];
  slots.next = (slots.next + 1) % slots.slots.size();
  if (slot.busy) slot.busy->wait();
  slot.busy = nullptr;
  return slot;
}

HandOver DeviceOuterState::encode(FragmentId p, const OuterEncoding& how, const BufferPool& buffers,
                                  Leave leave) {
  if (handed_over_.valid()) handed_over_.wait();
  leaving_.clear();
  passes_->after_model();
  for (const auto& batch : batches_of(p, how.codec)) {
    if (leaving_.size() == outgoing_.slots.size()) {
      hand_over(leaving_.front(), how.codec, buffers, leave);
      leaving_.pop_front();
    }
    const auto bytes = quant::encoded_size(how.codec, batch.range.size);
    auto& slot = next_slot(outgoing_);
    assert(bytes <= slot.device.size());
    quant::Feedback feedback;
    if (error_feedback_) feedback = {residual_.part(batch.range), how.carried};
    auto encoded = passes_->encode_difference(
        how.codec, global_.part(batch.range),
        local_.device_values().subspan(batch.range.begin, batch.range.size), feedback,
        noise_of(layout_, batch.first, how.noise_seed, how.round), slot.device.first(bytes));
    passes_->copy(slot.device.data(), slot.host.data(), bytes);
    slot.busy = passes_->mark();
    leaving_.push_back({batch, &slot, std::move(encoded)});
  }
  // The next inner step changes the local parameters, so it must wait for the encoding.
  passes_->before_model();
  // On another thread: packing and copying chunks takes longer than the passes, and training must not wait.
  handed_over_ =
      std::async(std::launch::async, [this, codec = how.codec, &buffers, leave = std::move(leave)] {
        for (const auto& each : leaving_) hand_over(each, codec, buffers, leave);
      }).share();
  return HandOver(handed_over_);
}

void DeviceOuterState::hand_over(const Leaving& leaving, const quant::CodecSpec& codec,
                                 const BufferPool& buffers, const Leave& leave) const {
  const auto& batch = leaving.batch;
  leaving.slot->busy->wait();
  const auto bad = leaving.encoded->wait();
  for (auto k = batch.first; k < batch.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    const auto offset = chunk.begin - batch.range.begin;
    const Place place(codec, batch.range.size, offset, chunk.size);
    auto bytes = buffers.take(place.scales_size + place.codes_size);
    std::memcpy(bytes->data(), leaving.slot->host.data() + place.scales, place.scales_size);
    std::memcpy(bytes->data() + place.scales_size, leaving.slot->host.data() + place.codes, place.codes_size);
    const bool is_bad = bad && *bad >= offset && *bad < offset + chunk.size;
    leave({k, is_bad ? std::optional(*bad - offset) : std::nullopt, std::move(bytes)});
  }
}

/// `chunks`: the chunks of the batch, in order.
std::span<const std::byte> DeviceOuterState::upload(const ChunkBatch& batch, const quant::CodecSpec& codec,
                                                    std::span<const protocol::SharedBytes> chunks,
                                                    Slot& slot) {
  const auto size = quant::encoded_size(codec, batch.range.size);
  assert(size <= slot.host.size());
  for (auto k = batch.first; k < batch.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    const Place place(codec, batch.range.size, chunk.begin - batch.range.begin, chunk.size);
    const auto& bytes = *chunks[k - batch.first];
    assert(bytes.size() == place.scales_size + place.codes_size);
    std::memcpy(slot.host.data() + place.scales, bytes.data(), place.scales_size);
    std::memcpy(slot.host.data() + place.codes, bytes.data() + place.scales_size, place.codes_size);
  }
  passes_->copy(slot.host.data(), slot.device.data(), size);
  return slot.device.first(size);
}

std::span<quant::Products> DeviceOuterState::device_tiles(std::size_t first, std::size_t count) const {
  return {reinterpret_cast<quant::Products*>(device_tiles_.get()) + first, count};
}

/// Waits for the passes that compute the tiles.
quant::Products DeviceOuterState::sum_of_tiles(std::size_t count) {
  const std::span tiles(reinterpret_cast<quant::Products*>(host_tiles_.get()), count);
  passes_->copy(device_tiles_.get(), tiles.data(), tiles.size_bytes());
  finish_copies();
  quant::Products out;
  quant::add_products(tiles, out);
  return out;
}

/// The first chunk that does not decode.
std::optional<ChunkId> DeviceOuterState::first_invalid(FragmentId p, const quant::CodecSpec& codec,
                                                       std::span<const protocol::SharedBytes> results) const {
  const auto chunks = layout_.chunks_of(p);
  assert(results.size() == chunks.size());
  for (auto k = chunks.first; k < chunks.last; ++k)
    if (!quant::valid(codec, *results[k - chunks.first], layout_.chunk(k).size)) return k;
  return std::nullopt;
}

std::optional<quant::Products> DeviceOuterState::products(FragmentId p, const quant::CodecSpec& codec,
                                                          std::span<const protocol::SharedBytes> results) {
  if (first_invalid(p, codec, results)) return std::nullopt;
  const auto first = layout_.chunks_of(p).first;
  std::size_t tiles = 0;
  for (const auto& batch : batches_of(p, codec)) {
    auto& slot = next_slot(incoming_);
    const std::span decoded(reinterpret_cast<float*>(decoded_.get()), batch.range.size);
    passes_->clear(decoded);
    passes_->decode_accumulate(codec, upload(batch, codec, results.subspan(batch.first - first), slot), 1,
                               decoded);
    slot.busy = passes_->mark();
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

std::optional<ChunkId> DeviceOuterState::apply(FragmentId p, const quant::CodecSpec& codec,
                                               std::span<const protocol::SharedBytes> results,
                                               const methods::OuterRule& rule) {
  assert(!rule.co2);
  if (const auto bad = first_invalid(p, codec, results)) return bad;
  const auto first = layout_.chunks_of(p).first;
  passes_->after_model();
  for (const auto& batch : batches_of(p, codec)) {
    auto& slot = next_slot(incoming_);
    passes_->decode_apply(codec, upload(batch, codec, results.subspan(batch.first - first), slot), rule.step,
                          global_.part(batch.range), velocity_.part(batch.range),
                          local_.device_values().subspan(batch.range.begin, batch.range.size));
    slot.busy = passes_->mark();
  }
  passes_->before_model();
  local_.modified_on_device(layout_.fragment(p));
  return std::nullopt;
}

void DeviceOuterState::shift_local(FragmentId p, const quant::CodecSpec& codec,
                                   std::span<const protocol::SharedBytes> own, float weight) {
  passes_->after_model();
  const auto first = layout_.chunks_of(p).first;
  for (std::size_t i = 0; i < own.size();) {
    if (!own[i]) {
      ++i;
      continue;
    }
    auto end = i;
    while (end < own.size() && own[end]) ++end;
    const auto batch = batch_from(layout_, first + static_cast<ChunkId>(i), first + static_cast<ChunkId>(end),
                                  codec, staging_);
    auto& slot = next_slot(incoming_);
    passes_->decode_accumulate(codec, upload(batch, codec, own.subspan(i), slot), weight,
                               local_.device_values().subspan(batch.range.begin, batch.range.size));
    slot.busy = passes_->mark();
    i = batch.last - first;
  }
  passes_->before_model();
  local_.modified_on_device(layout_.fragment(p));
}

void DeviceOuterState::go_ahead(FragmentId, const quant::CodecSpec&, std::span<const protocol::SharedBytes>,
                                std::span<const protocol::SharedBytes>, float, const quant::OuterStep&) {
  throw Error(ErrorKind::config, "outer.method eager and co2 are supported on CPUs only");
}

// ---- the whole state ----

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
  out(none, none);  // no eager updates on a device
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
