#pragma once
// What strangers do is said, but not so often and not so long that it does harm.

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace isthmus::outer_sync::transport {

/// Lets one line through per second, short and printable, and counts the rest: a flood of strangers must not
/// become a flood of lines, nor may what they say be taken for lines of our own.
class LineLimiter {
 public:
  explicit LineLimiter(std::function<void(const std::string&)> out) : out_(std::move(out)) {}
  void operator()(const std::string& text);

 private:
  std::function<void(const std::string&)> out_;
  std::chrono::steady_clock::time_point last_{};
  std::size_t swallowed_ = 0;
};

}  // namespace isthmus::outer_sync::transport
