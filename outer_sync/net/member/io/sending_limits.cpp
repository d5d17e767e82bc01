#include "net/member/io/sending_limits.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::transport {

SendingLimits::SendingLimits(const NetworkConfig& network, PeerMesh& mesh, Heartbeats& heartbeats,
                             IoEnd shared, Say say)
    : mesh_(mesh),
      heartbeats_(heartbeats),
      shared_(shared),
      say_(std::move(say)),
      rate_(network.rate.bytes_per_second()),
      join_rate_(static_cast<std::uint64_t>(network.join_rate)),
      calendar_(Calendar::parse(network.calendar)) {
  mesh_.send_at_most(rate_);
}

void SendingLimits::set_rate(const std::string& value) {
  rate_ = rate_of(value).bytes_per_second();
  say_("network.rate is now " + value);
  if (!allowance_) {
    mesh_.send_at_most(rate_);
    heartbeats_.rate_is(rate_);
  }
}

void SendingLimits::set_calendar(const std::string& value) {
  calendar_ = calendar_of(value);
  say_(calendar_.empty() ? "network.calendar is empty now" : "network.calendar is now " + calendar_.text());
  applied_at_.reset();
}

void SendingLimits::tick(WallTime now) {
  if ((calendar_.empty() && !allowance_) || applied_at_ == now) return;
  applied_at_ = now;
  apply(now);
}

void SendingLimits::apply(WallTime now) {
  const auto allowance = calendar_.at(now);
  const bool limited = allowance && !allowance->closed && allowance->bytes_per_second > 0;
  const bool gives = limited && shared_.lock()->run.serving.fetchers > 0;
  if (allowance != allowance_) {
    say_("network.calendar: " + calendar_.words_at(now));
  } else if (gives == gives_) {
    return;
  }
  allowance_ = allowance;
  gives_ = gives;
  const auto rate = allowance ? allowance->bytes_per_second : rate_;
  // State for newcomers takes at most half, so that rounds continue.
  const auto given = limited ? std::min(join_rate_, std::max<std::uint64_t>(rate / 2, 1)) : join_rate_;
  mesh_.close(allowance && allowance->closed);
  mesh_.send_at_most(gives ? rate - given : rate);
  heartbeats_.rate_is(rate);
  if (giver_ == nullptr) return;
  giver_->close(allowance && allowance->closed);
  giver_->send_at_most(given);
}

}  // namespace isthmus::outer_sync::transport
