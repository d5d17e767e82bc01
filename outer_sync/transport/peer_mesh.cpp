#include "transport/peer_mesh.h"

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cmath>
#include <tuple>
#include <utility>

#include "isthmus/base/error.h"
#include "transport/listen.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using protocol::ReplicaId;
using namespace std::chrono_literals;

namespace {

constexpr auto redial_after = 100ms;
constexpr auto dial_time_limit = 5s;
/// So long the end that dials first is left alone, or a quarter of the time after which a connection that
/// carries nothing counts as lost.
constexpr Connection::Clock::duration head_start = 2s;
constexpr std::size_t most_breaches = 5;
constexpr auto pacing_depth = 5ms;
constexpr double lane_headroom = 1.05, path_headroom = 1.25;
constexpr auto bbr_renewal = 8s;
constexpr auto unsent_lasts = 20ms, least_unsent_lasts = 10ms;
constexpr auto queue_shows = 10ms;
constexpr double least_unsent = 16 * 1024, most_unsent = 4 * 1024 * 1024;
constexpr std::size_t longest_line = 500;  ///< of what strangers are said to have done

double seconds(Connection::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

Frame hello_frame(const PeerHello& hello) { return {FrameType::peer_hello, to_bytes(hello), nullptr}; }

/// Of one learner, while it is served.
class LearnerPlace {
 public:
  explicit LearnerPlace(std::shared_ptr<std::size_t> taken) : taken_(std::move(taken)) { ++*taken_; }
  ~LearnerPlace() { --*taken_; }
  LearnerPlace(const LearnerPlace&) = delete;
  LearnerPlace& operator=(const LearnerPlace&) = delete;

 private:
  std::shared_ptr<std::size_t> taken_;
};

/// What strangers say of themselves may be in it: it stays one line, of a length that can be read.
std::string fit_for_the_log(std::string line) {
  if (line.size() > longest_line) line = line.substr(0, longest_line) + " ...";
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return line;
}

}  // namespace

void LineLimiter::operator()(const std::string& text) {
  const auto now = Connection::Clock::now();
  if (now - last_ < 1s) {
    ++swallowed_;
    return;
  }
  last_ = now;
  const auto more = std::exchange(swallowed_, 0);
  const auto line = fit_for_the_log(text);
  out_(more == 0 ? line : line + " (and " + std::to_string(more) + " more such)");
}

PeerMesh::PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes,
                   WireCounters& counters, LinkOptions link, AwakeClock& clock, Trace& trace,
                   Handler& handler)
    : io_(io),
      acceptor_(std::move(acceptor)),
      lanes_(lanes),
      counters_(counters),
      link_(link),
      clock_(clock),
      trace_(trace),
      handler_(handler),
      stranger_line_([&handler](const std::string& line) { handler.on_message(line); }),
      waiting_(io, Connection::Clock::time_point::max()) {
  if (acceptor_.is_open()) asio::co_spawn(io_, accept_loop(), asio::detached);
}

void PeerMesh::begin(ReplicaId self, std::string self_name, const Digest& token, std::size_t frame_limit,
                     const BufferPool& chunks) {
  self_ = self;
  self_name_ = std::move(self_name);
  token_ = token;
  frame_limit_ = frame_limit;
  chunks_ = chunks;
  begun_ = true;
  ways_.set(self_, told_);
  waiting_.cancel();
}

// ---- peers ----

bool PeerMesh::Peer::up() const {
  return std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.connection != nullptr; });
}

bool PeerMesh::up(ReplicaId peer) const {
  const auto place = peers_.find(peer);
  return place != peers_.end() && (place->second->up() || ways_.open(peer));
}

bool PeerMesh::backed_up() const {
  return std::ranges::any_of(peers_, [](const auto& entry) { return !entry.second->outbox.empty(); });
}

void PeerMesh::Peer::retire() {
  gone = true;
  outbox.clear();
  link_free.cancel();
  for (auto& lane : lanes) {
    if (lane.connection) lane.connection->close();
    lane.stop_dialling();
    lane.turn.cancel();
  }
}

void PeerMesh::Lane::stop_dialling() {
  asio::error_code ignored;
  if (introducing) introducing->close();
  if (connecting != nullptr) connecting->close(ignored);
}

void PeerMesh::set_peers(const std::vector<PeerInfo>& peers) {
  std::map<ReplicaId, PeerPtr> next;
  std::vector<PeerPtr> fresh;
  for (const auto& info : peers) {
    std::optional<Address> address;
    if (!info.address.empty()) address = parse_address(info.address, "the address of " + info.name);
    const auto known = peers_.find(info.id);
    auto peer = known != peers_.end() ? known->second : make_peer(info, address);
    if (info.id == self_ || !next.emplace(info.id, peer).second)
      throw Error(ErrorKind::network, info.name + " is named twice among the members");
    if (known == peers_.end()) fresh.push_back(std::move(peer));
  }
  const auto before = std::exchange(peers_, std::move(next));
  for (const auto& [id, peer] : before) {
    if (peers_.contains(id)) continue;
    peer->retire();
    static_cast<void>(ways_.close(id));
    for (const auto& [other, stays] : peers_) stays->outbox.forget_relayed(id);
    ways_lost(id);
  }
  for (const auto& peer : fresh) {
    if (!peer->address) continue;
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      asio::co_spawn(io_, dial_loop(peer, lane), asio::detached);
  }
  waiting_.cancel();
}

PeerMesh::PeerPtr PeerMesh::make_peer(const PeerInfo& info, std::optional<Address> address) {
  std::vector<Lane> lanes;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    lanes.emplace_back(io_);
    lanes.back().down_since = Connection::Clock::now();
  }
  return std::make_shared<Peer>(Peer{.info = info,
                                     .address = std::move(address),
                                     .lanes = std::move(lanes),
                                     .last_up = clock_.now(),
                                     .outbox = Outbox(lanes_),
                                     .arrivals = Arrivals(lanes_),
                                     .link = EmulatedLink(link_.emulate, self_ ^ info.id),
                                     .pacer = {},
                                     .link_free = asio::steady_timer(io_)});
}

/// Of the two ends one dials first, and wins where both dial at once.
bool PeerMesh::comes_first(const Peer& peer) const {
  return std::tie(self_name_, self_) < std::tie(peer.info.name, peer.info.id);
}

// ---- what is sent ----

void PeerMesh::send(ReplicaId peer, std::uint64_t order, const protocol::ChunkMessage& message,
                    const protocol::SharedBytes& packed) {
  dispatch(peer, order, chunk_frame(message, packed), {message.view, message.key});
}

void PeerMesh::say_begun(ReplicaId peer, protocol::ViewNumber view) {
  dispatch(peer, 0, begun_frame(view), {view, std::nullopt});
}

void PeerMesh::dispatch(ReplicaId peer, std::uint64_t order, Frame frame, Outbox::Receipt receipt) {
  const auto at = peers_.find(peer);
  if (at == peers_.end()) return;
  if (at->second->up()) return put(at->second, order, std::move(frame), receipt);
  if (!ways_.open(peer)) return;
  receipt.beyond = peer;
  const auto session = static_cast<std::uint32_t>(ways_.hail(peer).session);
  put(peers_.at(*ways_.relay_to(peer)), order, relayed_frame(self_, peer, std::move(frame), session),
      receipt);
}

void PeerMesh::acknowledge(ReplicaId peer, protocol::ViewNumber view, const protocol::ChunkKey& key) {
  if (!peers_.contains(peer) || !hearing_) return;
  auto ack = ack_frame(view, key);
  hearing_->send(hearing_relayed_ == peer ? relayed_frame(self_, peer, std::move(ack)) : std::move(ack));
}

void PeerMesh::view_begun(protocol::ViewNumber view) {
  view_ = view;
  for (const auto& [id, peer] : peers_) peer->outbox.view_begun(view);
}

void PeerMesh::put(const PeerPtr& peer, std::uint64_t order, Frame frame, const Outbox::Receipt& receipt) {
  if (!peer->up()) return;
  if (peer->outbox.bytes() >= most_queued(*peer)) {
    stranger_line_("dropped the connections to " + peer->info.name + ": it does not read, and " +
                   std::to_string(peer->outbox.bytes()) + " bytes wait for it");
    for (const auto& lane : peer->lanes) {
      if (lane.connection) lane.connection->close();
    }
    return peer->outbox.clear();
  }
  peer->outbox.put(std::move(frame), order, receipt);
  feed(peer);
}

/// As much again for each pair of which one sends to the other over these lanes.
std::size_t PeerMesh::most_queued(const Peer& peer) const {
  const auto times = 1 + ways_.over(peer.info.id);
  return link_.most_queued > SIZE_MAX / times ? SIZE_MAX : link_.most_queued * times;
}

/// What is due first goes to the first lane that is free. So where one lane is fast enough there is one, and
/// it is warm; spread over all, each chunk is as late as the slowest of them.
void PeerMesh::feed(const PeerPtr& peer) {
  const auto is_ready = [&](std::size_t lane) {
    const auto& connection = peer->lanes[lane].connection;
    return connection != nullptr && connection->ready();
  };
  for (std::size_t lane = 0; !peer->outbox.empty();) {
    const auto now = Connection::Clock::now();
    if (must_wait(peer, now)) return;
    while (lane < lanes_ && !is_ready(lane)) ++lane;
    if (lane == lanes_) return;
    auto frame = *peer->outbox.take(lane, clock_.now());
    const auto bytes = size_of(frame);
    if (peer->pacer) peer->pacer->take(bytes, now);
    const auto hold = peer->link.send(bytes, now);
    if (peer->far) see_what_left(*peer, lane, now);
    peer->lanes[lane].connection->send(std::move(frame), hold);
  }
}

bool PeerMesh::must_wait(const PeerPtr& peer, Connection::Clock::time_point now) {
  auto free = peer->link.free_at(now);
  if (peer->pacer) free = std::max(free, peer->pacer->next(now));
  if (free <= now) return false;
  if (std::exchange(peer->waits_for_link, true)) return true;
  peer->link_free.expires_at(free);
  peer->link_free.async_wait([this, peer](const asio::error_code&) {
    peer->waits_for_link = false;
    if (!peer->gone) feed(peer);
  });
  return true;
}

void PeerMesh::tick() {
  const auto now = Connection::Clock::now();
  const auto since = now - std::exchange(ticked_, now);
  for (const auto& [id, peer] : peers_) {
    cut_stalled(*peer);
    look_at(*peer, since);
    say_arrived(*peer);
    renew_one(*peer, now);
  }
  share_out_rate(now);
  hail_all();
}

/// What its lanes have done since the last time.
void PeerMesh::look_at(Peer& peer, Connection::Clock::duration since) {
  const auto delivered_before = peer.delivered;
  peer.line_is_full = !peer.outbox.empty();
  double weighted = 0;
  peer.shortest = {};
  for (std::size_t i = 0; i < lanes_; ++i) {
    auto& lane = peer.lanes[i];
    const auto path = lane.connection ? lane.connection->path() : std::nullopt;
    if (!path) continue;
    peer.arrivals.left(i, path->left, path->unsent == 0, ticked_.time_since_epoch());
    const auto delivered = path->delivered - std::min(path->delivered, lane.delivered);
    lane.delivered = path->delivered;
    peer.delivered += delivered;
    peer.line_is_full = peer.line_is_full || path->unsent > 0;
    keep_unsent_short(peer, lane, static_cast<double>(delivered) / seconds(since));
    // Round trips are known of what is acknowledged: while nothing is, the last ones say nothing.
    weighted += static_cast<double>(delivered) * static_cast<double>(path->round_trip.count());
    const RateFollower::Time shortest = path->shortest_round_trip;
    peer.shortest = peer.shortest == RateFollower::Time{} ? shortest : std::min(peer.shortest, shortest);
  }
  const auto delivered = peer.delivered - delivered_before;
  if (peer.far) delivered_ += delivered;
  if (delivered > 0)
    peer.round_trip = std::chrono::microseconds(std::llround(weighted / static_cast<double>(delivered)));
  // What is in the line's own queue waits too.
  const bool queued = delivered > 0 && peer.queue() > queue_shows;
  peer.line_is_full = peer.line_is_full || queued;
}

RateFollower::Time PeerMesh::Peer::queue() const {
  return arrivals.queue().value_or(std::max(RateFollower::Time{}, round_trip - shortest));
}

void PeerMesh::see_what_left(Peer& peer, std::size_t lane, Connection::Clock::time_point now) {
  const auto& connection = peer.lanes[lane].connection;
  if (const auto path = connection ? connection->path() : std::nullopt)
    peer.arrivals.left(lane, path->left, path->unsent == 0, now.time_since_epoch());
}

void PeerMesh::say_arrived(Peer& peer) {
  if (!peer.far) return;
  std::vector<Arrived::Lane> lanes;
  for (const auto& lane : peer.lanes) {
    if (const auto path = lane.connection ? lane.connection->path() : std::nullopt)
      lanes.push_back({lane.number, path->received});
  }
  const auto report = peer.reports.report(std::move(lanes), Connection::Clock::now().time_since_epoch());
  if (!report) return;
  // By the lane on which the least waits: feedback is the better the sooner it comes.
  Connection* quickest = nullptr;
  for (const auto& lane : peer.lanes) {
    if (!lane.connection || !lane.connection->open()) continue;
    if (!quickest || lane.connection->queued_bytes() < quickest->queued_bytes())
      quickest = lane.connection.get();
  }
  if (quickest) quickest->send({FrameType::arrived, to_bytes(*report), nullptr});
}

void PeerMesh::hear_arrived(Peer& peer, const Arrived& said) {
  const auto now = Connection::Clock::now();
  for (std::size_t lane = 0; lane < lanes_ && said.lanes.size() <= lanes_; ++lane) {
    const auto number = peer.lanes[lane].number;
    if (std::ranges::count(said.lanes, number, &Arrived::Lane::connection) > 0)
      see_what_left(peer, lane, now);
  }
  std::optional<RateFollower::Time> beyond;
  if (peer.round_trip > RateFollower::Time{}) beyond = peer.round_trip - peer.shortest;
  peer.arrivals.heard(said, beyond, now.time_since_epoch());
}

/// What a lane's socket has taken, nothing overtakes, neither what is due sooner nor an acknowledgement, and
/// when its congestion control lets it go at last it comes on top of what other lanes carry: so each gets
/// what the line takes while the io thread may be busy elsewhere, and no more.
void PeerMesh::keep_unsent_short(const Peer& peer, Lane& lane, double delivers) {
  const double line = static_cast<double>(peer.follower.delivers());
  const double least = line > 0 ? line * seconds(least_unsent_lasts) : Connection::first_unsent;
  const double wanted = std::max(delivers * seconds(unsent_lasts), least);
  const auto bytes = static_cast<std::uint32_t>(std::clamp(wanted, least_unsent, most_unsent));
  // It may grow at once, and shrinks slowly: between two fragments a lane delivers nothing.
  const auto kept = std::max(bytes, lane.most_unsent - lane.most_unsent / 16);
  if (kept == lane.most_unsent) return;
  lane.most_unsent = kept;
  lane.connection->hold_unsent_at_most(kept);
}

/// A rate that was set is shared by those who have something to get. Else each line is followed on its own,
/// and where several are in use the one that they share, this member's, is too.
void PeerMesh::share_out_rate(Connection::Clock::time_point now) {
  std::vector<PeerPtr> busy, idle;
  RateFollower::Sample all{.now = now.time_since_epoch(),
                           .arrived = delivered_,
                           .arrived_at = now.time_since_epoch(),
                           .shortest = RateFollower::Time::max()};
  for (const auto& [id, peer] : peers_) {
    const bool full = peer->line_is_full;
    if (rate_ == 0 && peer->far)
      peer->follower.sample({all.now, peer->arrivals.bytes(), peer->arrivals.at(), full,
                             !peer->outbox.empty(), peer->queue(), peer->shortest});
    if (rate_ == 0 && !peer->far) continue;
    if (!full && peer->outbox.under_way() == 0) {
      idle.push_back(peer);
      continue;
    }
    busy.push_back(peer);
    all.busy = all.busy || full;
    all.full = all.full || !peer->outbox.empty();
    all.queue = std::max(all.queue, peer->queue());  // the longest that there is
    all.shortest = std::min(all.shortest, peer->shortest);
  }
  all.busy = all.busy && busy.size() > 1;
  if (rate_ == 0) all_.sample(all);
  const auto total = rate_ > 0 ? rate_ : busy.size() > 1 ? all_.rate() : 0;
  std::vector<std::uint64_t> caps;
  for (const auto& peer : busy) {
    const auto delivers = static_cast<double>(peer->follower.delivers());
    caps.push_back(static_cast<std::uint64_t>(rate_ > 0 ? 0 : path_headroom * delivers));
  }
  const auto shares = fair_shares(total, caps);
  for (std::size_t i = 0; i < busy.size(); ++i)
    pace(*busy[i], total > 0 ? std::max<std::uint64_t>(shares[i], 1) : busy[i]->follower.rate());
  // Who begins to send meanwhile begins with its part.
  for (const auto& peer : idle) {
    if (rate_ > 0) pace(*peer, rate_ / (busy.size() + 1));
  }
}

/// BBR stops for 200 ms, every ten seconds, to see the shortest round trip, and lanes that began together
/// stop together. Here it need not: the rate is known from all lanes at once. So it begins anew before that,
/// on one lane at a time, and the others carry on.
void PeerMesh::renew_one(Peer& peer, Connection::Clock::time_point now) {
  if (!peer.pacer || link_.congestion != "bbr" || peer.outbox.under_way() == 0) return;
  if (now < peer.renew_at) return;
  peer.renew_at = now + bbr_renewal / static_cast<int>(lanes_);
  peer.renew_next = (peer.renew_next + 1) % lanes_;
  if (const auto& connection = peer.lanes[peer.renew_next].connection) connection->renew_congestion_control();
}

void PeerMesh::cut_stalled(Peer& peer) {
  for (const auto lane : peer.outbox.stalled(clock_.now())) {
    handler_.on_message("lane " + std::to_string(lane) + " to " + peer.info.name +
                        " delivers nothing while others do: dialled anew");
    if (peer.lanes[lane].connection) peer.lanes[lane].connection->close();
  }
}

/// All lanes together keep to the rate; the system spreads what each gets. A lane may go faster than its
/// part, so that others make up for one whose congestion control holds it back for a moment.
void PeerMesh::pace(Peer& peer, std::uint64_t rate) {
  if (rate == 0) {
    peer.pacer.reset();
  } else if (peer.pacer) {
    peer.pacer->set_rate(rate);
  } else {
    peer.pacer.emplace(rate, pacing_depth);
  }
  const auto up =
      std::ranges::count_if(peer.lanes, [](const Lane& lane) { return lane.connection != nullptr; });
  if (up == 0 || !link_.system_paces) return;
  const auto share = static_cast<std::uint64_t>(lane_headroom * static_cast<double>(rate));
  for (auto& lane : peer.lanes) {
    if (lane.connection && std::exchange(lane.rate, share) != share) lane.connection->pace(share);
  }
}

void PeerMesh::drop_revoked() {
  for (const auto& [id, peer] : peers_) {
    for (const auto& lane : peer->lanes) {
      if (!lane.connection || !lane.connection->peer_is_revoked()) continue;
      stranger_line_("dropped a connection of " + peer->info.name + ": its certificate has been revoked");
      lane.connection->close();
    }
  }
}

std::vector<protocol::PathReport> PeerMesh::paths() const {
  const auto microseconds = [](RateFollower::Time time) {
    const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(count, 0, UINT32_MAX));
  };
  std::vector<protocol::PathReport> paths;
  for (const auto& [id, peer] : peers_) {
    if (!peer->up() || peer->round_trip == RateFollower::Time{}) continue;
    paths.push_back(
        {id, microseconds(peer->round_trip), microseconds(peer->shortest), peer->follower.delivers()});
  }
  return paths;
}

std::vector<ReplicaId> PeerMesh::lost(AwakeClock::Clock::duration limit) {
  const auto now = clock_.now();
  std::vector<ReplicaId> lost;
  for (const auto& [id, peer] : peers_) {
    if (!up(id) && now - peer->last_up > limit) lost.push_back(id);
  }
  return lost;
}

// ---- connections that come in ----

asio::awaitable<void> PeerMesh::accept_loop() {
  for (;;) {
    asio::error_code error;
    auto socket = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
    if (!acceptor_.is_open()) co_return;
    if (error) {  // out of descriptors, say: the listener must survive it
      asio::steady_timer pause(io_, redial_after);
      co_await pause.async_wait(use_awaitable);
      continue;
    }
    asio::co_spawn(io_, welcome(start_connection(std::move(socket), counters_, link_, trace_, {})),
                   asio::detached);
  }
}

asio::awaitable<void> PeerMesh::welcome(ConnectionPtr connection) {
  PeerHello hello;
  PeerPtr peer;
  try {
    const UnknownConnections::Guest guest(unknown_, connection);
    waiting_.cancel();  // whoever was pushed out need not wait any longer
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold, [this] { waiting_.cancel(); });
    hello = hello_of(co_await connection->receive(unauthenticated_limit));
    peer = co_await peer_that_says(hello, connection);
    if (peer && !may_take_its_place(*peer, peer->lanes[hello.lane], hello)) co_return connection->close();
    connection->send(hello_frame(hello_to(hello.from, hello.lane)));
  } catch (const Error& error) {
    stranger_line_("dropped a connection from " + connection->remote() + ": " + error.what());
    connection->close();
    co_return;
  } catch (const asio::system_error& error) {
    stranger_line_("a connection from " + connection->remote() + " ended before its hello: " + error.what());
    connection->close();
    co_return;
  }
  if (hello.role == PeerRole::learner) {
    co_await teach(hello.from, std::move(connection));
  } else {
    peer->lanes[hello.lane].stop_dialling();
    peer->lanes[hello.lane].accepted = hello.number;
    peer->lanes[hello.lane].dialled_here = false;
    co_await serve(std::move(peer), hello.lane, std::move(connection));
  }
}

/// A peer may hear of a view before we do, and dial us. A learner is none, and null.
asio::awaitable<PeerMesh::PeerPtr> PeerMesh::peer_that_says(PeerHello hello, ConnectionPtr connection) {
  for (;;) {
    if (begun_) check_hello(hello);
    if (begun_ && hello.role == PeerRole::learner) {
      if (*learners_ < most_learners) co_return nullptr;
      throw Error(ErrorKind::network,
                  std::to_string(most_learners) + " others are being given the state already");
    }
    if (const auto at = peers_.find(hello.from); begun_ && at != peers_.end()) {
      const auto shown = connection->peer_name();
      if (!shown.empty() && shown != at->second->info.name)
        throw Error(ErrorKind::network, "it says that it is " + at->second->info.name +
                                            ", and its certificate is of '" + shown + "'");
      // One that has dialled again since must not be pushed out by what it gave up.
      if (connection->hung_up()) throw Error(ErrorKind::network, "it did not wait for an answer");
      co_return at->second;
    }
    asio::error_code woken;
    co_await waiting_.async_wait(asio::redirect_error(use_awaitable, woken));
    if (!connection->open()) throw Error(ErrorKind::network, "it is no member of a view that is known here");
  }
}

PeerHello PeerMesh::hello_to(ReplicaId peer, std::size_t lane) const {
  return {.token = token_, .from = self_, .to = peer, .lane = static_cast<std::uint16_t>(lane)};
}

/// Whether a connection that has come in for a lane is the one that stays. One that is up here was dialled
/// there before, and given up there; or dialled here: then it is over only if the other end has had it. Of
/// two that cross each other before either is up, the one that the first of the two ends has dialled stays,
/// unless it gets nowhere.
bool PeerMesh::may_take_its_place(const Peer& peer, const Lane& lane, const PeerHello& hello) const {
  if (lane.connection) return !lane.dialled_here || hello.lost == lane.dialled;
  const bool crossed = lane.introducing && lane.introducing->open();
  return !crossed || !comes_first(peer) ||
         Connection::Clock::now() - lane.introduced > head_start + 2 * link_.hold;
}

void PeerMesh::check_hello(const PeerHello& hello) const {
  const bool known_role = hello.role == PeerRole::member || hello.role == PeerRole::learner;
  const bool proper =
      hello.token == token_ && hello.to == self_ && hello.from != self_ && hello.lane < lanes_ && known_role;
  if (!proper) throw Error(ErrorKind::network, "its hello is not of this run or not for this replica");
}

asio::awaitable<void> PeerMesh::teach(ReplicaId learner, ConnectionPtr connection) {
  const LearnerPlace place(learners_);
  try {
    co_await handler_.on_learner(learner, connection);
  } catch (const Error& error) {
    stranger_line_("dropped a learner at " + connection->remote() + ": " + error.what());
  } catch (const asio::system_error&) {
    // It has what it wanted, or is gone.
  }
  connection->close();
}

// ---- connections that go out ----

/// A lane that is up needs no dialling. One that is not is dialled by the end that comes first or has dialled
/// it last, and, when that has had time enough, by the other one too.
asio::awaitable<void> PeerMesh::wait_for_turn(PeerPtr peer, std::size_t lane) {
  auto& place = peer->lanes[lane];
  auto others_turn = head_start;
  if (link_.give_up > 0s) others_turn = std::min(others_turn, link_.give_up / 4);
  others_turn += 2 * link_.hold;
  while (!peer->gone) {
    const bool at_once = comes_first(*peer) || !acceptor_.is_open() || place.dialled_here;
    const auto from = place.down_since + (at_once ? 0s : others_turn);
    if (!place.connection && from <= Connection::Clock::now()) co_return;
    place.turn.expires_at(place.connection ? Connection::Clock::time_point::max() : from);
    asio::error_code woken;
    co_await place.turn.async_wait(asio::redirect_error(use_awaitable, woken));
  }
}

asio::awaitable<void> PeerMesh::dial_loop(PeerPtr peer, std::size_t lane) {
  while (!peer->gone) {
    co_await wait_for_turn(peer, lane);
    if (peer->gone) co_return;
    asio::ip::tcp::socket socket(io_);
    peer->lanes[lane].connecting = &socket;
    const auto error = co_await dial(socket, *peer->address, dial_time_limit);
    peer->lanes[lane].connecting = nullptr;
    if (peer->gone) co_return;
    if (!error && !peer->lanes[lane].connection) {
      OtherEnd other{.dialled = true, .name = peer->info.name};
      auto connection = start_connection(std::move(socket), counters_, link_, trace_, std::move(other));
      co_await introduce(peer, lane, std::move(connection));
    }
    asio::steady_timer pause(io_, redial_after);
    co_await pause.async_wait(use_awaitable);
  }
}

/// Whoever listens there may be anybody: the lane is up only once the peer has answered.
asio::awaitable<void> PeerMesh::introduce(PeerPtr peer, std::size_t lane, ConnectionPtr connection) {
  auto& place = peer->lanes[lane];
  place.introducing = connection;
  place.introduced = Connection::Clock::now();
  auto hello = hello_to(peer->info.id, lane);
  hello.number = ++dialled_;
  hello.lost = place.accepted;
  try {
    const Watchdog watchdog(connection, link_.hello_limit + 2 * link_.hold);
    connection->send(hello_frame(hello));
    const auto answer = hello_of(co_await connection->receive(unauthenticated_limit));
    check_hello(answer);
    if (answer.from != peer->info.id || answer.lane != lane || answer.role != PeerRole::member)
      throw Error(ErrorKind::network, "it is another replica");
  } catch (const Error& error) {
    stranger_line_("no member answers at " + connection->remote() + ": " + error.what());
    connection->close();
  } catch (const asio::system_error&) {
    connection->close();
  }
  place.introducing = nullptr;
  if (!connection->open() || peer->gone) co_return;
  place.dialled = hello.number;
  place.dialled_here = true;
  co_await serve(std::move(peer), lane, std::move(connection));
}

// ---- either way ----

asio::awaitable<void> PeerMesh::serve(PeerPtr peer, std::size_t lane, ConnectionPtr connection) {
  lane_up(peer, lane, connection);
  try {
    while (!peer->gone) {
      auto frame = co_await connection->receive(frame_limit_, &*chunks_);
      if (peer->gone) break;
      hearing_ = connection;
      take(*peer, std::move(frame));
      hearing_ = nullptr;
      if (connection->queued_bytes() > most_queued(*peer))
        throw Error(ErrorKind::network, "it asks for more answers than it reads");
    }
  } catch (const Damaged& damage) {  // which is nobody's breach
    if (!peer->gone)
      stranger_line_("a " + damage.thing() + " of " + peer->info.name + " (" + connection->remote() + ") " +
                     damage.how() + "; its connection is dropped, the " + damage.thing() + " is sent again");
  } catch (const Error& error) {
    if (!peer->gone) count_breach(*peer, *connection, error.what());
  } catch (const asio::system_error&) {
    // A broken lane is dialled again; a peer that stays away is noticed by `lost`.
  }
  hearing_ = nullptr;
  hearing_relayed_.reset();
  connection->close();
  if (peer->lanes[lane].connection == connection) lane_down(peer, lane);
}

/// The same at both ends.
std::uint64_t PeerMesh::number_of(const Peer& peer, const Lane& lane) const {
  const bool by_higher = lane.dialled_here == (self_ > peer.info.id);
  return 2 * (lane.dialled_here ? lane.dialled : lane.accepted) + (by_higher ? 1 : 0);
}

void PeerMesh::lane_up(const PeerPtr& peer, std::size_t lane, const ConnectionPtr& connection) {
  auto& place = peer->lanes[lane].connection;
  const bool first = !peer->up();
  if (place) {  // the peer knows better than we do that the old one is dead
    place->close();
    peer->outbox.lane_lost(lane);
    ways_lost(peer->info.id);
  }
  place = connection;
  peer->lanes[lane].rate = peer->lanes[lane].delivered = peer->lanes[lane].most_unsent = 0;
  peer->lanes[lane].number = number_of(*peer, peer->lanes[lane]);
  peer->arrivals.begun(lane, peer->lanes[lane].number);
  peer->far = !connection->is_loopback();
  connection->when_ready([this, weak = std::weak_ptr(peer)] {
    if (const auto fed = weak.lock()) feed(fed);
  });
  if (first) {
    const auto id = peer->info.id;
    // What is under way by a relay may end with it, so it counts as not sent.
    if (const auto relay = ways_.relay_to(id); relay && ways_.open(id)) {
      if (const auto at = peers_.find(*relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
      handler_.on_peer_down(id);
    }
    handler_.on_peer_up(id);
  }
  feed(peer);
}

void PeerMesh::lane_down(const PeerPtr& peer, std::size_t lane) {
  peer->lanes[lane].connection = nullptr;
  peer->arrivals.begun(lane, 0);
  peer->lanes[lane].down_since = Connection::Clock::now();
  peer->lanes[lane].turn.cancel();
  peer->outbox.lane_lost(lane);
  if (peer->gone) return;
  if (peer->up()) {
    ways_lost(peer->info.id);  // what it said of a loss may have been on that lane
    return feed(peer);
  }
  const auto id = peer->info.id;
  peer->outbox.clear();
  peer->last_up = clock_.now();
  static_cast<void>(ways_.close(id));  // a way by a relay begins anew, so that what was lost here is repeated
  ways_lost(id);
  say_lost_to_origins(id);
  if (!peer->gone) handler_.on_peer_down(id);
}

void PeerMesh::take(Peer& peer, Connection::Received frame) {
  if (frame.relay)
    return frame.relay->to == self_ ? hear_relayed(peer, std::move(frame)) : carry(peer, std::move(frame));
  const auto from = peer.info.id;
  if (frame.type == FrameType::begun) {
    const auto view = from_bytes<protocol::ViewNumber>(*frame.body);
    hearing_->send(begun_heard_frame(view));
    return handler_.on_begun(from, view);
  }
  if (frame.type == FrameType::begun_heard)
    return peer.outbox.acknowledged({from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt},
                                    clock_.now());
  if (frame.type == FrameType::ack) {
    peer.outbox.acknowledged({frame.head.view, key_of(frame.head)}, clock_.now());
    return handler_.on_ack(from, frame.head.view, key_of(frame.head));
  }
  if (frame.type == FrameType::arrived) return hear_arrived(peer, from_bytes<Arrived>(*frame.body));
  if (frame.type != FrameType::chunk)
    throw Error(ErrorKind::network, "a frame that has no place on a bulk connection");
  const auto problem = handler_.on_chunk(peer.info.id, std::move(frame));
  if (problem) throw Error(ErrorKind::network, *problem);
}

// ---- by way of another one ----

void PeerMesh::set_relays(protocol::Relays relays) {
  told_ = std::move(relays);
  std::vector<std::pair<ReplicaId, ReplicaId>> open;  // and by whom
  for (const auto peer : ways_.peers()) {
    if (ways_.open(peer)) open.emplace_back(peer, *ways_.relay_to(peer));
  }
  const auto carried = ways_.carried();
  if (begun_) ways_.set(self_, told_);
  forget_what_is_not_carried_any_more(carried);
  for (const auto& [id, relay] : open) {
    if (ways_.open(id)) continue;
    if (const auto at = peers_.find(relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
    const auto peer = peers_.find(id);
    if (peer == peers_.end() || peer->second->up()) continue;
    peer->second->last_up = clock_.now();
    handler_.on_peer_down(id);
  }
}

/// Its receivers may pass over it, and then nobody acknowledges it.
void PeerMesh::forget_what_is_not_carried_any_more(const RelayWays::Carried& before) {
  for (const auto& [from, ends] : before) {
    for (const auto to : ends) {
      const auto target = peers_.find(to);
      if (target != peers_.end() && !ways_.carries(from, to)) target->second->outbox.forget_relayed(from);
    }
  }
}

std::vector<ReplicaId> PeerMesh::relayed() const {
  std::vector<ReplicaId> relayed;
  for (const auto id : ways_.peers()) {
    const auto at = peers_.find(id);
    if (at != peers_.end() && !at->second->up()) relayed.push_back(id);
  }
  return relayed;
}

/// Until both ends have heard each other.
void PeerMesh::hail_all() {
  for (const auto id : ways_.peers()) {
    const auto peer = peers_.find(id);
    const auto relay = peers_.find(*ways_.relay_to(id));
    if (peer == peers_.end() || relay == peers_.end()) continue;
    if (peer->second->up() || !relay->second->up() || !ways_.hails(id)) continue;
    send_at_once(*relay->second,
                 relayed_frame(self_, id, {FrameType::hail, to_bytes(ways_.hail(id)), nullptr}));
  }
}

/// What is neither kept nor repeated here, by whichever lane there is.
void PeerMesh::send_at_once(Peer& peer, Frame frame) {
  for (auto& lane : peer.lanes) {
    if (!lane.connection || !lane.connection->open()) continue;
    lane.connection->send(std::move(frame));
    if (lane.connection->queued_bytes() > most_queued(peer)) lane.connection->close();
    return;
  }
}

/// What a peer says to another one, between whom this member was named as the relay. What is wrong with it is
/// that peer's fault and is seen here, so that the other end need not blame the relay.
void PeerMesh::carry(Peer& peer, Connection::Received frame) {
  const auto from = frame.relay->from, to = frame.relay->to;
  if (from != peer.info.id) throw Error(ErrorKind::network, "a frame to be carried in the name of another");
  const auto found = peers_.find(to);
  const bool possible = ways_.carries(from, to) && found != peers_.end() && found->second->up();
  const auto pass_on = [&] {
    if (possible) send_at_once(*found->second, relayed_frame(from, to, frame_of(frame)));
  };
  switch (frame.type) {
    case FrameType::hail:
      static_cast<void>(from_bytes<Hail>(*frame.body));
      return pass_on();
    case FrameType::ack:
      peer.outbox.acknowledged({frame.head.view, key_of(frame.head), to}, clock_.now());
      return pass_on();
    case FrameType::begun_heard:
      return peer.outbox.acknowledged({from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt, to},
                                      clock_.now());
    case FrameType::chunk:
    case FrameType::begun:
      return keep_for(possible ? found->second : nullptr, std::move(frame));
    default:
      throw Error(ErrorKind::network, "a frame that is a relay's to send");
  }
}

/// A relay answers for what it has taken until the other end acknowledges it, as for what it sends itself;
/// whoever hears that it is lost sends it again.
void PeerMesh::keep_for(const PeerPtr& target, Connection::Received frame) {
  const auto from = frame.relay->from, to = frame.relay->to;
  const bool is_chunk = frame.type == FrameType::chunk;
  Outbox::Receipt receipt{frame.head.view, key_of(frame.head), from};
  if (!is_chunk) receipt = {from_bytes<protocol::ViewNumber>(*frame.body), std::nullopt, from};
  // More than anybody may have to repeat: this member need not have memory for it.
  const bool too_much = target && target->outbox.bytes_relayed(from) >= link_.most_queued;
  if (too_much) target->outbox.forget_relayed(from);
  if (!target || too_much)
    return hearing_->send(relayed_frame(to, from, {FrameType::relay_lost, {}, nullptr}));
  const auto taken = is_chunk ? header_of(receipt.view, *receipt.key) : header_of(receipt.view, {.kind = {}});
  hearing_->send(
      relayed_frame(to, from, {FrameType::relay_taken, bytes_of(taken), nullptr}, frame.relay->session));
  if (receipt.view < view_) return;  // over for the other end too, which would not acknowledge it
  put(target, is_chunk ? handler_.order_of(*receipt.key) : 0, relayed_frame(from, to, frame_of(frame)),
      receipt);
}

/// From the other end, by the relay between; or from the relay, about it.
void PeerMesh::hear_relayed(Peer& relay, Connection::Received frame) {
  const auto from = frame.relay->from;
  const auto origin = peers_.find(from);
  // The relay may be another one meanwhile; what came by this one is sent again.
  if (ways_.relay_to(from) != relay.info.id || origin == peers_.end()) return;
  switch (frame.relay->inner) {
    case FrameType::relay_taken: {
      if (frame.relay->session != static_cast<std::uint32_t>(ways_.hail(from).session)) return;
      Outbox::Receipt receipt{frame.head.view, key_of(frame.head), from};
      if (frame.head.kind == 0) receipt.key.reset();
      return relay.outbox.acknowledged(receipt, clock_.now());
    }
    case FrameType::relay_lost:
      return way_lost(from);
    case FrameType::hail:
      return hear_hail(relay, from, from_bytes<Hail>(*frame.body));
    case FrameType::ack:
      return handler_.on_ack(from, frame.head.view, key_of(frame.head));
    case FrameType::begun: {
      const auto view = from_bytes<protocol::ViewNumber>(*frame.body);
      hearing_->send(relayed_frame(self_, from, begun_heard_frame(view)));
      return handler_.on_begun(from, view);
    }
    case FrameType::chunk: {
      const auto sender = origin->second;
      hearing_relayed_ = from;
      const auto problem = handler_.on_chunk(from, std::move(frame));
      hearing_relayed_.reset();
      if (!problem) return;
      count_breach(*sender, *hearing_, *problem);
      return way_lost(from);
    }
    default:
      throw Error(ErrorKind::network, "a frame that has no place behind a relay");
  }
}

void PeerMesh::hear_hail(Peer& relay, ReplicaId from, const Hail& hail) {
  const auto peer = peers_.at(from);
  const bool was_open = ways_.open(from);
  const auto heard = ways_.heard(from, hail);
  if (hail.asks)
    hearing_->send(relayed_frame(self_, from, {FrameType::hail, to_bytes(ways_.hail(from)), nullptr}));
  if (heard == RelayWays::Heard::before || peer->up()) return;
  relay.outbox.forget_relayed(from);
  if (was_open) handler_.on_peer_down(from);
  if (ways_.open(from)) handler_.on_peer_up(from);
}

/// To that peer, by its relay.
void PeerMesh::way_lost(ReplicaId id) {
  const auto relay = ways_.relay_to(id);
  if (!ways_.close(id)) return;
  if (const auto at = peers_.find(*relay); at != peers_.end()) at->second->outbox.forget_relayed(id);
  const auto peer = peers_.find(id);
  if (peer == peers_.end() || peer->second->up()) return;
  peer->second->last_up = clock_.now();
  handler_.on_peer_down(id);
}

/// The relay is gone, with what it had.
void PeerMesh::ways_lost(ReplicaId relay) {
  for (const auto id : ways_.peers_by(relay)) way_lost(id);
}

/// What was carried to it from here is gone.
void PeerMesh::say_lost_to_origins(ReplicaId peer) {
  for (const auto id : ways_.carried_from(peer)) {
    const auto origin = peers_.find(id);
    if (origin == peers_.end() || !origin->second->up()) continue;
    send_at_once(*origin->second, relayed_frame(peer, id, {FrameType::relay_lost, {}, nullptr}));
  }
}

void PeerMesh::count_breach(Peer& peer, const Connection& connection, const std::string& why) {
  stranger_line_("dropped a connection of " + peer.info.name + " (" + connection.remote() + "): " + why);
  if (++peer.breaches >= most_breaches) handler_.on_broken_peer(peer.info.id, why);
}

}  // namespace isthmus::outer_sync::transport
