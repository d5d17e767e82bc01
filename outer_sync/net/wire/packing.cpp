#include "net/wire/packing.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using protocol::SharedBytes;

ChunkPacker::ChunkPacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
                         const BufferPool& buffers)
    : layout_(layout), codecs_(codecs), buffers_(buffers) {
  if (stage == quant::Lossless::zstd) packer_.emplace();
}

SharedBytes ChunkPacker::pack(ChunkId chunk, protocol::Round round, const Bytes& bytes) {
  if (!packer_) return nullptr;
  auto packed = buffers_.take(bytes.size());
  const auto size =
      packer_->pack(bytes, quant::scale_part(codecs_.of(round), layout_.chunk(chunk).size), *packed);
  if (!size) return nullptr;
  packed->resize(*size);
  return packed;
}

ChunkUnpacker::ChunkUnpacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
                             const BufferPool& buffers)
    : layout_(layout), codecs_(codecs), buffers_(buffers) {
  if (stage == quant::Lossless::zstd) unpacker_.emplace();
}

std::optional<std::string> ChunkUnpacker::unpack(const ChunkHeader& header, SharedBytes& bytes) {
  if (header.packing == static_cast<std::uint8_t>(quant::Lossless::none)) return std::nullopt;
  if (!unpacker_ || header.packing != static_cast<std::uint8_t>(quant::Lossless::zstd))
    return "a chunk packed in a way that this run does not use";
  if (header.chunk >= layout_.chunk_count()) return "a packed chunk with an unknown number";
  const auto size = quant::encoded_size(codecs_.of(header.round), layout_.chunk(header.chunk).size);
  if (bytes->size() >= size) {
    return "a packed chunk of " + std::to_string(bytes->size()) +
           " bytes; expected fewer than its unpacked " + std::to_string(size);
  }
  auto unpacked = buffers_.take(size);
  if (!unpacker_->unpack(*bytes, *unpacked))
    return "a packed chunk that does not unpack to its " + std::to_string(size) + " bytes";
  bytes = std::move(unpacked);
  return std::nullopt;
}

}  // namespace isthmus::outer_sync::transport
