#pragma once
// A mesh by itself, for tests that form views by hand and examine what the mesh does.

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/config.h"
#include "net/link/listen.h"
#include "net/mailbox/mailbox.h"
#include "net/mesh/peer_mesh.h"
#include "run_token.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;
using protocol::ReplicaId;

inline constexpr std::size_t largest_chunk = 64 << 10;
inline constexpr std::size_t lanes = 2, chunks_of_a_round = 6;
inline constexpr auto patience =
    30s;  ///< longer than any wait in these tests, so that a test fails instead of hanging

/// A mesh on its own io thread. Like a member, it sends unacknowledged chunks again when a peer's lanes are
/// back. It records the events it gets, and separately any that do not fit its peers.
class Node final : public PeerMesh::Handler {
 public:
  explicit Node(const std::string& name, std::uint64_t incarnation = 1, LinkOptions link = {},
                const std::string& listen = "127.0.0.1:0", const std::string& store = {})
      : work_(asio::make_work_guard(io_)),
        mailbox_(store.empty() ? nullptr
                               : std::make_shared<Mailbox>(io_, MailboxPlace{{.url = store}, "run"})),
        mesh_(io_, bind(listen), lanes, counters_, with_mailbox(link), clock_, trace_, *this),
        thread_([this] { io_.run(); }) {
    info_.id = protocol::id_of({name, incarnation, ""});
    info_.name = name;
    if (mailbox_) info_.address = Address{mailbox_host(name), mailbox_port}.to_string();
    asio::co_spawn(io_, tick(), asio::detached);
    on_io([&] {
      mesh_.begin(info_.id, name, run_token(), largest_chunk_frame(largest_chunk), buffers_);
      if (mailbox_)
        mailbox_->begin(name, [this](asio::ip::tcp::socket socket) { mesh_.accept(std::move(socket), true); },
                        {});
    });
  }
  ~Node() override {
    io_.stop();
    thread_.join();
    if (mailbox_) mailbox_->end();
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
  void set_relays(const protocol::Relays& relays) {
    on_io([&] { mesh_.set_relays(relays); });
  }
  void view_begun(protocol::ViewNumber view) {
    on_io([&] { mesh_.view_begun(view); });
  }
  std::vector<ReplicaId> relayed() {
    std::vector<ReplicaId> relayed;
    on_io([&] { relayed = mesh_.relayed(); });
    return relayed;
  }
  /// Sends chunks_of_a_round chunks of that round.
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
  /// Sends a chunk without keeping it for a repeat.
  void send_and_forget(ReplicaId peer, const protocol::ChunkMessage& message) {
    on_io([&] { mesh_.send(peer, message.key.round, message); });
  }
  void send_at_most(std::uint64_t bytes_per_second) {
    on_io([&] { mesh_.send_at_most(bytes_per_second); });
  }
  /// From now on, drops all peers when the first chunk arrives.
  void drop_all_when_heard() {
    on_io([&] { drop_all_when_heard_ = true; });
  }
  /// Makes the next chunk fail as if out of memory.
  void fail_when_heard() {
    on_io([&] { fail_when_heard_ = true; });
  }
  std::vector<ReplicaId> unreachable(AwakeClock::Clock::duration limit) {
    std::vector<ReplicaId> peers;
    on_io([&] { peers = mesh_.unreachable(limit); });
    return peers;
  }

  /// Blocks until `ready` returns true; returns false after `patience`. `ready` is called with the mutex
  /// held.
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
  /// Waits for this many more ticks.
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
  [[nodiscard]] std::size_t times_said(const std::string& words) {
    const std::lock_guard lock(mutex_);
    std::size_t times = 0;
    for (auto at = said_.find(words); at != std::string::npos; at = said_.find(words, at + 1)) ++times;
    return times;
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
  [[nodiscard]] LinkOptions with_mailbox(LinkOptions link) const {
    link.mailbox = mailbox_;
    return link;
  }
  asio::ip::tcp::acceptor bind(const std::string& listen) {
    if (listen == NetworkConfig::no_port) return asio::ip::tcp::acceptor(io_);
    auto acceptor = listen_at(io_, listen, "listen");
    info_.address = bound_address(acceptor).to_string();
    return acceptor;
  }
  /// Runs `act` on the io thread and rethrows its Error as a new one. An exception must not be shared by two
  /// threads here: ThreadSanitizer does not see how the standard library counts its references.
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
  /// Records an event of `peer` and makes `change` with the mutex held.
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
    if (std::exchange(fail_when_heard_, false)) throw std::runtime_error("no memory for it");
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
  std::uint64_t order_of(const protocol::ChunkKey& key) const override { return key.round; }
  void on_broken_peer(ReplicaId peer, const std::string& why) override {
    note(peer, "a breach", [&] { wrong_.push_back(why); });
  }
  asio::awaitable<void> on_fetcher(ReplicaId, ConnectionPtr) override { co_return; }
  void on_bridge(bool) override {}
  void on_message(const std::string& text) override {
    {
      const std::lock_guard lock(mutex_);
      said_ += text + "\n";
    }
    changed_.notify_all();
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::shared_ptr<Mailbox> mailbox_;  ///< null without a store
  PeerInfo info_;
  WireCounters counters_;
  Trace trace_;
  AwakeClock clock_{1h};
  BufferPool buffers_{largest_chunk, 16};
  PeerMesh mesh_;
  // Used by the io thread only:
  std::map<ReplicaId, std::map<protocol::ChunkKey, protocol::ChunkMessage>> unacknowledged_;
  bool drop_all_when_heard_ = false, fail_when_heard_ = false;

  std::mutex mutex_;  ///< guards all members below
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

/// Nodes a, b, c, ...
inline std::vector<std::unique_ptr<Node>> nodes(std::size_t count) {
  std::vector<std::unique_ptr<Node>> out;
  for (std::size_t n = 0; n < count; ++n) {
    out.push_back(std::make_unique<Node>(std::string(1, static_cast<char>('a' + n))));
  }
  return out;
}

}  // namespace isthmus::outer_sync::transport
