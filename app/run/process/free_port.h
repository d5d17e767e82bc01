#pragma once

#include <cstdint>

namespace isthmus::app {

/// A TCP port that is free now, below the range of outgoing connections, so that none of those takes it.
/// Another process may take it before it is used; binding then reports an error.
[[nodiscard]] std::uint16_t free_port();

}  // namespace isthmus::app
