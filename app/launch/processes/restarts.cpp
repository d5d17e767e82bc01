#include "launch/processes/restarts.h"

#include <algorithm>
#include <csignal>

#include "isthmus/base/error.h"

namespace isthmus::app {

using namespace std::chrono_literals;

std::chrono::seconds Restarts::pause(std::int64_t in_a_row) {
  constexpr std::int64_t longest = 60;
  if (in_a_row == 0) return std::chrono::seconds(0);
  return std::chrono::seconds(std::min(longest, std::int64_t{1} << std::min<std::int64_t>(in_a_row - 1, 6)));
}

std::optional<Restarts::Cause> Restarts::cause_of(int status) {
  if (status == exit_status(ErrorKind::network)) return Cause::lost;
  const bool asked_to = status == 0 || status == 128 + SIGINT || status == 128 + SIGTERM;
  const bool is_for_good =
      status == exit_status(ErrorKind::config) || status == exit_status(ErrorKind::divergence);
  if (asked_to || is_for_good) return std::nullopt;
  return status > 126 ? Cause::died : Cause::failed;
}

bool Restarts::coordinator_returns(int status) {
  constexpr int stopped = 130;
  return status != 0 && status != stopped && status != exit_status(ErrorKind::divergence);
}

Restarts::Answer Restarts::ask(const std::string& name, Cause cause, Clock::time_point now) {
  auto& own = processes_[name];
  if (!own.waits) {
    if (cause != Cause::lost && own.deaths >= max_restarts_) return Answer::no;
    if (cause != Cause::lost) ++own.deaths;
    if (own.in_a_row > 0 && now - own.at >= settled) own.in_a_row = 0;
    own.waits = true;
    own.at = now + std::max(pause(own.in_a_row), cause == Cause::failed ? after_failure : 0s);
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
