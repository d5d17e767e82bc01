#include "isthmus/outer_sync/engine/memory.h"

#include <algorithm>

#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/exchanges.h"

namespace isthmus::outer_sync {

using protocol::Member;

namespace {

/// Number of rounds for which a member can hold results and resend messages.
constexpr std::size_t max_rounds = Member::max_held + 1;
/// Message overhead per chunk: a header, ids and norms of forty contributors, the samples of a few, an
/// acknowledgement of the other end's chunk.
constexpr std::size_t beside_a_chunk = 1024;
constexpr std::size_t beside_all_chunks = std::size_t{64} << 10;

}  // namespace

std::size_t usual_chunks(const FragmentLayout& layout) { return 6 * std::size_t{layout.chunk_count()}; }

std::size_t max_queued(const FragmentLayout& layout, const protocol::CodecPlan& codecs) {
  const std::size_t times = max_rounds + 1 + (codecs.exchanges ? 1 : 0);
  return beside_all_chunks +
         times * layout.chunk_count() * (largest_encoded_chunk(layout, codecs) + beside_a_chunk);
}

MemoryBound memory_bound(const OuterConfig& config, const FragmentLayout& layout, const protocol::View& view,
                         protocol::MemberIndex self) {
  const auto codecs = codec_plan(config, 0);
  const std::uint64_t parameters = layout.buffer_size() * sizeof(float);
  const std::uint64_t chunk = largest_encoded_chunk(layout, codecs);
  const std::uint64_t warmup = config.warmup_steps > 0 ? 1 : 0, feedback = config.error_feedback ? 1 : 0;
  const std::uint64_t sender = config.sender_feedback() ? 1 : 0;
  // Parameters and momentum; residuals of the sender, of its gradients in the warm-up, and of the owner.
  const auto vectors = 2 + sender + warmup + (feedback + warmup > 0 ? 1 : 0);
  const auto trainers = static_cast<std::uint64_t>(std::ranges::count_if(view.members, protocol::trains));
  const auto owned = static_cast<std::uint64_t>(std::ranges::count(view.owners, self));
  // Of exchanges: this member's part, the partner's, and those of partners that are ahead.
  const std::uint64_t pairs = codecs.exchanges ? 2 : 0;
  const auto ahead = codecs.exchanges ? protocol::Exchanges::max_kept * (trainers > 0 ? trainers - 1 : 0) : 0;
  // Own contributions of two rounds, results, and all contributions to owned chunks.
  const auto chunks =
      (2 + max_rounds + pairs + ahead) * layout.chunk_count() + (Member::window + 1) * trainers * owned;
  const auto usual = std::max(usual_chunks(layout), 2 * (2 * layout.chunk_count() + trainers * owned)) +
                     pairs * layout.chunk_count();
  const std::uint64_t forms = config.lossless_stage() == quant::Lossless::none ? 1 : 2;  // packed, unpacked
  const auto queues = (view.members.size() - 1) * max_queued(layout, codecs);
  return {.state = vectors * parameters, .usual = forms * usual * chunk, .most = chunks * chunk + queues};
}

}  // namespace isthmus::outer_sync
