#pragma once
// Sends one command to a coordinator and waits for the answer: for `isthmus ctl` and other queries of a run's
// status.

#include <chrono>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/messages/commands.h"

namespace isthmus::outer_sync {

/// Dials `network.coordinator` (each address in turn until one answers), with the certificate in
/// `network.certs`, which must be an operator's, or without certificates if that is empty. Blocks until the
/// answer arrives. Throws Error(config) for an invalid address, Error(data) for unreadable certificates, and
/// Error(network) if no coordinator of this run's authority answers within `limit`.
[[nodiscard]] protocol::Answer ask(const NetworkConfig& network, const protocol::Command& command,
                                   std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace isthmus::outer_sync
