#pragma once
// The lossless stage: packs chunks before they reach the io thread, and unpacks them before they reach the
// protocol, which only knows codec bytes.

#include <optional>
#include <string>

#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/lossless.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// Used by one thread only. The layout must outlive it.
class ChunkPacker {
 public:
  ChunkPacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
              const BufferPool& buffers);
  /// Null if this run packs nothing, or packing would not make the chunk smaller.
  [[nodiscard]] protocol::SharedBytes pack(ChunkId chunk, protocol::Round round, const Bytes& bytes);

 private:
  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  BufferPool buffers_;
  std::optional<quant::Packer> packer_;
};

/// Used by the io thread only: unpacking is many times faster than a link of 1 Gbit/s
/// (docs/results/network.md, "Lossless compression"). On another thread, chunks would arrive out of order,
/// and a connection would be dropped for bytes received long before.
class ChunkUnpacker {
 public:
  ChunkUnpacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
                const BufferPool& buffers);
  /// Replaces packed bytes by codec bytes; leaves unpacked ones alone. Returns the sender's breach of the
  /// protocol, if any.
  [[nodiscard]] std::optional<std::string> unpack(const ChunkHeader& header, protocol::SharedBytes& bytes);

 private:
  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  BufferPool buffers_;
  std::optional<quant::Unpacker> unpacker_;
};

}  // namespace isthmus::outer_sync::transport
