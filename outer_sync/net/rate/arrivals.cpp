#include "net/rate/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr auto longest_unseen = 10ms;  ///< between two points, if nothing waits at the second
constexpr auto finest = 2ms;           ///< spacing of points while bytes leave
constexpr std::size_t max_points = 2048;
constexpr int clocks_differ_by = 10'000;       ///< by at most one part in this many
constexpr auto remembered = 10s;               ///< maximum time over which drift accumulates
constexpr int settled = 200, settles_in = 16;  ///< samples
constexpr std::uint64_t worth_saying = 4096;   ///< bytes; more than a report has

const Arrived::Lane* find(const std::vector<Arrived::Lane>& lanes, std::uint64_t connection) {
  const auto at = std::ranges::find(lanes, connection, &Arrived::Lane::connection);
  return at == lanes.end() ? nullptr : &*at;
}

}  // namespace

void SendTimes::left(std::uint64_t bytes, bool idle, Time now) {
  if (bytes < this->bytes()) return;
  const auto before = points_.size() > 1 ? &points_[points_.size() - 2] : nullptr;
  const bool pauses = before && before->bytes == bytes;
  const bool dense = before && before->bytes < points_.back().bytes && now - before->at < finest;
  if (pauses || dense) points_.pop_back();
  points_.push_back({bytes, idle, now});
  if (points_.size() > max_points) points_.pop_front();
}

std::optional<SendTimes::Time> SendTimes::when(std::uint64_t bytes) {
  if (points_.empty() || bytes <= points_.front().bytes || bytes > points_.back().bytes) return std::nullopt;
  while (points_[1].bytes < bytes) points_.pop_front();
  const auto& before = points_[0];
  const auto& after = points_[1];
  const bool pauses = points_.size() == 2 || points_[2].bytes == after.bytes;
  if (after.idle && (pauses || after.at - before.at > longest_unseen)) return std::nullopt;
  const double part =
      static_cast<double>(bytes - before.bytes) / static_cast<double>(after.bytes - before.bytes);
  return before.at + std::chrono::duration_cast<Time>((after.at - before.at) * part);
}

/// The queue on the way there is at most both queues together, so the delay without a queue is between `delay
/// - beyond` and `delay`. Retransmitted data breaks these bounds, so the estimate rises slowly, and once
/// settled no faster than clocks drift apart.
void QueueingDelay::sample(Time delay, Time beyond, Time now) {
  beyond = std::max(beyond, Time{});
  if (!queue_) {
    risen_ = now;
    without_queue_ = delay - beyond;
  }
  auto rises = delay - beyond - without_queue_;
  if (rises > Time{}) {
    const auto drift = std::min<Time>(now - risen_, remembered) / clocks_differ_by;
    rises = samples_ < settled ? rises / settles_in : std::min(rises, drift);
    without_queue_ += rises;
    risen_ = now;
  }
  ++samples_;
  without_queue_ = std::min(without_queue_, delay);
  queue_ = std::min(delay - without_queue_, beyond);
}

/// After all lanes were lost, new ones may take another route.
void Arrivals::begun(std::size_t lane, std::uint64_t connection) {
  lanes_.at(lane) = {.connection = connection};
  const bool none = std::ranges::all_of(lanes_, [](const Lane& l) { return l.connection == 0; });
  if (!none) return;
  queue_ = {};
  all_there_ = false;
}

void Arrivals::heard(const Arrived& said, std::optional<Time> beyond, Time now) {
  // Bounds times so that their differences do not overflow.
  constexpr auto latest = static_cast<std::uint64_t>(std::numeric_limits<Time::rep>::max() / 4);
  if (said.lanes.size() > lanes_.size() || said.at > latest)
    throw Error(ErrorKind::network, "it reported arrived bytes with an invalid time or number of lanes");
  const Time at = std::chrono::nanoseconds(said.at);
  if (at <= heard_at_) return;  // a later report has overtaken it
  heard_at_ = at;
  std::chrono::duration<double, Time::period> weighted{};
  double timed = 0;
  std::uint64_t on_its_way = 0;
  for (auto& lane : lanes_) {
    const auto told = lane.connection == 0 ? nullptr : find(said.lanes, lane.connection);
    if (told && told->bytes > lane.arrived && told->bytes <= lane.send_times.bytes()) {
      const auto more = told->bytes - std::exchange(lane.arrived, told->bytes);
      bytes_ += more;
      at_ = at;
      if (const auto left = lane.send_times.when(told->bytes)) {
        timed += static_cast<double>(more);
        weighted += static_cast<double>(more) * (at - *left);
      }
    }
    on_its_way += lane.send_times.bytes() - lane.arrived;
  }
  all_there_ = on_its_way < worth_saying;
  if (timed > 0 && beyond) queue_.sample(std::chrono::duration_cast<Time>(weighted / timed), *beyond, now);
}

std::optional<Arrivals::Time> Arrivals::queue() const { return all_there_ ? Time{} : queue_.queue(); }

std::optional<Arrived> ArrivalReports::report(std::vector<Arrived::Lane> lanes, Time now) {
  std::uint64_t more = 0;
  Arrived arrived;
  arrived.at = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  for (const auto& lane : lanes) {
    const auto before = find(said_, lane.connection);
    const auto bytes = before ? before->bytes : 0;
    if (lane.bytes <= bytes) continue;
    more += lane.bytes - bytes;
    arrived.lanes.push_back(lane);
  }
  if (more < worth_saying) return std::nullopt;
  said_ = std::move(lanes);
  return arrived;
}

}  // namespace isthmus::outer_sync::transport
