#include "net/link/line_limiter.h"

#include <utility>

#include "isthmus/base/text.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

/// A line may contain text from strangers, so it is cut to a readable length.
constexpr std::size_t longest_line = 500;

}  // namespace

void LineLimiter::operator()(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < 1s) {
    ++swallowed_;
    return;
  }
  last_ = now;
  const auto more = std::exchange(swallowed_, 0);
  const auto line = printable(text, longest_line);
  out_(more == 0 ? line : line + " (and " + std::to_string(more) + " more such)");
}

}  // namespace isthmus::outer_sync::transport
