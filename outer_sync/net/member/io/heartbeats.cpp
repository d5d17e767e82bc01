#include "net/member/io/heartbeats.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "config/duration.h"

namespace isthmus::outer_sync::transport {

using namespace protocol;
using namespace std::chrono_literals;

namespace {
constexpr std::size_t max_beats_unanswered = 64;
constexpr Time longest_lease = 1h + 1min;  ///< maxima of network.detect_timeout plus network.emulate.rtt
}  // namespace

Time lease_time() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::duration_cast<Time>(std::chrono::seconds(now.tv_sec) +
                                          std::chrono::nanoseconds(now.tv_nsec));
}

Heartbeats::Heartbeats(const NetworkConfig& network, AwakeClock::Clock::duration hold, bool reduces,
                       AwakeClock& clock, PeerMesh& mesh, Rounds& rounds, const WireCounters& counters,
                       IoEnd shared, Trace& trace, Say say)
    : network_(network),
      silence_(to_duration(network.detect_timeout) + 2 * hold),
      reduces_(reduces),
      clock_(clock),
      mesh_(mesh),
      rounds_(rounds),
      counters_(counters),
      shared_(shared),
      trace_(trace),
      say_(std::move(say)),
      rate_(network.rate.bytes_per_second()) {}

// ---- heartbeats ----

/// Fields common to all member kinds.
Heartbeat Heartbeats::next() {
  Heartbeat beat;
  beat.number = ++number_;
  beats_[beat.number] = lease_time();
  if (beats_.size() > max_beats_unanswered) beats_.erase(beats_.begin());
  {
    auto now = shared_.lock();
    const auto& report = now->trainer.report;
    beat.step = report.step;
    beat.loss = report.loss;
    beat.tokens_per_second = report.tokens_per_second;
    beat.utilization = report.utilization;
    beat.bytes_sent = report.other_bytes;
    beat.inner_steps_per_second = report.inner_steps_per_second;
    beat.disk_free = report.disk_free;
    beat.outer_gain = report.outer_gain;
    beat.outer_correlation = report.outer_correlation;
    beat.late_results = report.late_results;
    beat.checkpoints = now->trainer.checkpoints;
    beat.digests = std::exchange(now->both.digests, {});
    beat.contributed = static_cast<std::uint16_t>(now->run.participation.contributed);
  }
  beat.bytes_sent += counters_.total;
  return beat;
}

Heartbeat Heartbeats::of_observer(const std::vector<FragmentState>& states) {
  auto beat = next();
  for (const auto& fragment : states) beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
  return beat;
}

Heartbeat Heartbeats::of_member() {
  auto beat = next();
  beat.uplink = rate_;
  if (beat.uplink == 0) beat.uplink = uplink_.bytes_per_second();
  if (!rounds_.in_a_view()) return beat;
  auto& member = rounds_.member();
  beat.view = member.view().number;
  beat.unreachable = mesh_.unreachable(silence_);
  beat.paths = mesh_.paths();
  beat.relays = mesh_.relays_number();
  beat.relayed = mesh_.relayed();
  for (const auto& fragment : member.fragments())
    beat.fragments.emplace_back(fragment.round, prefix_of(fragment.chain));
  beat.health = member.take_health();
  return beat;
}

void Heartbeats::on_reply(const HeartbeatReply& reply) {
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

void Heartbeats::silent() {
  if (!down_since_) down_since_ = clock_.now();
}

void Heartbeats::heard() {
  if (down_since_) vouched_ = clock_.now();
  down_since_.reset();
}

void Heartbeats::view_begun() {
  suspended_.clear();
  vouched_ = clock_.now();
  is_left_out_ = false;
}

void Heartbeats::suspended(const std::string& why) {
  suspended_ = why;
  judge_commits();
}

void Heartbeats::tick() {
  judge_commits();
  uplink_.sample(clock_.now(), counters_.total, mesh_.backed_up());
}

/// Decides whether waiting for a due result makes sense. A view change takes a moment; if it takes longer
/// than the silence that counts as a loss, it may never end. Without a coordinator, the last view stays in
/// force. Between a seal and its view no view is in force, even if other members can be reached.
void Heartbeats::judge_commits() {
  const auto now = clock_.now();
  std::string obstacle = suspended_;
  const bool may_be_left_out = rounds_.in_a_view() && (!down_since_ || !rounds_.member().in_view());
  is_left_out_ = rounds_.in_a_view() && (is_left_out_ || (may_be_left_out && now - vouched_ > silence_));
  if (is_left_out_) obstacle = "this replica is in no view";
  const bool alone = down_since_ && now - *down_since_ > silence_;
  if (alone && !mesh_.unreachable(silence_).empty())
    obstacle = "the coordinator and some of the members cannot be reached";
  const bool commits = obstacle.empty();
  const bool changed =
      shared_.update([&](IoView values) { return std::exchange(values.run.commits, commits) != commits; });
  if (changed && !obstacle.empty())
    say_("ROUNDS DO NOT COMMIT: " + obstacle +
         (reduces_ ? "" : ". Training continues locally for at most outer.max_local_rounds, then waits."));
  if (changed && obstacle.empty()) say_("rounds commit again");
}

/// Training continues without the coordinator; starting, resuming and finishing a run need it.
bool Heartbeats::has_waited_in_vain(bool done) {
  const bool waits = !rounds_.in_a_view() || done || is_stuck() || (reduces_ && rounds_.no_peer_is_up());
  return down_since_ && waits && clock_.now() - *down_since_ > to_duration(network_.join_timeout);
}

bool Heartbeats::is_stuck() {
  auto now = shared_.lock();
  return now->trainer.stuck && !now->run.commits;
}

}  // namespace isthmus::outer_sync::transport
