#pragma once
// The tools that a member needs for its chunks.

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/lossless.h"
#include "net/member/packing.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// What follows from the layout of the run. Each part belongs to one thread. Must outlive the io context and
/// the codec thread.
struct CodecContext {
  CodecContext(const FragmentLayout& run, const protocol::CodecPlan& plan, quant::Lossless lossless)
      : layout(run),
        codecs(plan),
        reducer(layout, codecs),
        contribution_packer(lossless, layout, codecs, reducer.buffers()),
        result_packer(lossless, layout, codecs, reducer.buffers()),
        unpacker(lossless, layout, codecs, reducer.buffers()) {}
  CodecContext(const CodecContext&) = delete;
  CodecContext& operator=(const CodecContext&) = delete;

  /// The largest frame that a peer can legally send in this run.
  [[nodiscard]] std::size_t largest_frame() const {
    return largest_chunk_frame(largest_encoded_chunk(layout, codecs));
  }

  const FragmentLayout layout;
  const protocol::CodecPlan codecs;
  Reducer reducer;                  ///< of the codec thread, but for what is const
  ChunkPacker contribution_packer;  ///< of whichever thread hands contributions in, one at a time
  ChunkPacker result_packer;        ///< of the codec thread
  ChunkUnpacker unpacker;           ///< of the io thread
};

}  // namespace isthmus::outer_sync::transport
