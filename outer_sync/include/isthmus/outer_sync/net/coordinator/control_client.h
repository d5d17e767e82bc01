#pragma once
// One command to a coordinator, and its answer: what `isthmus ctl` is made of, and whoever else wants to know
// how a run stands.

#include <chrono>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync {

/// Dials `network.coordinator` (each of its addresses in turn, until one answers) with the certificate in
/// `network.certs`, whose name must be one of an operator's; without certificates where that is empty. Blocks
/// until the answer is there. Throws Error(config) for an address that
/// is none, Error(data) for certificates that cannot be read, and Error(network) when no coordinator is
/// there, it is not of this run's authority, or it does not answer within `limit`.
[[nodiscard]] protocol::Answer ask(const NetworkConfig& network, const protocol::Command& command,
                                   std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace isthmus::outer_sync
