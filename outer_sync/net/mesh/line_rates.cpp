#include "net/mesh/line_rates.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "isthmus/base/time.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

namespace {

constexpr auto pacing_depth = 5ms;
constexpr double lane_headroom = 1.05, path_headroom = 1.25;
constexpr auto bbr_renewal = 8s;
constexpr auto unsent_lasts = 20ms, min_unsent_lasts = 10ms;
constexpr auto queue_shows = 10ms;
constexpr double min_unsent = 16 * 1024, max_unsent = 4 * 1024 * 1024;

}  // namespace

void LineRates::tick(const Peers& peers, Time now) {
  const auto since = now - std::exchange(ticked_, now);
  for (const auto& [id, peer] : peers) {
    look_at(*peer, since);
    renew_one(*peer, now);
  }
  share_out(peers, now);
}

/// Reads the progress of the peer's lanes since the last tick.
void LineRates::look_at(Peer& peer, Connection::Clock::duration since) {
  const auto delivered_before = peer.last_tick.delivered;
  peer.last_tick.line_is_full = peer.path_is_full();
  double weighted = 0;
  peer.last_tick.shortest = {};
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
    auto& lane = peer.lanes[i];
    const auto path = lane.connection ? lane.connection->path() : std::nullopt;
    if (!path) continue;
    peer.arrivals.left(i, path->left, path->unsent == 0, ticked_.time_since_epoch());
    const auto delivered = path->delivered - std::min(path->delivered, lane.delivered);
    lane.delivered = path->delivered;
    peer.last_tick.delivered += delivered;
    peer.last_tick.line_is_full = peer.last_tick.line_is_full || path->unsent > 0;
    keep_unsent_short(peer, lane, static_cast<double>(delivered) / seconds(since));
    // Round trips are measured on acknowledged data; without any, the last values mean nothing.
    weighted += static_cast<double>(delivered) * static_cast<double>(path->round_trip.count());
    const RateFollower::Time shortest = path->shortest_round_trip;
    peer.last_tick.shortest = peer.last_tick.shortest == RateFollower::Time{}
                                  ? shortest
                                  : std::min(peer.last_tick.shortest, shortest);
  }
  const auto delivered = peer.last_tick.delivered - delivered_before;
  if (peer.far) delivered_ += delivered;
  if (delivered > 0)
    peer.last_tick.round_trip =
        std::chrono::microseconds(std::llround(weighted / static_cast<double>(delivered)));
  // Data in the path's own queue waits too.
  const bool queued = delivered > 0 && peer.queue() > queue_shows;
  peer.last_tick.line_is_full = peer.last_tick.line_is_full || queued;
}

/// Nothing can overtake data in a lane's socket, neither urgent frames nor acknowledgements, and once its
/// congestion control releases the data, it adds to what other lanes carry. So each socket gets only what the
/// path takes while the io thread may be busy elsewhere.
void LineRates::keep_unsent_short(const Peer& peer, Lane& lane, double delivers) {
  const double line = static_cast<double>(peer.follower.delivers());
  const double least = line > 0 ? line * seconds(min_unsent_lasts) : Connection::first_unsent;
  const double wanted = std::max(delivers * seconds(unsent_lasts), least);
  const auto bytes = static_cast<std::uint32_t>(std::clamp(wanted, min_unsent, max_unsent));
  // Grows at once but shrinks slowly: between two fragments a lane delivers nothing.
  const auto kept = std::max(bytes, lane.max_unsent - lane.max_unsent / 16);
  if (kept == lane.max_unsent) return;
  lane.max_unsent = kept;
  lane.connection->hold_unsent_at_most(kept);
}

/// Every ten seconds BBR stops for 200 ms to measure the shortest round trip, and lanes that started together
/// stop together. Here the rate is known from all lanes, so BBR is restarted before that, one lane at a time,
/// while the others continue.
void LineRates::renew_one(Peer& peer, Time now) const {
  if (!peer.pacer || congestion_ != "bbr" || peer.outbox.under_way() == 0) return;
  if (now < peer.renew_at) return;
  peer.renew_at = now + bbr_renewal / static_cast<int>(peer.lanes.size());
  peer.renew_next = (peer.renew_next + 1) % peer.lanes.size();
  if (const auto& connection = peer.lanes[peer.renew_next].connection) connection->renew_congestion_control();
}

void LineRates::share_out(const Peers& peers, Time now) {
  std::vector<PeerPtr> busy, idle;
  RateFollower::Sample all{.now = now.time_since_epoch(),
                           .arrived = delivered_,
                           .arrived_at = now.time_since_epoch(),
                           .shortest = RateFollower::Time::max()};
  for (const auto& [id, peer] : peers) {
    const bool full = peer->last_tick.line_is_full;
    if (most_ == 0 && peer->far)
      peer->follower.sample({all.now, peer->arrivals.bytes(), peer->arrivals.at(), full, peer->path_is_full(),
                             peer->queue(), peer->last_tick.shortest});
    if (most_ == 0 && !peer->far) continue;
    if (!full && peer->outbox.under_way() == 0) {
      idle.push_back(peer);
      continue;
    }
    busy.push_back(peer);
    all.busy = all.busy || full;
    all.full = all.full || peer->path_is_full();
    all.queue = std::max(all.queue, peer->queue());  // the longest of all peers
    all.shortest = std::min(all.shortest, peer->last_tick.shortest);
  }
  all.busy = all.busy && busy.size() > 1;
  if (most_ == 0) all_.sample(all);
  const auto total = most_ > 0 ? most_ : busy.size() > 1 ? all_.rate() : 0;
  std::vector<std::uint64_t> caps;
  for (const auto& peer : busy) {
    const auto delivers = static_cast<double>(peer->follower.delivers());
    caps.push_back(static_cast<std::uint64_t>(most_ > 0 ? 0 : path_headroom * delivers));
  }
  const auto shares = fair_shares(total, caps);
  for (std::size_t i = 0; i < busy.size(); ++i)
    pace(*busy[i], total > 0 ? std::max<std::uint64_t>(shares[i], 1) : busy[i]->follower.rate());
  // If sending to a peer starts before the next tick, it starts with this share.
  for (const auto& peer : idle) {
    if (most_ > 0) pace(*peer, most_ / (busy.size() + 1));
  }
}

/// All lanes together keep to the rate, and the system paces each. A lane may exceed its share to make up for
/// another that congestion control holds back for a moment.
void LineRates::pace(Peer& peer, std::uint64_t rate) const {
  if (rate == 0) {
    peer.pacer.reset();
  } else if (peer.pacer) {
    peer.pacer->set_rate(rate);
  } else {
    peer.pacer.emplace(rate, pacing_depth);
  }
  const auto up =
      std::ranges::count_if(peer.lanes, [](const Lane& lane) { return lane.connection != nullptr; });
  if (up == 0 || !system_paces_) return;
  const auto share = static_cast<std::uint64_t>(lane_headroom * static_cast<double>(rate));
  for (auto& lane : peer.lanes) {
    if (lane.connection && std::exchange(lane.rate, share) != share) lane.connection->pace(share);
  }
}

}  // namespace isthmus::outer_sync::transport
