#pragma once

#include <functional>
#include <string>

namespace isthmus::outer_sync::transport {

/// Takes one line per event, without a line break, for whoever watches the process.
using Say = std::function<void(const std::string& text)>;

}  // namespace isthmus::outer_sync::transport
