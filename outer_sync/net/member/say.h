#pragma once

#include <functional>
#include <string>

namespace isthmus::outer_sync::transport {

/// Logs one line, without a line break, about an event.
using Say = std::function<void(const std::string& text)>;

}  // namespace isthmus::outer_sync::transport
