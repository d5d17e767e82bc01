// The mesh by itself: replicas become peers and cease to be, while chunks are on their way.

#include <gmock/gmock.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "network_run.h"
#include "raw_peer.h"
#include "transport/listen.h"
#include "transport/peer_mesh.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::ReplicaId;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t largest_chunk = 64 << 10;
constexpr std::size_t lanes = 2, chunks_of_a_round = 6;
constexpr auto patience = 30s;  ///< longer than any of this takes, so that a test fails in place of hanging

Digest run_token() {
  Digest token;
  token.bytes.fill(7);
  return token;
}

/// A mesh on its own io thread. Like a member, it sends once more what was not acknowledged when a peer is
/// there again; it writes down what it is told, and what of that does not fit its peers.
class Node final : public PeerMesh::Handler {
 public:
  explicit Node(const std::string& name, std::uint64_t incarnation = 1, LinkOptions link = {},
                const std::string& listen = "127.0.0.1:0")
      : work_(asio::make_work_guard(io_)),
        mesh_(io_, bind(listen), lanes, counters_, link, clock_, trace_, *this),
        thread_([this] { io_.run(); }) {
    info_.id = protocol::id_of({name, incarnation, ""});
    info_.name = name;
    asio::co_spawn(io_, tick(), asio::detached);
    on_io([&] { mesh_.begin(info_.id, name, run_token(), largest_chunk_frame(largest_chunk), buffers_); });
  }
  ~Node() override {
    io_.stop();
    thread_.join();
  }

  void set_peers(std::vector<PeerInfo> peers) {
    on_io([&] {
      mesh_.set_peers(peers);
      const std::lock_guard lock(mutex_);
      peers_.clear();
      for (const auto& peer : peers) peers_.insert(peer.id);
      std::erase_if(up_, [&](const auto& id) { return !peers_.contains(id); });
    });
  }
  /// So many chunks, of that round.
  void send_to(ReplicaId peer, std::uint64_t round, std::size_t size = 100) {
    for (ChunkId chunk = 0; chunk < chunks_of_a_round; ++chunk) {
      const protocol::ChunkKey key{round, chunk, 0, protocol::ChunkKind::contribution};
      send_to(peer, {1, key, std::make_shared<const Bytes>(size)});
    }
  }
  void send_to(ReplicaId peer, const protocol::ChunkMessage& message) {
    on_io([&] {
      unacknowledged_[peer].insert_or_assign(message.key, message);
      mesh_.send(peer, message.key.round, message);
    });
  }
  /// And keeps nothing of it.
  void send_and_forget(ReplicaId peer, const protocol::ChunkMessage& message) {
    on_io([&] { mesh_.send(peer, message.key.round, message); });
  }
  void send_at_most(std::uint64_t bytes_per_second) {
    on_io([&] { mesh_.send_at_most(bytes_per_second); });
  }
  /// From now on the first chunk is the last thing that is heard.
  void drop_all_when_heard() {
    on_io([&] { drop_all_when_heard_ = true; });
  }
  std::vector<ReplicaId> lost(AwakeClock::Clock::duration limit) {
    std::vector<ReplicaId> lost;
    on_io([&] { lost = mesh_.lost(limit); });
    return lost;
  }

  /// Blocks until it is true; false if it never is. `ready` is called with what was written down in place.
  template <class Ready>
  [[nodiscard]] bool wait_until(Ready ready) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, ready);
  }
  [[nodiscard]] bool sees(const std::vector<PeerInfo>& peers) {
    return wait_until([&] {
      return std::all_of(peers.begin(), peers.end(), [&](const auto& peer) { return up_.contains(peer.id); });
    });
  }
  [[nodiscard]] bool hears(ReplicaId from, std::uint64_t round) {
    return wait_until([&] { return heard_[{from, round}].size() == chunks_of_a_round; });
  }
  [[nodiscard]] bool wait_for_chunks(std::size_t count) {
    return wait_until([&] { return chunks_ >= count; });
  }
  /// So many more times.
  [[nodiscard]] bool ticks(std::size_t times) {
    const auto now = [this] {
      const std::lock_guard lock(mutex_);
      return ticks_;
    }();
    return wait_until([&] { return ticks_ >= now + times; });
  }
  [[nodiscard]] bool loses(ReplicaId peer) {
    return wait_until([&] { return downs_[peer] > 0; });
  }
  [[nodiscard]] bool says(const std::string& words) {
    return wait_until([&] { return said_.find(words) != std::string::npos; });
  }
  [[nodiscard]] std::size_t ups(ReplicaId peer) {
    const std::lock_guard lock(mutex_);
    return ups_[peer];
  }
  [[nodiscard]] std::size_t downs(ReplicaId peer) {
    const std::lock_guard lock(mutex_);
    return downs_[peer];
  }
  [[nodiscard]] std::size_t chunks() {
    const std::lock_guard lock(mutex_);
    return chunks_;
  }
  [[nodiscard]] protocol::ChunkMessage last_heard() {
    const std::lock_guard lock(mutex_);
    return last_heard_;
  }
  [[nodiscard]] std::vector<std::string> wrong() {
    const std::lock_guard lock(mutex_);
    return wrong_;
  }
  [[nodiscard]] const PeerInfo& info() const { return info_; }

 private:
  asio::ip::tcp::acceptor bind(const std::string& listen) {
    auto acceptor = listen_at(io_, listen, "listen");
    info_.address = bound_address(acceptor).to_string();
    return acceptor;
  }
  /// Throws what `act` does, in words: an exception's own memory may not be shared by threads in the eyes of
  /// ThreadSanitizer, which does not see how the standard library counts its owners.
  template <class Act>
  void on_io(Act act) {
    std::promise<std::string> done;
    asio::post(io_, [&] {
      std::string problem;
      try {
        act();
      } catch (const Error& error) {
        problem = error.what();
      }
      done.set_value(problem);
    });
    if (const auto problem = done.get_future().get(); !problem.empty())
      throw Error(ErrorKind::network, problem);
  }
  asio::awaitable<void> tick() {
    for (asio::steady_timer timer(io_);;) {
      timer.expires_after(20ms);
      co_await timer.async_wait(asio::use_awaitable);
      mesh_.tick();
      {
        const std::lock_guard lock(mutex_);
        ++ticks_;
      }
      changed_.notify_all();
    }
  }
  /// Of `peer`; with the mutex held `change` is made.
  template <class Change>
  void note(ReplicaId peer, const char* what, Change change) {
    {
      const std::lock_guard lock(mutex_);
      if (!peers_.contains(peer)) wrong_.push_back(std::string(what) + " of a replica that is no peer");
      change();
    }
    changed_.notify_all();
  }

  std::optional<std::string> on_chunk(ReplicaId from, Connection::Received chunk) override {
    note(from, "a chunk", [&] {
      last_heard_ = message_of(std::move(chunk));
      heard_[{from, last_heard_.key.round}].insert(last_heard_.key.chunk);
      ++chunks_;
      if (drop_all_when_heard_) peers_.clear();
    });
    mesh_.acknowledge(from, last_heard_.view, last_heard_.key);
    if (drop_all_when_heard_) mesh_.set_peers({});
    return std::nullopt;
  }
  void on_ack(ReplicaId from, protocol::ViewNumber, const protocol::ChunkKey& key) override {
    unacknowledged_[from].erase(key);
  }
  void on_begun(ReplicaId, protocol::ViewNumber) override {}
  void on_peer_up(ReplicaId peer) override {
    note(peer, "a beginning", [&] {
      if (!up_.insert(peer).second) wrong_.emplace_back("a beginning of what had begun");
      ++ups_[peer];
    });
    for (const auto& [key, message] : unacknowledged_[peer]) mesh_.send(peer, key.round, message);
  }
  void on_peer_down(ReplicaId peer) override {
    note(peer, "an end", [&] {
      if (up_.erase(peer) == 0) wrong_.emplace_back("the end of what never began");
      ++downs_[peer];
    });
  }
  void on_broken_peer(ReplicaId peer, const std::string& why) override {
    note(peer, "a breach", [&] { wrong_.push_back(why); });
  }
  asio::awaitable<void> on_learner(ReplicaId, ConnectionPtr) override { co_return; }
  void on_message(const std::string& text) override {
    {
      const std::lock_guard lock(mutex_);
      said_ += text + "\n";
    }
    changed_.notify_all();
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  PeerInfo info_;
  WireCounters counters_;
  Trace trace_;
  AwakeClock clock_{1h};
  BufferPool buffers_{largest_chunk, 16};
  PeerMesh mesh_;
  // Of the io thread:
  std::map<ReplicaId, std::map<protocol::ChunkKey, protocol::ChunkMessage>> unacknowledged_;
  bool drop_all_when_heard_ = false;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable changed_;
  std::set<ReplicaId> peers_;
  std::set<ReplicaId> up_;
  std::map<std::pair<ReplicaId, std::uint64_t>, std::set<ChunkId>> heard_;
  std::map<ReplicaId, std::size_t> ups_, downs_;
  std::size_t chunks_ = 0, ticks_ = 0;
  protocol::ChunkMessage last_heard_;
  std::vector<std::string> wrong_;
  std::string said_;
  std::thread thread_;
};

/// Nodes a, b, c ...
std::vector<std::unique_ptr<Node>> nodes(std::size_t count) {
  std::vector<std::unique_ptr<Node>> out;
  for (std::size_t n = 0; n < count; ++n) {
    out.push_back(std::make_unique<Node>(std::string(1, static_cast<char>('a' + n))));
  }
  return out;
}

TEST(Mesh, WhoeverStaysKeepsTheLanes) {
  const auto node = nodes(3);
  node[0]->set_peers({node[1]->info()});
  node[1]->set_peers({node[0]->info()});
  ASSERT_TRUE(node[0]->sees({node[1]->info()}) && node[1]->sees({node[0]->info()}));

  node[2]->set_peers({node[0]->info(), node[1]->info()});
  node[0]->set_peers({node[2]->info(), node[1]->info()});
  node[1]->set_peers({node[2]->info(), node[0]->info()});
  ASSERT_TRUE(node[2]->sees({node[0]->info(), node[1]->info()}));
  node[0]->send_to(node[1]->info().id, 5);
  node[2]->send_to(node[1]->info().id, 5);
  EXPECT_TRUE(node[1]->hears(node[0]->info().id, 5) && node[1]->hears(node[2]->info().id, 5));
  EXPECT_EQ(node[0]->ups(node[1]->info().id), 1U) << "lanes that were up were dialled once more";
  EXPECT_EQ(node[1]->ups(node[0]->info().id), 1U);
  EXPECT_EQ(node[0]->downs(node[1]->info().id) + node[1]->downs(node[0]->info().id), 0U);
}

TEST(Mesh, WhoeverIsGoneIsClosedAtOnceAndHearsOfIt) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  node[0]->set_peers({});
  EXPECT_TRUE(node[1]->loses(a.id));
  EXPECT_EQ(node[1]->downs(a.id), 1U) << "once, when the last lane is gone";
  EXPECT_EQ(node[0]->downs(b.id), 0U) << "whoever sends a peer away need not be told";
  node[0]->set_peers({b});  // and lets it in again
  EXPECT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
}

TEST(Mesh, AHelloThatComesBeforeItsViewWaitsForIt) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  RawPeer early(b.address);
  early.say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, b.id, 0, PeerRole::member}),
                  nullptr});
  node[1]->set_peers({});  // a view without it: it goes on waiting
  node[1]->set_peers({a});
  const auto answer = early.hear();
  ASSERT_TRUE(answer && answer->type == FrameType::peer_hello) << "it was not let in with the view";
  EXPECT_EQ(from_bytes<PeerHello>(answer->head).from, b.id);
}

TEST(Mesh, AHelloOfWhomNoViewNamesIsDropped) {
  Node node("b", 1, {.hello_limit = 200ms});
  RawPeer stranger(node.info().address);
  stranger.say(Frame{FrameType::peer_hello,
                     to_bytes(PeerHello{run_token(), 5, node.info().id, 0, PeerRole::member}), nullptr});
  EXPECT_TRUE(stranger.is_dropped());
  EXPECT_TRUE(node.says("no member of a view"));
}

/// The one that waits here went away before the view came: its connection must not push out the next one.
TEST(Mesh, WhoeverHangsUpWhileItWaitsIsNotLetIn) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  const Frame hello{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, b.id, 0, PeerRole::member}),
                    nullptr};
  RawPeer(b.address).say(hello);
  RawPeer second(b.address);
  second.say(hello);
  node[1]->set_peers({a});
  EXPECT_TRUE(second.hear().has_value());
  EXPECT_EQ(node[1]->ups(a.id), 1U);
}

TEST(Mesh, APeerThatDoesNotReadCostsABoundedQueue) {
  constexpr std::size_t limit = 1 << 20, size = 64 << 10;
  const BufferPool chunks(size, 4);
  Node node("b", 1, {.most_queued = limit});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  std::vector<std::unique_ptr<RawPeer>> peer;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    peer.push_back(std::make_unique<RawPeer>(node.info().address));
    peer.back()->say(Frame{
        FrameType::peer_hello,
        to_bytes(PeerHello{run_token(), a.id, node.info().id, static_cast<std::uint16_t>(lane)}), nullptr});
  }
  ASSERT_TRUE(node.sees({a}));
  std::size_t most = 0;
  for (std::uint64_t round = 1; round <= 1000; ++round) {  // 64 MB, more than the system takes for it
    const protocol::ChunkKey key{round, 0, 0, protocol::ChunkKind::contribution};
    node.send_and_forget(a.id, {1, key, chunks.take(size)});
    most = std::max(most, chunks.in_use());
  }
  EXPECT_TRUE(node.says("dropped the connections to a: it does not read"));
  EXPECT_LE(most * size, limit + 2 * size) << "one comes on top, and one has just been made";
}

/// Every `begun` is answered: the answers must not pile up for one that does not read them.
TEST(Mesh, APeerThatAsksForMoreAnswersThanItReadsIsDropped) {
  Node node("b", 1, {.most_queued = 1 << 20});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  RawPeer peer(node.info().address);
  peer.say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, node.info().id}), nullptr});
  ASSERT_TRUE(node.sees({a}));
  const auto begun = begun_frame(1);
  const FrameHeader header{.type = begun.type, .length = static_cast<std::uint32_t>(begun.head.size())};
  auto once = bytes_of(header);
  once.insert(once.end(), begun.head.begin(), begun.head.end());
  Bytes many;
  for (int i = 0; i < 5000; ++i) many.insert(many.end(), once.begin(), once.end());
  for (int i = 0; i < 400; ++i) peer.say(many);  // 40 MB, more than the system takes for it
  EXPECT_TRUE(node.says("it asks for more answers than it reads"));
}

// ---- what a stranger may cost (docs/architecture.md) ----

Bytes header_of_hello(std::uint32_t length) {
  return bytes_of(FrameHeader{.type = FrameType::peer_hello, .length = length});
}

/// No time-out helps here.
TEST(Mesh, AStrangerMaySay64KiBAndNoMore) {
  Node node("b", 1, {.hello_limit = 1h});
  RawPeer most(node.info().address), more(node.info().address);
  most.say(header_of_hello(65536));
  most.say(Bytes(65536));
  EXPECT_TRUE(most.is_dropped());
  EXPECT_TRUE(node.says("message has bytes left over")) << "it may be said, but is no hello";
  more.say(header_of_hello(65537));
  EXPECT_TRUE(more.is_dropped());
}

TEST(Mesh, Of64StrangersNoneIsDroppedAndOf65TheOldest) {
  Node node("b", 1, {.hello_limit = 1h});
  std::deque<RawPeer> crowd;
  for (int n = 0; n < 65; ++n) crowd.emplace_back(node.info().address);
  EXPECT_TRUE(crowd.front().is_dropped());
  for (std::size_t n = 1; n < crowd.size(); ++n) {
    pollfd dropped{.fd = crowd[n].handle(), .events = POLLRDHUP, .revents = 0};
    EXPECT_EQ(::poll(&dropped, 1, 0), 0) << "stranger " << n << " is dropped too";
  }
}

TEST(Mesh, AStrangerHasTenSecondsToSayWhoItIs) {
  Node node("b");
  const auto begin = std::chrono::steady_clock::now();
  RawPeer stranger(node.info().address);
  EXPECT_TRUE(stranger.is_dropped()) << "within 20 s";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 9s) << "slow lines need some time";
}

// ---- lanes ----

protocol::ChunkMessage chunk_of(std::uint64_t round, std::size_t size) {
  return {1, {round, 0, 0, protocol::ChunkKind::contribution}, std::make_shared<const Bytes>(size)};
}

/// The lanes of a member "a" that a test plays.
std::unique_ptr<RawPeer> lane_of(const PeerInfo& a, const PeerInfo& to, std::uint16_t lane) {
  auto peer = std::make_unique<RawPeer>(to.address);
  peer->say(Frame{FrameType::peer_hello, to_bytes(PeerHello{run_token(), a.id, to.id, lane}), nullptr});
  EXPECT_TRUE(peer->hear());
  return peer;
}

ChunkHeader hear_chunk(RawPeer& lane) {
  const auto frame = lane.hear();
  if (!frame || frame->type != FrameType::chunk) throw std::runtime_error("no chunk came");
  ChunkHeader header;
  std::memcpy(&header, frame->head.data(), sizeof header);
  return header;
}

TEST(Lanes, BreakAtRandomAndNothingIsLost) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  auto b = node[1]->info();
  Forwarder way(b.address);
  way.cut_within(300'000);
  b.address = way.address();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  constexpr std::uint64_t rounds = 100;
  const auto expect_all = [&](Node& from, const PeerInfo& sender, Node& to, const PeerInfo& receiver) {
    for (std::uint64_t round = 1; round <= rounds; ++round) from.send_to(receiver.id, round, 2000);
    for (std::uint64_t round = 1; round <= rounds; ++round)
      ASSERT_TRUE(to.hears(sender.id, round)) << "round " << round << " of " << sender.name;
  };
  expect_all(*node[0], a, *node[1], b);
  expect_all(*node[1], b, *node[0], a);
  EXPECT_GT(way.connections(), 2 * lanes) << "none has broken: nothing was tried";
}

TEST(Lanes, OneThatStallsGivesItsChunksToAnother) {
  Node node("b");
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  const auto silent = lane_of(a, node.info(), 0);  // takes what comes, and never says so
  const auto good = lane_of(a, node.info(), 1);
  ASSERT_TRUE(node.sees({a}));
  std::set<std::uint64_t> missing;
  for (std::uint64_t round = 1; round <= 20; ++round) {
    missing.insert(round);
    node.send_to(a.id, chunk_of(round, 1000));
  }
  for (std::uint64_t later = 21; !missing.empty(); ++later) {
    const auto header = hear_chunk(*good);
    missing.erase(header.round);
    good->say(ack_frame(header.view, key_of(header)));
    if (later < 2000) node.send_to(a.id, chunk_of(later, 1000));
  }
  EXPECT_TRUE(node.says("lane 0 to a delivers nothing while others do"));
  EXPECT_TRUE(silent->is_dropped());
  EXPECT_EQ(node.downs(a.id), 0U);
}

TEST(Lanes, WhatIsDueFirstOvertakesWhatWaits) {
  Node node("b");
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", "127.0.0.1:1"};
  node.set_peers({a});
  const auto only = lane_of(a, node.info(), 0);
  ASSERT_TRUE(node.sees({a}));
  constexpr std::uint64_t later = 500;
  for (std::uint64_t round = 100; round < 100 + later; ++round)  // 32 MB, more than the system takes
    node.send_to(a.id, chunk_of(round, 64 << 10));
  node.send_to(a.id, chunk_of(1, 100));
  std::uint64_t before = 0;
  while (hear_chunk(*only).round != 1) ++before;
  EXPECT_LT(before, later / 2) << "what is in the sockets leaves first, and no more";
}

TEST(Lanes, NoMoreIsSentThanTheRateAllows) {
  for (const bool system_paces : {true, false}) {
    constexpr std::uint64_t rate = 4'000'000, rounds = 20;
    constexpr std::size_t size = 64 << 10;
    auto node = std::vector<std::unique_ptr<Node>>();
    node.push_back(std::make_unique<Node>("a", 1, LinkOptions{.system_paces = system_paces}));
    node.push_back(std::make_unique<Node>("b"));
    node[0]->send_at_most(rate);
    node[0]->set_peers({node[1]->info()});
    node[1]->set_peers({node[0]->info()});
    ASSERT_TRUE(node[0]->sees({node[1]->info()}) && node[1]->sees({node[0]->info()}));
    ASSERT_TRUE(node[0]->ticks(2));  // the second has seen all lanes, and gives them their shares
    const auto begin = Connection::Clock::now();
    for (std::uint64_t round = 1; round <= rounds; ++round)
      node[0]->send_to(node[1]->info().id, chunk_of(round, size));
    ASSERT_TRUE(node[1]->wait_for_chunks(rounds));
    const auto took = std::chrono::duration<double>(Connection::Clock::now() - begin).count();
    constexpr double at_once = 8 * size;  // what the system lets go before it begins to count
    EXPECT_GE(took, (rounds * size - at_once) / rate) << (system_paces ? "by the system" : "by this process");
  }
}

TEST(Mesh, TheEndWithTheSmallerNameDials) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  RawPeer wrong_way(a.address);
  wrong_way.say(Frame{FrameType::peer_hello,
                      to_bytes(PeerHello{run_token(), b.id, a.id, 0, PeerRole::member}), nullptr});
  EXPECT_TRUE(wrong_way.is_dropped());
  EXPECT_TRUE(node[0]->says("not its part to dial"));
}

TEST(Mesh, APeerListThatCannotBeIsRefusedAndChangesNothing) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  const auto refused = [&](std::vector<PeerInfo> peers) -> std::string {
    try {
      node[0]->set_peers(std::move(peers));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused({{9, "c", "nowhere"}}), AllOf(HasSubstr("the address of c"), HasSubstr("HOST:PORT")));
  EXPECT_THAT(refused({b, b}), HasSubstr("b is named twice"));
  EXPECT_THAT(refused({a}), HasSubstr("a is named twice"));
  node[0]->send_to(b.id, 3);
  EXPECT_TRUE(node[1]->hears(a.id, 3));
  EXPECT_EQ(node[1]->downs(a.id), 0U);
}

TEST(Mesh, ThoseWhoCannotBeReachedAreAllNamed) {
  const auto node = nodes(1);
  const auto nobody = [](const std::string& name, std::size_t n) {
    return PeerInfo{protocol::id_of({name, 1, ""}), name, private_address(n)};
  };
  const auto x = nobody("x", 70);
  const auto y = nobody("y", 71);
  node[0]->set_peers({x, y});
  std::vector<ReplicaId> both{x.id, y.id};
  EXPECT_THAT(node[0]->lost(0s), testing::UnorderedElementsAreArray(both));
  EXPECT_THAT(node[0]->lost(1h), IsEmpty());
  node[0]->set_peers({y});
  EXPECT_THAT(node[0]->lost(0s), ElementsAre(y.id));
}

TEST(Mesh, APeerMayBeDroppedWhileItIsListenedTo) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  node[1]->drop_all_when_heard();
  for (std::uint64_t round = 1; round <= 50; ++round) node[0]->send_to(b.id, round);
  EXPECT_TRUE(node[0]->loses(b.id));
  EXPECT_EQ(node[1]->chunks(), 1U) << "what was on its way is not heard any more";
  EXPECT_THAT(node[1]->wrong(), IsEmpty());
}

/// A replica that has started again is another one, at the same address.
TEST(Mesh, OneThatCameBackTakesThePlaceOfTheOldOne) {
  auto node = nodes(2);
  const auto a = node[0]->info();
  const auto before = node[1]->info();
  node[0]->set_peers({before});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({before}));
  node[1] = nullptr;
  EXPECT_TRUE(node[0]->loses(before.id));
  node[1] = std::make_unique<Node>("b", 2, LinkOptions{}, before.address);
  const auto after = node[1]->info();
  ASSERT_NE(after.id, before.id);
  node[1]->set_peers({a});
  node[0]->set_peers({after});
  ASSERT_TRUE(node[0]->sees({after}) && node[1]->sees({a}));
  node[0]->send_to(before.id, 1);
  node[0]->send_to(after.id, 2);
  EXPECT_TRUE(node[1]->hears(a.id, 2));
  EXPECT_EQ(node[1]->chunks(), chunks_of_a_round) << "something came that was meant for the old one";
  EXPECT_THAT(node[0]->wrong(), IsEmpty());
}

// ---- what a chunk frame says ----

TEST(ChunkFrames, WeightsAndContributorsArrive) {
  const auto node = nodes(2);
  const auto a = node[0]->info();
  const auto b = node[1]->info();
  node[0]->set_peers({b});
  node[1]->set_peers({a});
  ASSERT_TRUE(node[0]->sees({b}) && node[1]->sees({a}));
  const auto sent = [&](const protocol::ChunkMessage& message) {
    const auto before = node[1]->chunks();
    node[0]->send_to(b.id, message);
    EXPECT_TRUE(node[1]->wait_for_chunks(before + 1));
    return node[1]->last_heard();
  };
  const auto bytes = std::make_shared<const Bytes>(4096, std::byte{5});
  const auto contribution = sent({.view = 3,
                                  .key = {1, 0, 2, protocol::ChunkKind::contribution},
                                  .bytes = bytes,
                                  .weight = 1ULL << 50,
                                  .contributors = {}});
  EXPECT_EQ(contribution.weight, 1ULL << 50);
  EXPECT_THAT(contribution.contributors, IsEmpty());
  EXPECT_EQ(*contribution.bytes, *bytes);
  for (const std::size_t count : {0U, 1U, 3U, 1024U}) {
    std::vector<ReplicaId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(random_bits(8, 1, i));
    const auto result = sent({.view = 3,
                              .key = {1, 1, 2, protocol::ChunkKind::result},
                              .bytes = bytes,
                              .weight = 0,
                              .contributors = ids});
    EXPECT_EQ(result.contributors, ids);
    EXPECT_EQ(*result.bytes, *bytes);
    EXPECT_EQ(result.weight, 0U);
  }
}

TEST(ChunkFrames, WhatNoneCanSayBreaksTheProtocol) {
  const protocol::ChunkKey key{1, 0, 0, protocol::ChunkKind::contribution};
  const auto contribution = header_of(1, key);
  auto result = contribution;
  result.kind = static_cast<std::uint8_t>(protocol::ChunkKind::result);
  struct Case {
    const char* words;
    FrameType type;
    ChunkHeader header;
    std::size_t bytes;  ///< behind the header
  };
  std::vector<Case> cases;
  const auto add = [&](const char* words, FrameType type, ChunkHeader header, std::size_t bytes,
                       auto change) {
    change(header);
    cases.push_back({words, type, header, bytes});
  };
  const auto has = [](std::uint16_t ids) { return [ids](ChunkHeader& head) { head.contributors = ids; }; };
  add("contributors of what is no result", FrameType::chunk, contribution, 16, has(2));
  add("contributors of what is no result", FrameType::ack, result, 0, has(2));
  add("2 contributors in a chunk frame", FrameType::chunk, result, 15, has(2));
  add("1 contributors in a chunk frame", FrameType::chunk, result, 0, has(1));
  add("1025 contributors in a chunk frame", FrameType::chunk, result, 1025 * 8, has(1025));
  add("65535 contributors in a chunk frame", FrameType::chunk, result, 64, has(65535));
  const auto lists = [](std::uint16_t norms) { return [norms](ChunkHeader& head) { head.norms = norms; }; };
  add("norms of what is no result", FrameType::chunk, contribution, 48, lists(2));
  add("norms of what is no result", FrameType::ack, result, 0, lists(2));
  add("2 norms in a chunk frame", FrameType::chunk, result, 31, lists(2));
  add("1025 norms in a chunk frame", FrameType::chunk, result, 1025 * 16, lists(1025));
  add("1 contributors in a chunk frame", FrameType::chunk, result, 39, [](ChunkHeader& head) {
    head.norms = 2;
    head.contributors = 1;
  });
  add("a weight of what is no contribution", FrameType::chunk, result, 16,
      [](ChunkHeader& head) { head.weight = 1; });
  add("a weight of what is no contribution", FrameType::ack, contribution, 0,
      [](ChunkHeader& head) { head.weight = 1; });
  add("bits that mean nothing", FrameType::chunk, result, 16, [](ChunkHeader& head) { head.zero = 1; });
  add("bits that mean nothing", FrameType::ack, result, 0, [](ChunkHeader& head) { head.zero = 1; });
  add("an acknowledgement with 8 bytes behind it", FrameType::ack, contribution, 8, [](ChunkHeader&) {});
  const PeerInfo a{protocol::id_of({"a", 1, ""}), "a", private_address(80)};
  for (const auto& bad : cases) {
    Node node("b");
    node.set_peers({a});
    RawPeer peer(node.info().address);
    peer.say(Frame{FrameType::peer_hello,
                   to_bytes(PeerHello{run_token(), a.id, node.info().id, 0, PeerRole::member}), nullptr});
    ASSERT_TRUE(peer.hear());
    const auto head = std::as_bytes(std::span(&bad.header, 1));
    peer.say(Frame{bad.type, Bytes(head.begin(), head.end()), std::make_shared<const Bytes>(bad.bytes)});
    EXPECT_TRUE(peer.is_dropped());
    EXPECT_TRUE(node.says(bad.words)) << bad.words;
    EXPECT_EQ(node.chunks(), 0U) << bad.words;
  }
}

// ---- everything at once ----

/// Four replicas of which any may be members, and whose members, all of them, send to each other all the
/// time.
class Changing : public testing::Test {
 protected:
  static constexpr std::uint64_t all = 15;

  static bool has(std::uint64_t members, std::size_t n) { return (members >> n & 1) != 0; }
  std::vector<PeerInfo> others(std::size_t me, std::uint64_t members) const {
    std::vector<PeerInfo> out;
    for (std::size_t n = 0; n < node.size(); ++n) {
      if (n != me && has(members, n)) out.push_back(node[n]->info());
    }
    return out;
  }
  void form_view(std::uint64_t members) {
    for (std::size_t n = 0; n < node.size(); ++n)
      node[n]->set_peers(has(members, n) ? others(n, members) : std::vector<PeerInfo>());
  }
  void all_send(std::uint64_t round) {
    for (std::size_t n = 0; n < node.size(); ++n) {
      for (const auto& peer : others(n, all)) node[n]->send_to(peer.id, round);
    }
  }
  void start_again(std::size_t n) {
    const auto name = node[n]->info().name;
    expect_nothing_wrong(n);
    node[n] = nullptr;
    node[n] = std::make_unique<Node>(name, ++incarnation);
  }
  void expect_nothing_wrong(std::size_t n) {
    EXPECT_THAT(node[n]->wrong(), IsEmpty()) << "replica " << node[n]->info().name;
  }

  std::vector<std::unique_ptr<Node>> node = nodes(4);
  std::uint64_t incarnation = 1;
};

TEST_F(Changing, TwoHundredTimesInTheMiddleOfTrafficAllAreConnectedInTheEnd) {
  for (std::uint64_t change = 1; change <= 200; ++change) {
    const auto random = random_bits(3, 1, change);
    if (const auto back = random >> 8 & 15; back < node.size()) start_again(back);
    const auto members = change == 200 ? all : random & all;
    form_view(members);
    all_send(change);
    const bool settles = (random >> 16 & 3) == 0;  // most views end before their lanes are up
    for (std::size_t n = 0; settles && n < node.size(); ++n) {
      ASSERT_TRUE(!has(members, n) || node[n]->sees(others(n, members))) << "change " << change;
    }
  }
  for (std::size_t n = 0; n < node.size(); ++n) {
    for (const auto& peer : others(n, all))
      EXPECT_TRUE(node[n]->hears(peer.id, 200)) << node[n]->info().name << " from " << peer.name;
    expect_nothing_wrong(n);
  }
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
