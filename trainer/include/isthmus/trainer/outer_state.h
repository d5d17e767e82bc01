#pragma once
// Where a replica's outer state lies: with its parameters.

#include <memory>

#include "isthmus/outer_sync/outer_state.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// On the replica's device, by that device's passes; `codecs` are the run's. The replica must outlive it.
[[nodiscard]] std::unique_ptr<outer_sync::OuterState> make_outer_state(
    Replica& replica, const outer_sync::protocol::CodecPlan& codecs);

}  // namespace isthmus::trainer
