#pragma once

#include <cstdint>
#include <random>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::transport {

/// A random digest that serves as a secret.
[[nodiscard]] inline Digest unguessable_digest() {
  std::random_device device;
  Digest digest;
  for (auto& byte : digest.bytes) byte = static_cast<std::uint8_t>(device());
  return digest;
}

}  // namespace isthmus::outer_sync::transport
