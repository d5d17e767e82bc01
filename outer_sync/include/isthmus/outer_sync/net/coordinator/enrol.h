#pragma once
// The joining machine's side of enrolment: it contacts the coordinator named in its token.

#include <chrono>
#include <string>

#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/enrolment.h"
#include "isthmus/outer_sync/tls/join_token.h"

namespace isthmus::outer_sync {

struct Enrolled {
  tls::EnrolmentAnswer answer;  ///< accepted
  Address coordinator;          ///< the address that has answered
  std::string own_address;      ///< of this machine, on that connection
};

/// Blocks for at most `limit`. Sends the secret only to a coordinator with a certificate of the token's
/// authority and run. Throws Error(network) if no address can be reached, none has such a certificate, or the
/// coordinator refuses.
[[nodiscard]] Enrolled enrol(const tls::JoinToken& token, const tls::EnrolmentRequest& request,
                             std::chrono::steady_clock::duration limit);

}  // namespace isthmus::outer_sync
