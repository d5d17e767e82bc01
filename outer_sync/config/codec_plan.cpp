#include "isthmus/outer_sync/config/codec_plan.h"

namespace isthmus::outer_sync {

protocol::CodecPlan codec_plan(const OuterConfig& config, std::uint64_t seed) {
  return {.codec = config.codec_spec(),
          .warmup_codec = config.warmup_codec_spec(),
          .warmup_rounds = static_cast<protocol::Round>(config.warmup_steps),
          .error_feedback = config.error_feedback,
          .sender_feedback = config.sender_feedback(),
          .feedback_decay = static_cast<float>(config.feedback_decay),
          .seed = seed,
          .exchanges = config.gossip_every > 0};
}

}  // namespace isthmus::outer_sync
