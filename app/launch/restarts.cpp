#include "launch/restarts.h"

#include <algorithm>

namespace isthmus::app {

std::chrono::seconds Restarts::pause(std::int64_t restarts) {
  constexpr std::int64_t longest = 60;
  if (restarts == 0) return std::chrono::seconds(0);
  return std::chrono::seconds(std::min(longest, std::int64_t{1} << std::min<std::int64_t>(restarts - 1, 6)));
}

Restarts::Answer Restarts::ask(const std::string& worker, Clock::time_point now) {
  auto& own = workers_[worker];
  if (!own.waits) {
    if (left_ == 0) return Answer::no;
    --left_;
    own.waits = true;
    own.at = now + pause(own.restarts);
  }
  if (now < own.at) return Answer::later;
  own.waits = false;
  ++own.restarts;
  return Answer::now;
}

bool Restarts::any_waits() const {
  return std::ranges::any_of(workers_, [](const auto& worker) { return worker.second.waits; });
}

std::int64_t Restarts::of(const std::string& worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.restarts;
}

}  // namespace isthmus::app
