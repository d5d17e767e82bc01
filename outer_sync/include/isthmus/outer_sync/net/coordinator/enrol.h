#pragma once
// A newcomer's side of enrolment: it calls on the coordinator that its token names.

#include <chrono>
#include <string>

#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/enrolment.h"
#include "isthmus/outer_sync/tls/join_token.h"

namespace isthmus::outer_sync {

struct Enrolled {
  tls::EnrolmentAnswer answer;  ///< accepted
  Address coordinator;          ///< the one of its addresses that has answered
  std::string own_address;      ///< of this machine, on the connection there
};

/// Blocks, for `limit` at most. The secret is sent only to a coordinator whose certificate is of the token's
/// authority and run. Throws Error(network) when none can be reached, none is that, or it refuses.
[[nodiscard]] Enrolled enrol(const tls::JoinToken& token, const tls::EnrolmentRequest& request,
                             std::chrono::steady_clock::duration limit);

}  // namespace isthmus::outer_sync
