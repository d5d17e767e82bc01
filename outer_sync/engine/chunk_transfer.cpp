#include "isthmus/outer_sync/engine/chunk_transfer.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace isthmus::outer_sync {
namespace {

/// Number of batches in flight. An outgoing batch uses two marks, an incoming one uses one.
constexpr std::size_t fewest_slots = 2;
constexpr std::size_t max_slots = Passes::marks / 4;

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

Error bad_element(const FragmentLayout& layout, const EncodedChunk& encoded, const std::string& values,
                  std::uint64_t step) {
  const auto place = layout.place_in_fragment(encoded.chunk) + *encoded.bad_element;
  return {ErrorKind::divergence, values + " is not finite, or too large for its codec, at element " +
                                     std::to_string(place) + " of fragment " +
                                     std::to_string(layout.fragment_of(encoded.chunk)) + " at step " +
                                     std::to_string(step)};
}

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

ChunkTransfer::ChunkTransfer(const FragmentLayout& layout, Passes& passes, const StagingRoom& room,
                             const Staging& staging)
    : layout_(layout), passes_(passes), staging_(staging) {
  outgoing_ = make_slots(room.outgoing, room.slot);
  incoming_ = make_slots(room.incoming, room.slot);
}

ChunkTransfer::~ChunkTransfer() {
  if (handed_over_.valid()) handed_over_.wait();
}

ChunkTransfer::Slots ChunkTransfer::make_slots(std::size_t count, std::size_t bytes) const {
  Slots slots{passes_.device_memory(count * bytes), passes_.host_memory(count * bytes), {}};
  for (std::size_t i = 0; i < count; ++i) {
    slots.slots.push_back(
        {{slots.device.get() + i * bytes, bytes}, {slots.host.get() + i * bytes, bytes}, nullptr});
  }
  return slots;
}

/// Returns the least recently used slot, once it is free.
ChunkTransfer::Slot& ChunkTransfer::next_slot(Slots& slots) {
  auto& slot = slots.slots[slots.next];
  slots.next = (slots.next + 1) % slots.slots.size();
  if (slot.busy) slot.busy->wait();
  slot.busy = nullptr;
  return slot;
}

HandOver ChunkTransfer::send(FragmentId p, const quant::CodecSpec& codec, const BufferPool& buffers,
                             OnEncoded on_encoded, const Encode& encode) {
  const auto batches = all_batches(layout_, p, codec, staging_);
  if (in_host_memory()) {
    for (const auto& batch : batches) {
      const auto bytes = buffers.take(quant::encoded_size(codec, batch.range.size));
      const auto bad = encode(batch, *bytes)->wait();
      on_encoded({batch.first, bad, bytes});
    }
    return {};
  }
  if (handed_over_.valid()) handed_over_.wait();
  encoded_.clear();
  passes_.after_model();
  for (const auto& batch : batches) {
    const auto bytes = quant::encoded_size(codec, batch.range.size);
    if (encoded_.size() == outgoing_.slots.size()) {
      hand_over(encoded_.front(), codec, buffers, on_encoded);
      encoded_.pop_front();
    }
    auto& slot = next_slot(outgoing_);
    assert(bytes <= slot.device.size());
    auto encoded = encode(batch, slot.device.first(bytes));
    passes_.copy(slot.device.data(), slot.host.data(), bytes);
    slot.busy = passes_.mark();
    encoded_.push_back({batch, &slot, std::move(encoded)});
  }
  // The next inner step changes the local parameters, so it must wait for the encoding.
  passes_.before_model();
  // On another thread: packing and copying chunks takes longer than the passes, and training must not wait.
  handed_over_ = std::async(std::launch::async, [this, codec, &buffers, on_encoded = std::move(on_encoded)] {
                   for (const auto& each : encoded_) hand_over(each, codec, buffers, on_encoded);
                 }).share();
  return HandOver(handed_over_);
}

void ChunkTransfer::hand_over(const EncodedBatch& from, const quant::CodecSpec& codec,
                              const BufferPool& buffers, const OnEncoded& on_encoded) const {
  const auto& batch = from.batch;
  from.slot->busy->wait();
  const auto bad = from.encoded->wait();
  for (auto k = batch.first; k < batch.last; ++k) {
    const auto& chunk = layout_.chunk(k);
    const auto offset = chunk.begin - batch.range.begin;
    const Place place(codec, batch.range.size, offset, chunk.size);
    auto bytes = buffers.take(place.scales_size + place.codes_size);
    std::memcpy(bytes->data(), from.slot->host.data() + place.scales, place.scales_size);
    std::memcpy(bytes->data() + place.scales_size, from.slot->host.data() + place.codes, place.codes_size);
    const bool is_bad = bad && *bad >= offset && *bad < offset + chunk.size;
    on_encoded({k, is_bad ? std::optional(*bad - offset) : std::nullopt, std::move(bytes)});
  }
}

std::vector<ChunkBatch> ChunkTransfer::batches_of(FragmentId p, const quant::CodecSpec& codec,
                                                  std::span<const protocol::SharedBytes> chunks) const {
  std::vector<ChunkBatch> batches;
  const auto first = layout_.chunks_of(p).first;
  for (std::size_t i = 0; i < chunks.size();) {
    if (!chunks[i]) {
      ++i;
      continue;
    }
    auto end = i;
    while (end < chunks.size() && chunks[end]) ++end;
    batches.push_back(batch_from(layout_, first + static_cast<ChunkId>(i), first + static_cast<ChunkId>(end),
                                 codec, staging_));
    i = batches.back().last - first;
  }
  return batches;
}

std::span<const std::byte> ChunkTransfer::load(const ChunkBatch& batch, const quant::CodecSpec& codec,
                                               std::span<const protocol::SharedBytes> chunks) {
  chunks = chunks.subspan(batch.first - layout_.chunks_of(layout_.fragment_of(batch.first)).first);
  if (in_host_memory()) return *chunks[0];
  loaded_ = &next_slot(incoming_);
  const auto& slot = *loaded_;
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
  passes_.copy(slot.host.data(), slot.device.data(), size);
  return slot.device.first(size);
}

void ChunkTransfer::loaded() {
  if (loaded_ != nullptr) loaded_->busy = passes_.mark();
}

}  // namespace isthmus::outer_sync
