#pragma once

#include <chrono>

#include "isthmus/base/config.h"

namespace isthmus::outer_sync::transport {

/// Converts a config duration to one of the steady clock, which the timers use.
[[nodiscard]] inline std::chrono::steady_clock::duration to_duration(const config::Duration& duration) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(duration.seconds));
}

}  // namespace isthmus::outer_sync::transport
