#pragma once
// Codecs, packers and buffers with which a member encodes, packs and reduces its chunks.

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/quant/lossless.h"
#include "net/member/packing.h"
#include "net/wire/frame.h"

namespace isthmus::outer_sync::transport {

/// Everything that depends on the run's layout. Each part is used by one thread only. Must outlive the io
/// context and the codec thread.
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
  Reducer reducer;                  ///< codec thread; const functions any thread
  ChunkPacker contribution_packer;  ///< the thread that calls contribute(), one at a time
  ChunkPacker result_packer;        ///< codec thread
  ChunkUnpacker unpacker;           ///< io thread
};

}  // namespace isthmus::outer_sync::transport
