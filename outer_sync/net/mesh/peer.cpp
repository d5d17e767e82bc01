#include "net/mesh/peer.h"

#include <algorithm>

namespace isthmus::outer_sync::transport {

void Lane::stop_dialling() {
  asio::error_code ignored;
  if (introducing) introducing->close();
  if (connecting != nullptr) connecting->close(ignored);
}

bool Peer::up() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.connection != nullptr; });
}

bool Peer::by_mailbox() const {
  return up() && std::ranges::all_of(lanes, [](const Lane& lane) {
           return !lane.connection || lane.connection->by_mailbox();
         });
}

RateFollower::Time Peer::queue() const {
  return arrivals.queue().value_or(std::max(RateFollower::Time{}, last_tick.round_trip - last_tick.shortest));
}

void Peer::see_what_left(std::size_t lane, Connection::Clock::time_point now) {
  const auto& connection = lanes[lane].connection;
  if (const auto path = connection ? connection->path() : std::nullopt)
    arrivals.left(lane, path->left, path->unsent == 0, now.time_since_epoch());
}

void Peer::say_arrived(Connection::Clock::time_point now) {
  if (!far) return;
  std::vector<Arrived::Lane> arrived;
  for (const auto& lane : lanes) {
    if (const auto path = lane.connection ? lane.connection->path() : std::nullopt)
      arrived.push_back({lane.number, path->received});
  }
  const auto report = reports.report(std::move(arrived), now.time_since_epoch());
  if (!report) return;
  // On the lane with the least queued: early feedback is better.
  Connection* quickest = nullptr;
  for (const auto& lane : lanes) {
    if (!lane.connection || !lane.connection->open()) continue;
    if (!quickest || lane.connection->queued_bytes() < quickest->queued_bytes())
      quickest = lane.connection.get();
  }
  if (quickest) quickest->send({FrameType::arrived, to_bytes(*report), nullptr});
}

void Peer::handle_arrived(const Arrived& said, Connection::Clock::time_point now) {
  for (std::size_t lane = 0; lane < lanes.size() && said.lanes.size() <= lanes.size(); ++lane) {
    if (std::ranges::count(said.lanes, lanes[lane].number, &Arrived::Lane::connection) > 0)
      see_what_left(lane, now);
  }
  std::optional<RateFollower::Time> beyond;
  if (last_tick.round_trip > RateFollower::Time{}) beyond = last_tick.round_trip - last_tick.shortest;
  arrivals.heard(said, beyond, now.time_since_epoch());
}

void Peer::close_lanes() {
  for (const auto& lane : lanes) {
    if (lane.connection) lane.connection->close();
  }
}

void Peer::retire() {
  gone = true;
  outbox.clear();
  link_free.cancel();
  close_lanes();
  for (auto& lane : lanes) {
    lane.stop_dialling();
    lane.turn.cancel();
  }
}

}  // namespace isthmus::outer_sync::transport
