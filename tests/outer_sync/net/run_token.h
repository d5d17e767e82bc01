#pragma once
// The token of the run in tests of the transport.

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::transport {

inline Digest run_token() {
  Digest token;
  token.bytes.fill(7);
  return token;
}

}  // namespace isthmus::outer_sync::transport
