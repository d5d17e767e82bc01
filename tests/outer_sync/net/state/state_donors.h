#pragma once
// A run's state at donors and a joiner that copies it over sockets, for tests of StateFetcher.

#include <gmock/gmock.h>

#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "net/link/listen.h"
#include "net/state_transfer/state_fetcher.h"
#include "state_support.h"

namespace isthmus::outer_sync::transport {

using namespace std::chrono_literals;

inline constexpr StateParts two_parts = set_of(StatePart::theta) | set_of(StatePart::velocity);

/// The run's state and the rounds committed so far, as all members have them. Read and changed from any
/// thread.
class SharedRun {
 public:
  static constexpr FragmentId fragments = 6;

  SharedRun() {
    for (auto& round : committed_) round = 5;
  }
  void commit(FragmentId fragment, protocol::Round rounds = 1) { committed_[fragment] += rounds; }
  [[nodiscard]] protocol::Round committed(FragmentId fragment) const { return committed_[fragment]; }
  [[nodiscard]] std::vector<protocol::Round> newest() const { return {committed_.begin(), committed_.end()}; }

  [[nodiscard]] FragmentSnapshot state(FragmentId fragment, protocol::Round round) const {
    FragmentSnapshot snapshot{.fragment = fragment, .at = {.round = round, .chain = {}}, .values = {}};
    snapshot.at.chain.bytes.fill(static_cast<std::uint8_t>(round));
    for (const auto part : {StatePart::theta, StatePart::velocity}) {
      const auto p = static_cast<std::size_t>(part);
      auto values = std::make_shared<AlignedVector<float>>(layout.fragment(fragment).size);
      for (std::size_t i = 0; i < values->size(); ++i)
        (*values)[i] = random_unit(100 * round + fragment, p, i);
      snapshot.values[p] = std::move(values);
    }
    return snapshot;
  }
  /// Random bytes of the length of encoded results.
  [[nodiscard]] std::vector<protocol::SharedBytes> results(FragmentId fragment, protocol::Round round) const {
    std::vector<protocol::SharedBytes> results;
    const auto chunks = layout.chunks_of(fragment);
    for (ChunkId k = chunks.first; k < chunks.last; ++k) {
      Bytes bytes(quant::encoded_size(codecs.of(round), layout.chunk(k).size));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(random_bits(round, k, i));
      results.push_back(std::make_shared<const Bytes>(std::move(bytes)));
    }
    return results;
  }
  [[nodiscard]] std::uint64_t state_bytes() const { return 2 * layout.parameters() * sizeof(float); }

  /// A different layout means a different run; change it before the first use.
  FragmentLayout layout{
      {{0, 10'000}, {10'000, 3000}, {13'000, 9001}, {22'016, 12'000}, {34'016, 8000}, {42'016, 9999}}, 4096};
  protocol::CodecPlan codecs{.codec = quant::default_spec(quant::CodecKind::int8),
                             .warmup_codec = quant::default_spec(quant::CodecKind::fp32),
                             .warmup_rounds = 6};

 private:
  std::array<std::atomic<protocol::Round>, fragments> committed_;
};

/// A member that is only a donor, on its own io thread.
class StateDonor final : public PeerMesh::Handler {
 public:
  struct Manner {
    std::uint64_t bytes_per_second = fast_rate;
    protocol::Round keeps = 1000;  ///< how many rounds it keeps
    protocol::Round lag = 0;       ///< how many rounds it is behind the others
    /// Called repeatedly before the donor sends a fragment, until it returns true.
    std::function<bool()> ready = [] { return true; };
  };
  StateDonor(const SharedRun& run, protocol::ReplicaId id) : StateDonor(run, id, Manner{}) {}
  StateDonor(const SharedRun& run, protocol::ReplicaId id, Manner manner)
      : run_(run),
        id_(id),
        manner_(std::move(manner)),
        lag(manner_.lag),
        work_(asio::make_work_guard(io_)),
        pacer_(std::make_shared<Pacer>(manner_.bytes_per_second)),
        mesh_(io_, bind(), 1, counters, {}, clock_, trace_, *this) {
    mesh_.begin(id_, "donor", run_token(), largest_chunk_frame(4 * 4096), buffers_);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~StateDonor() override { stop(); }
  void stop() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] PeerInfo info() const { return {id_, "donor-" + std::to_string(id_), address_}; }
  /// The same donor, through a forwarder.
  [[nodiscard]] PeerInfo behind(const Forwarder& forwarder) const {
    return {id_, "donor-" + std::to_string(id_), forwarder.address()};
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  const SharedRun& run_;
  protocol::ReplicaId id_;
  Manner manner_;

 public:
  WireCounters counters;
  std::atomic<protocol::Round> lag;
  std::atomic<std::size_t> states_asked = 0, states_given = 0, rounds_asked = 0;

 private:
  asio::ip::tcp::acceptor bind() {
    auto acceptor = listen_at(io_, "127.0.0.1:0", "listen");
    address_ = bound_address(acceptor).to_string();
    return acceptor;
  }
  asio::awaitable<void> on_fetcher(protocol::ReplicaId fetcher, ConnectionPtr connection) override {
    EXPECT_EQ(fetcher, fetcher_id);
    SnapshotSource snapshots = [this](StateRequest request) { return take_snapshot(request); };
    RoundSource rounds = [this](FragmentId fragment, protocol::Round round) {
      return take_round(fragment, round);
    };
    return serve_fetcher(std::move(connection), run_.layout, pacer_, std::move(snapshots), std::move(rounds));
  }
  [[nodiscard]] protocol::Round applied(FragmentId fragment) const { return run_.committed(fragment) - lag; }
  asio::awaitable<std::optional<FragmentSnapshot>> take_snapshot(StateRequest request) {
    EXPECT_EQ(request.parts, two_parts);
    ++states_asked;
    asio::steady_timer pause(io_);
    while (!manner_.ready()) {
      pause.expires_after(1ms);
      co_await pause.async_wait(asio::use_awaitable);
    }
    ++states_given;
    co_return run_.state(request.fragment, applied(request.fragment));
  }
  std::vector<protocol::SharedBytes> take_round(FragmentId fragment, protocol::Round round) {
    ++rounds_asked;
    const auto newest = applied(fragment);
    if (round > newest || round + manner_.keeps <= newest) return {};
    return run_.results(fragment, round);
  }
  std::optional<std::string> on_chunk(protocol::ReplicaId, Connection::Received) override {
    return std::nullopt;
  }
  void on_ack(protocol::ReplicaId, protocol::ViewNumber, const protocol::ChunkKey&) override {}
  void on_begun(protocol::ReplicaId, protocol::ViewNumber) override {}
  void on_peer_up(protocol::ReplicaId) override {}
  void on_peer_down(protocol::ReplicaId) override {}
  std::uint64_t order_of(const protocol::ChunkKey&) const override { return 0; }
  void on_broken_peer(protocol::ReplicaId, const std::string&) override {}
  void on_bridge(bool) override {}
  void on_message(const std::string&) override {}

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::string address_;
  Trace trace_;
  AwakeClock clock_{1h};
  BufferPool buffers_{4096, 16};
  std::shared_ptr<Pacer> pacer_;
  PeerMesh mesh_;
  std::thread thread_;
};

/// A joiner on the test's thread. Checks that it gets the run's state and rounds, in order.
class Joiner final : public StateFetcher::Handler {
 public:
  explicit Joiner(const SharedRun& run, StatePatience patience = {1h, 1h})
      : run_(run), at_(SharedRun::fragments), patience_(patience) {
    renew();
  }

  void start(const std::vector<PeerInfo>& donors) {
    fetcher->start(donors, {}, fetcher_id, run_token(), two_parts);
  }
  void renew() {
    fetcher = std::make_unique<StateFetcher>(io_, run_.layout, run_.codecs, LinkOptions{}, counters, trace_,
                                             buffers_, *this, patience_);
  }
  template <class Until>
  void run_until(Until until) {
    while (!until()) {
      io_.restart();
      ASSERT_EQ(io_.run_one_for(60s), 1U) << "nothing more happens; see what the donors wait for";
    }
  }
  void run_until_at_newest() {
    run_until([this] { return at_newest() || failures > 0; });
    EXPECT_EQ(failures, 0U) << why;
    EXPECT_TRUE(fetcher->caught_up());
  }
  /// Whether every fragment is at its newest round. (`caught_up` allows one round less.)
  [[nodiscard]] bool at_newest() const {
    for (FragmentId f = 0; f < SharedRun::fragments; ++f) {
      if (!at_[f] || *at_[f] < run_.committed(f)) return false;
    }
    return true;
  }
  void forget() { std::fill(at_.begin(), at_.end(), std::nullopt); }
  /// Runs the remaining work to its end.
  void run_out() {
    io_.restart();
    io_.run();
  }

  WireCounters counters;
  std::size_t fragments_taken = 0, rounds_taken = 0, failures = 0;
  std::string why;
  /// Called after each fragment, round and failure.
  std::function<void(FragmentId)> after_fragment = [](FragmentId) {}, after_round = [](FragmentId) {};
  std::function<void()> after_failure = [] {};

 private:
  void on_fragment(FragmentSnapshot snapshot) override {
    const auto f = snapshot.fragment;
    ASSERT_LT(f, SharedRun::fragments);
    if (at_[f]) {
      EXPECT_GT(snapshot.at.round, *at_[f]) << "fragment " << f << " goes back to an earlier round";
    }
    const auto expected = run_.state(f, snapshot.at.round);
    EXPECT_EQ(snapshot.at, expected.at);
    ASSERT_EQ(snapshot.parts(), two_parts);
    for (std::size_t part = 0; part < 2; ++part)
      EXPECT_TRUE(*snapshot.values[part] == *expected.values[part])
          << "part " << part << " of fragment " << f;
    at_[f] = snapshot.at.round;
    ++fragments_taken;
    after_fragment(f);
  }
  void on_round(FragmentId f, protocol::Round round, std::vector<protocol::SharedBytes> results) override {
    ASSERT_LT(f, SharedRun::fragments);
    ASSERT_TRUE(at_[f]) << "a round of fragment " << f << " arrived before its state";
    EXPECT_EQ(round, *at_[f] + 1) << "fragment " << f;
    const auto expected = run_.results(f, round);
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t k = 0; k < results.size(); ++k) EXPECT_TRUE(*results[k] == *expected[k]);
    at_[f] = round;
    ++rounds_taken;
    after_round(f);
  }
  void on_failed(const std::string& problem) override {
    ++failures;
    why = problem;
    after_failure();
  }

  const SharedRun& run_;
  std::vector<std::optional<protocol::Round>> at_;
  StatePatience patience_;
  Trace trace_;
  BufferPool buffers_{4 * 4096, 16};
  asio::io_context io_;

 public:
  std::unique_ptr<StateFetcher> fetcher;
};

}  // namespace isthmus::outer_sync::transport
