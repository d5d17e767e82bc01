#include "launch/restarts.h"

#include <algorithm>
#include <csignal>

#include "isthmus/base/error.h"

namespace isthmus::app {

std::chrono::seconds Restarts::pause(std::int64_t in_a_row) {
  constexpr std::int64_t longest = 60;
  if (in_a_row == 0) return std::chrono::seconds(0);
  return std::chrono::seconds(std::min(longest, std::int64_t{1} << std::min<std::int64_t>(in_a_row - 1, 6)));
}

std::optional<Restarts::Cause> Restarts::cause_of(int status) {
  if (status == exit_status(ErrorKind::network)) return Cause::lost;
  if (status > 128 && status != 128 + SIGINT && status != 128 + SIGTERM) return Cause::died;
  return std::nullopt;
}

bool Restarts::coordinator_returns(int status) {
  constexpr int stopped = 130;
  return status != 0 && status != stopped && status != exit_status(ErrorKind::config) &&
         status != exit_status(ErrorKind::divergence);
}

Restarts::Answer Restarts::ask(const std::string& name, Cause cause, Clock::time_point now) {
  auto& own = processes_[name];
  if (!own.waits) {
    if (cause == Cause::died && own.deaths >= most_) return Answer::no;
    if (cause == Cause::died) ++own.deaths;
    if (own.in_a_row > 0 && now - own.at >= settled) own.in_a_row = 0;
    own.waits = true;
    own.at = now + pause(own.in_a_row);
  }
  if (now < own.at) return Answer::later;
  own.waits = false;
  own.at = now;
  ++own.restarts;
  ++own.in_a_row;
  return Answer::now;
}

std::int64_t Restarts::of(const std::string& name) const {
  const auto found = processes_.find(name);
  return found == processes_.end() ? 0 : found->second.restarts;
}

}  // namespace isthmus::app
