#pragma once

#include <cstdint>

namespace isthmus::app {

/// A TCP port that nobody listens at now. Somebody may take it before it is used; then binding says so.
[[nodiscard]] std::uint16_t free_port();

}  // namespace isthmus::app
