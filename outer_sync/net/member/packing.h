#pragma once
// The lossless stage on a chunk's way: packed before the io thread gets it, unpacked before the protocol
// does, which knows codec bytes alone.

#include <optional>
#include <string>

#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/lossless.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// Belongs to one thread. The layout must outlive it.
class ChunkPacker {
 public:
  ChunkPacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
              const BufferPool& buffers);
  /// Null where nothing is packed in this run, or packing would not make it smaller.
  [[nodiscard]] protocol::SharedBytes pack(ChunkId chunk, protocol::Round round, const Bytes& bytes);

 private:
  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  BufferPool buffers_;
  std::optional<quant::Packer> packer_;
};

/// Belongs to one thread: the io thread. Some twenty microseconds per chunk of 35 kB are less than a tenth of
/// its time at 1 Gbit/s; on another thread chunks would come back in another order, and a connection would be
/// dropped for what it said long ago.
class ChunkUnpacker {
 public:
  ChunkUnpacker(quant::Lossless stage, const FragmentLayout& layout, protocol::CodecPlan codecs,
                const BufferPool& buffers);
  /// Puts the codec bytes in the place of packed ones; leaves alone what is not packed. Returns why the
  /// sender breaks the protocol.
  [[nodiscard]] std::optional<std::string> unpack(const ChunkHeader& header, protocol::SharedBytes& bytes);

 private:
  const FragmentLayout& layout_;
  protocol::CodecPlan codecs_;
  BufferPool buffers_;
  std::optional<quant::Unpacker> unpacker_;
};

}  // namespace isthmus::outer_sync::transport
