#include "transport/pulse.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "transport/duration.h"

namespace isthmus::outer_sync::transport {

using namespace protocol;
using namespace std::chrono_literals;

namespace {
constexpr std::size_t most_beats_unanswered = 64;
constexpr Time longest_lease = 1h + 1min;  ///< network.detect_timeout with network.emulate.rtt at their most
}  // namespace

Time lease_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::duration_cast<Time>(std::chrono::seconds(now.tv_sec) +
                                          std::chrono::nanoseconds(now.tv_nsec));
}

Pulse::Pulse(const NetworkConfig& network, AwakeClock::Clock::duration hold, bool reduces, AwakeClock& clock,
             PeerMesh& mesh, Rounds& rounds, const WireCounters& counters, Rendezvous& meet, Trace& trace,
             Say say)
    : network_(network),
      silence_(to_duration(network.detect_timeout) + 2 * hold),
      reduces_(reduces),
      clock_(clock),
      mesh_(mesh),
      rounds_(rounds),
      counters_(counters),
      meet_(meet),
      trace_(trace),
      say_(std::move(say)),
      rate_(network.rate.bytes_per_second()) {}

// ---- heartbeats ----

/// With what all kinds say.
Heartbeat Pulse::next() {
  Heartbeat beat;
  beat.number = ++number_;
  beats_[beat.number] = lease_time();
  if (beats_.size() > most_beats_unanswered) beats_.erase(beats_.begin());
  {
    const std::lock_guard lock(meet_.mutex);
    beat.step = meet_.report.step;
    beat.loss = meet_.report.loss;
    beat.tokens_per_second = meet_.report.tokens_per_second;
    beat.utilization = meet_.report.utilization;
    beat.bytes_sent = meet_.report.other_bytes;
    beat.inner_steps_per_second = meet_.report.inner_steps_per_second;
    beat.disk_free = meet_.report.disk_free;
    beat.outer_gain = meet_.report.outer_gain;
    beat.outer_correlation = meet_.report.outer_correlation;
    beat.checkpoints = meet_.checkpoints;
    beat.audits = std::exchange(meet_.audits, {});
    beat.contributed = static_cast<std::uint16_t>(meet_.participation.contributed);
  }
  beat.bytes_sent += counters_.total;
  return beat;
}

Heartbeat Pulse::of_observer(const std::vector<FragmentState>& states) {
  auto beat = next();
  for (const auto& fragment : states) beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
  return beat;
}

Heartbeat Pulse::of_member() {
  auto beat = next();
  beat.uplink = rate_;
  if (beat.uplink == 0) beat.uplink = uplink_.bytes_per_second();
  if (!rounds_.in_a_view()) return beat;
  auto& member = rounds_.member();
  beat.view = member.view().number;
  beat.lost = mesh_.lost(silence_);
  beat.paths = mesh_.paths();
  beat.relays = mesh_.relays_number();
  beat.relayed = mesh_.relayed();
  for (const auto& fragment : member.fragments())
    beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
  beat.health = member.take_health();
  return beat;
}

void Pulse::on_reply(const HeartbeatReply& reply) {
  const auto sent = beats_.find(reply.number);
  if (sent == beats_.end()) return;
  const auto now = Trace::Clock::now();
  trace_.async(Trace::Row::control, "heartbeat", reply.number, now - (lease_time() - sent->second), now);
  if (rounds_.stands() && reply.view != 0 && reply.view == rounds_.member().view().number) {
    vouched_ = clock_.now();
    is_left_out_ = false;
    rounds_.member().lease_until(sent->second +
                                 Time(std::min<std::uint64_t>(reply.lease, longest_lease.count())));
    rounds_.member().lowest_applied(reply.lowest);
  }
  beats_.erase(beats_.begin(), std::next(sent));
}

// ---- whether rounds commit ----

void Pulse::silent() {
  if (!down_since_) down_since_ = clock_.now();
}

void Pulse::heard() {
  if (down_since_) vouched_ = clock_.now();
  down_since_.reset();
}

void Pulse::view_begun() {
  suspended_.clear();
  vouched_ = clock_.now();
  is_left_out_ = false;
}

void Pulse::suspended(const std::string& why) {
  suspended_ = why;
  judge_commits();
}

void Pulse::tick() {
  judge_commits();
  uplink_.sample(clock_.now(), counters_.total, mesh_.backed_up());
}

/// Whether a result that is due is worth waiting for. A view change takes a moment; one that takes longer
/// than a silence that counts as a loss may take for ever. While there is no coordinator the view goes on
/// that was in force when it was heard last: none between a seal and its view, whoever else can be reached.
void Pulse::judge_commits() {
  const auto now = clock_.now();
  std::string obstacle = suspended_;
  const bool may_be_left_out = rounds_.in_a_view() && (!down_since_ || !rounds_.member().in_view());
  is_left_out_ = rounds_.in_a_view() && (is_left_out_ || (may_be_left_out && now - vouched_ > silence_));
  if (is_left_out_) obstacle = "this replica is in no view";
  const bool alone = down_since_ && now - *down_since_ > silence_;
  if (alone && !mesh_.lost(silence_).empty())
    obstacle = "the coordinator and some of the members cannot be reached";
  bool changed = false;
  meet_.update([&] {
    changed = meet_.commits != obstacle.empty();
    meet_.commits = obstacle.empty();
  });
  if (changed && !obstacle.empty())
    say_("ROUNDS DO NOT COMMIT: " + obstacle +
         (reduces_ ? "" : ". Training goes on locally for at most outer.max_local_rounds, and waits then."));
  if (changed && obstacle.empty()) say_("rounds commit again");
}

/// Whoever trains does not need it for that; who waits for the run to begin, to go on or to end does.
bool Pulse::has_waited_in_vain(bool done) {
  const bool waits = !rounds_.in_a_view() || done || is_stuck() || (reduces_ && rounds_.nobody_is_up());
  return down_since_ && waits && clock_.now() - *down_since_ > to_duration(network_.join_timeout);
}

bool Pulse::is_stuck() {
  const std::lock_guard lock(meet_.mutex);
  return meet_.stuck && !meet_.commits;
}

}  // namespace isthmus::outer_sync::transport
