#pragma once
// Codecs, packers and buffers with which a member encodes, packs and reduces its chunks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/view_change.h"
#include "isthmus/quant/lossless.h"
#include "net/wire/frame.h"
#include "net/wire/packing.h"

namespace isthmus::outer_sync::transport {

/// Settings of the run that a member needs.
struct MemberRules {
  protocol::CodecPlan codecs;
  protocol::ClosingRule closing;
  quant::Lossless lossless = quant::Lossless::none;
  bool moments = false;              ///< the state includes the inner optimizer's moments
  std::uint64_t chunk_elements = 0;  ///< required chunk size, while the layout is unknown
};

/// Everything that depends on the run's layout. Each part is used by one thread only.
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

/// The codec context, which a reducer lacks until its first view. Must outlive the io context and the codec
/// thread.
class RunCodecs {
 public:
  /// `layout` is null for a reducer.
  RunCodecs(const MemberRules& rules, const FragmentLayout* layout) : rules(rules) {
    if (layout != nullptr) context_.emplace(*layout, rules.codecs, rules.lossless);
  }
  const MemberRules rules;

  [[nodiscard]] bool known() const { return context_.has_value(); }
  [[nodiscard]] CodecContext& operator*() { return *context_; }
  [[nodiscard]] CodecContext* operator->() { return &*context_; }
  [[nodiscard]] const CodecContext* operator->() const { return &*context_; }
  /// The bytes that may be queued for one peer; no limit while the layout is unknown.
  [[nodiscard]] std::size_t max_bytes_queued() const {
    return context_ ? max_queued(context_->layout, rules.codecs) : SIZE_MAX;
  }
  /// Takes the layout from a reducer's view. Throws Error(network) if it is invalid for this run, or another
  /// one than before.
  void learn(const protocol::NewView& view) {
    auto layout = protocol::layout_of(view.layout, view.chunk_elements);
    if (!layout || view.chunk_elements != rules.chunk_elements)
      throw Error(ErrorKind::network, "it announced a view with a layout that is invalid for this run");
    if (!context_) context_.emplace(*layout, rules.codecs, rules.lossless);
    if (!std::ranges::equal(context_->layout.fragments(), view.layout))
      throw Error(ErrorKind::network, "it announced a view with a different layout than before");
  }

 private:
  std::optional<CodecContext> context_;
};

}  // namespace isthmus::outer_sync::transport
