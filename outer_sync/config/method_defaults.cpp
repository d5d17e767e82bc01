#include "config/method_defaults.h"

#include "isthmus/outer_sync/config/config.h"

namespace isthmus::outer_sync::methods {

void make_eager(OuterConfig& config) {
  config.sync_delay = 0;
  config.merge = "alpha";
  config.merge_alpha = 0;
  config.optimizer.average_first = config.optimizer.average_last = 0;
}

void make_co2(OuterConfig& config) {
  config.sync_delay = 0;
  config.merge = "alpha";
  config.merge_alpha = 0;
  config.optimizer.average_first = config.optimizer.average_last = 0;
  config.optimizer.nesterov = false;
}

void make_sparse(OuterConfig& config) {
  config.num_fragments = 1;
  config.sync_delay = 0;
  config.merge = "alpha";
  config.merge_alpha = 0;
  config.codec = "topk";
  config.error_feedback = true;
  config.feedback_decay = 0.95;
  config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
}

}  // namespace isthmus::outer_sync::methods
