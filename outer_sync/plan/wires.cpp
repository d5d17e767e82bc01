#include "plan/wires.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace isthmus::outer_sync::plan {

namespace {
std::size_t places_of(const Network& network) {
  return *std::ranges::max_element(network.place) + std::size_t{1};
}
}  // namespace

Wires::Wires(const Network& network, Events& events)
    : network_(network),
      events_(events),
      lines_(network.replicas.size()),
      at_(places_of(network)),
      down_free_(at_.size(), 0),
      path_free_(network.path.empty() ? 0 : lines_.size() * at_.size(), 0),
      received_(at_.size(), 0),
      traffic_(lines_.size()) {
  assert(network.place.size() == lines_.size() && network.one_way.size() == at_.size() * at_.size());
  assert(network.path.empty() || network.path.size() == network.one_way.size());
  for (std::uint32_t m = 0; m < lines_.size(); ++m) at_[network.place[m]].push_back(m);
}

std::uint32_t Wires::begin_round(const Fragment& fragment) {
  const auto members = static_cast<std::uint32_t>(lines_.size());
  const auto places = static_cast<std::uint32_t>(at_.size());
  Round round{
      .fragment = &fragment, .piece_bytes = {}, .reductions = {}, .results = {}, .without_result = places};
  std::uint32_t shares = 0;
  std::vector<double> bytes(places);
  for (const auto& piece : fragment.pieces) {
    std::ranges::fill(bytes, 0);
    for (const auto& share : piece.shares) bytes[network_.place[share.owner]] += share.bytes;
    round.piece_bytes.push_back(std::accumulate(bytes.begin(), bytes.end(), 0.0));
    auto& reductions = round.reductions.emplace_back();
    for (std::uint32_t place = 0; place < places; ++place) {
      if (bytes[place] > 0)
        reductions.push_back({place, bytes[place] / static_cast<double>(at_[place].size()), {members}});
    }
    shares += static_cast<std::uint32_t>(piece.shares.size());
  }
  round.results.assign(places, Awaited{shares});
  rounds_.push_back(std::move(round));
  return static_cast<std::uint32_t>(rounds_.size() - 1);
}

double Wires::share_of(const Piece& piece, std::uint32_t member) {
  const auto share = std::ranges::lower_bound(piece.shares, member, {}, &Piece::Share::owner);
  return share != piece.shares.end() && share->owner == member ? share->bytes : 0;
}

void Wires::contributes(const Event& event) {
  auto& round = rounds_[event.round];
  const auto& piece = round.fragment->pieces[event.piece];
  const double bytes = round.piece_bytes[event.piece] - share_of(piece, event.member);
  const bool leaves = bytes > 1e-9 * piece.shares.front().bytes;
  // Contributions that need not be sent arrive at once.
  for (auto& reduction : round.reductions[event.piece]) {
    if (reduction.place == network_.place[event.member] && (is_alone(event.member) || !leaves))
      contributed(event.round, event.piece, reduction, event.time);
  }
  if (leaves) put(event.member, {number_++, event.round, event.piece, false, bytes}, event.time);
}

void Wires::put(std::uint32_t member, Item item, double now) {
  lines_[member].waiting.push(item);
  if (!lines_[member].busy) carry_next(member, now);
}

void Wires::carry_next(std::uint32_t member, double now) {
  auto& line = lines_[member];
  line.busy = !line.waiting.empty();
  if (!line.busy) return;
  line.item = line.waiting.top();
  line.waiting.pop();
  line.since = now;
  events_.add(now + line.item.bytes / network_.replicas[member].up, Event::Kind::sent, member);
}

/// Spreads the bytes carried from `since` to `now` over windows of one step's time; a window begins when
/// something is sent.
void Wires::count(std::uint32_t member, double now) {
  auto& line = lines_[member];
  auto& traffic = traffic_[member];
  const double window = network_.replicas[member].step_seconds;
  traffic.sent += line.item.bytes;
  const double rate = now > line.since ? line.item.bytes / (now - line.since) : 0;
  double left = line.item.bytes;
  for (double at = line.since; left > 0;) {
    if (at >= line.window_begin + window) {
      line.window_begin = at;
      line.in_window = 0;
    }
    const double end = line.window_begin + window;
    const double part = rate > 0 && now > end ? std::min(left, rate * (end - at)) : left;
    line.in_window += part;
    traffic.peak = std::max(traffic.peak, line.in_window / window);
    left -= part;
    at = end;
  }
}

double Wires::arrival(std::uint32_t from, std::uint32_t to, double bytes, double since, double now) {
  const auto pair = network_.place[from] * at_.size() + to;
  double leaves = now;
  if (!network_.path.empty()) {
    auto& free = path_free_[from * at_.size() + to];
    free = std::max(free, since) + bytes / network_.path[pair];
    leaves = std::max(leaves, free);
  }
  const double one_way = network_.one_way[pair];
  auto& down_free = down_free_[to];
  down_free = std::max(down_free, since + one_way) + bytes / network_.replicas[at_[to].front()].down;
  received_[to] += bytes;
  return std::max(leaves + one_way, down_free);
}

void Wires::sent(const Event& event) {
  const auto item = lines_[event.member].item;
  const double since = lines_[event.member].since;
  count(event.member, event.time);
  const auto own = network_.place[event.member];
  const bool skips_own = is_alone(event.member);
  auto& round = rounds_[item.round];
  if (item.result) {
    const double bytes = share_of(round.fragment->pieces[item.piece], event.member);
    for (std::uint32_t to = 0; to < at_.size(); ++to) {
      if (to != own || !skips_own)
        delivered(item.round, to, arrival(event.member, to, bytes, since, event.time));
    }
  } else {
    for (auto& reduction : round.reductions[item.piece]) {
      if (reduction.place == own && skips_own) continue;
      const double there = arrival(event.member, reduction.place, reduction.bytes, since, event.time);
      contributed(item.round, item.piece, reduction, there);
    }
  }
  carry_next(event.member, event.time);
}

void Wires::contributed(std::uint32_t round, std::uint32_t piece, Reduction& reduction, double at) {
  auto& awaited = reduction.contributions;
  awaited.latest = std::max(awaited.latest, at);
  if (--awaited.missing > 0) return;
  const auto& part = rounds_[round].fragment->pieces[piece];
  for (const auto owner : at_[reduction.place]) {
    if (share_of(part, owner) > 0)
      events_.add(awaited.latest + part.reduce_seconds, Event::Kind::reduced, owner, round, piece);
  }
}

void Wires::reduced(const Event& event) {
  const double bytes = share_of(rounds_[event.round].fragment->pieces[event.piece], event.member);
  if (is_alone(event.member)) delivered(event.round, network_.place[event.member], event.time);
  const auto others = static_cast<double>(lines_.size() - 1);
  if (others > 0) put(event.member, {number_++, event.round, event.piece, true, bytes * others}, event.time);
}

void Wires::delivered(std::uint32_t round, std::uint32_t place, double at) {
  auto& state = rounds_[round];
  auto& awaited = state.results[place];
  awaited.latest = std::max(awaited.latest, at);
  if (--awaited.missing > 0) return;
  events_.add(awaited.latest, Event::Kind::has_result, place, round);
  if (--state.without_result > 0) return;
  // All places have the results: release the memory.
  state.piece_bytes = {};
  state.reductions = {};
  state.results = {};
}

}  // namespace isthmus::outer_sync::plan
