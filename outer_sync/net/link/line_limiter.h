#pragma once
// Limits how often and how long log lines about strangers are.

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace isthmus::outer_sync::transport {

/// Passes one line per second, short and printable, and counts the rest: a flood of strangers must not flood
/// the log, and text from them must not pass for lines of our own.
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
