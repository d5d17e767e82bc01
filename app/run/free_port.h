#pragma once

#include <cstdint>

namespace isthmus::app {

/// A TCP port that nobody listens at now, from below those that the system gives to connections that go out,
/// so that none of these takes it before it is used. Another process may; then binding says so.
[[nodiscard]] std::uint16_t free_port();

}  // namespace isthmus::app
