// A joiner copies the state from several donors and follows the rounds while donors fail, lag or lie.

#include "net/state_transfer/state_fetcher.h"

#include <gmock/gmock.h>

#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "net/link/listen.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::ReplicaId;
using protocol::Round;
using protocol::SharedBytes;
using testing::HasSubstr;

constexpr ReplicaId fetcher_id = 22;
constexpr StateParts two_parts = set_of(StatePart::theta) | set_of(StatePart::velocity);
constexpr std::uint64_t fast = 1'000'000'000;  ///< bytes per second
constexpr FragmentId fragments = 6;

Digest run_token() {
  Digest token;
  token.bytes.fill(7);
  return token;
}

/// The run's state and the rounds committed so far, as all members have them. Read and changed from any
/// thread.
class SharedRun {
 public:
  SharedRun() {
    for (auto& round : committed_) round = 5;
  }
  void commit(FragmentId fragment, Round rounds = 1) { committed_[fragment] += rounds; }
  [[nodiscard]] Round committed(FragmentId fragment) const { return committed_[fragment]; }
  [[nodiscard]] std::vector<Round> newest() const { return {committed_.begin(), committed_.end()}; }

  [[nodiscard]] FragmentSnapshot state(FragmentId fragment, Round round) const {
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
  [[nodiscard]] std::vector<SharedBytes> results(FragmentId fragment, Round round) const {
    std::vector<SharedBytes> results;
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
  std::array<std::atomic<Round>, fragments> committed_;
};

/// A member that is only a donor, on its own io thread.
class Donor final : public PeerMesh::Handler {
 public:
  struct Manner {
    std::uint64_t bytes_per_second = fast;
    Round keeps = 1000;  ///< how many rounds it keeps
    Round lag = 0;       ///< how many rounds it is behind the others
    /// Called repeatedly before the donor sends a fragment, until it returns true.
    std::function<bool()> ready = [] { return true; };
  };
  Donor(const SharedRun& run, ReplicaId id) : Donor(run, id, Manner{}) {}
  Donor(const SharedRun& run, ReplicaId id, Manner manner)
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
  ~Donor() override { stop(); }
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
  ReplicaId id_;
  Manner manner_;

 public:
  WireCounters counters;
  std::atomic<Round> lag;
  std::atomic<std::size_t> states_asked = 0, states_given = 0, rounds_asked = 0;

 private:
  asio::ip::tcp::acceptor bind() {
    auto acceptor = listen_at(io_, "127.0.0.1:0", "listen");
    address_ = bound_address(acceptor).to_string();
    return acceptor;
  }
  asio::awaitable<void> on_fetcher(ReplicaId fetcher, ConnectionPtr connection) override {
    EXPECT_EQ(fetcher, fetcher_id);
    SnapshotSource snapshots = [this](StateRequest request) { return take_snapshot(request); };
    RoundSource rounds = [this](FragmentId fragment, Round round) { return take_round(fragment, round); };
    return serve_fetcher(std::move(connection), run_.layout, pacer_, std::move(snapshots), std::move(rounds));
  }
  [[nodiscard]] Round applied(FragmentId fragment) const { return run_.committed(fragment) - lag; }
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
  std::vector<SharedBytes> take_round(FragmentId fragment, Round round) {
    ++rounds_asked;
    const auto newest = applied(fragment);
    if (round > newest || round + manner_.keeps <= newest) return {};
    return run_.results(fragment, round);
  }
  std::optional<std::string> on_chunk(ReplicaId, Connection::Received) override { return std::nullopt; }
  void on_ack(ReplicaId, protocol::ViewNumber, const protocol::ChunkKey&) override {}
  void on_begun(ReplicaId, protocol::ViewNumber) override {}
  void on_peer_up(ReplicaId) override {}
  void on_peer_down(ReplicaId) override {}
  std::uint64_t order_of(const protocol::ChunkKey&) const override { return 0; }
  void on_broken_peer(ReplicaId, const std::string&) override {}
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
      : run_(run), at_(fragments), patience_(patience) {
    renew();
  }

  void start(const std::vector<PeerInfo>& donors) {
    fetcher->start(donors, fetcher_id, run_token(), two_parts);
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
    for (FragmentId f = 0; f < fragments; ++f) {
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
    ASSERT_LT(f, fragments);
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
  void on_round(FragmentId f, Round round, std::vector<SharedBytes> results) override {
    ASSERT_LT(f, fragments);
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
  std::vector<std::optional<Round>> at_;
  StatePatience patience_;
  Trace trace_;
  BufferPool buffers_{4 * 4096, 16};
  asio::io_context io_;

 public:
  std::unique_ptr<StateFetcher> fetcher;
};

// ---- the state ----

TEST(StateFetcher, TakesTheStateFromTwoDonorsAtOnceAndEachFragmentOnce) {
  SharedRun run;
  std::atomic<std::size_t> both = 0;
  const auto meet = [&both, met = false]() mutable {  // neither answers before the other is asked too
    if (!std::exchange(met, true)) ++both;
    return both == 2;
  };
  Donor a(run, 1, {.ready = meet}), b(run, 2, {.ready = meet});
  Joiner joiner(run);
  joiner.start({a.info(), b.info()});
  EXPECT_FALSE(joiner.fetcher->caught_up());
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  EXPECT_FALSE(joiner.fetcher->caught_up()) << "the newest rounds are not known yet";
  joiner.fetcher->newest(run.newest());
  EXPECT_TRUE(joiner.fetcher->caught_up());
  joiner.fetcher->stop();
  a.stop();
  b.stop();
  EXPECT_GE(a.states_given, 1U);
  EXPECT_GE(b.states_given, 1U);
  EXPECT_EQ(a.counters.state + b.counters.state, run.state_bytes())
      << "no part of the state may be sent twice";
  const auto wire = a.counters.total + b.counters.total + joiner.counters.total;
  EXPECT_LE(wire, run.state_bytes() + run.state_bytes() / 20) << "including hellos, requests and headers";
}

TEST(StateFetcher, ASlowDonorGivesLess) {
  SharedRun run;
  std::atomic<bool> slow_is_at_work = false;
  Donor quick(run, 1, {.ready = [&] { return slow_is_at_work.load(); }});
  Donor slow(run, 2, {.ready = [&] {
               slow_is_at_work = true;
               return quick.states_given == fragments - 1;
             }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({slow.info(), quick.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(slow.states_given, 1U);
  EXPECT_EQ(quick.states_given, fragments - 1);
}

TEST(StateFetcher, ADonorThatBreaksOffLeavesItsFragmentsToTheOther) {
  SharedRun run;
  Donor weak(run, 1);
  Forwarder forwarder(weak.address());
  forwarder.cut_within(20'000);  // less than any fragment
  // The good donor answers only after the weak one has failed.
  Donor good(run, 2, {.ready = [&forwarder] { return forwarder.connections() >= 2; }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({weak.behind(forwarder), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, fragments);
  EXPECT_EQ(good.states_given, fragments);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U) << "a fragment's first copy must not count as fetched anew";
}

TEST(StateFetcher, TheOnlyDonorIsTriedAgain) {
  SharedRun run;
  Donor donor(run, 1, {.bytes_per_second = 4'000'000});
  Forwarder forwarder(donor.address());
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({donor.behind(forwarder)});
  for (int cut = 0; cut < 2; ++cut) {
    const std::size_t asked = donor.states_asked;
    joiner.run_until([&] { return donor.states_asked > asked; });
    forwarder.cut();
  }
  joiner.run_until_at_newest();
  EXPECT_EQ(forwarder.connections(), 3U) << "two connections were cut";
}

TEST(StateFetcher, WithoutAnyDonorItSaysWhyAndGoesOnWithOthers) {
  SharedRun run;
  Donor good(run, 3);
  Forwarder dead(good.address());
  dead.refuse();
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({{1, "eu-1", dead.address()}, {2, "eu-2", dead.address()}, {9, "nowhere", "no address"}});
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_GE(dead.connections(), 6U) << "three attempts for each donor";
  for (const auto* name : {"no state from eu-1 at ", "no state from eu-2 at ", "the address of nowhere"})
    EXPECT_THAT(joiner.why, HasSubstr(name));
  joiner.failures = 0;
  joiner.start({good.info()});
  joiner.run_until_at_newest();
  EXPECT_THROW(joiner.start({}), Error);
}

TEST(StateFetcher, ASilentDonorIsLeft) {
  SharedRun run;
  Donor silent(run, 1, {.ready = [] { return false; }});
  Donor good(run, 2, {.ready = [&silent] { return silent.states_asked > 0; }});
  Joiner joiner(run, {.head = 1s, .frame = 1h});
  joiner.fetcher->newest(run.newest());
  joiner.start({silent.info(), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(good.states_given, fragments);
}

// ---- the rounds ----

TEST(StateFetcher, FollowsTheRoundsOfASlowTransfer) {
  SharedRun run;
  Donor donor(run, 1, {.bytes_per_second = 2'000'000});
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.fetcher->newest(run.newest());
  // While the next fragment is sent, the run commits two more rounds of each, from the warm-up into the main
  // phase.
  joiner.after_fragment = [&](FragmentId) {
    for (FragmentId f = 0; f < fragments; ++f) run.commit(f, 2);
    joiner.fetcher->newest(run.newest());
  };
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, fragments);
  EXPECT_GE(joiner.rounds_taken, 2 * fragments);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
  // After catching up, it must follow each further round.
  joiner.after_fragment = [](FragmentId) {};
  for (int i = 0; i < 3; ++i) {
    const auto before = joiner.rounds_taken;
    run.commit(4);
    run.commit(5, 3);
    joiner.fetcher->newest(run.newest());
    EXPECT_FALSE(joiner.fetcher->caught_up()) << "fragment 5 is three rounds behind";
    joiner.run_until_at_newest();
    EXPECT_EQ(joiner.rounds_taken, before + 4);
  }
}

TEST(StateFetcher, IsCaughtUpWithinOneRound) {
  SharedRun run;
  Donor donor(run, 1);
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  run.commit(2);
  joiner.fetcher->newest(run.newest());
  EXPECT_TRUE(joiner.fetcher->caught_up());
  run.commit(2);
  joiner.fetcher->newest(run.newest());
  EXPECT_FALSE(joiner.fetcher->caught_up());
  EXPECT_THROW(joiner.fetcher->newest({1, 2}), Error);
}

/// Donors keep only the last two rounds, so the round after the copied state is gone for good.
TEST(StateFetcher, FetchesAFragmentAnewWhoseRoundsAreGone) {
  SharedRun run;
  Donor a(run, 1, {.keeps = 2}), b(run, 2, {.keeps = 2});
  Joiner joiner(run);
  joiner.start({a.info(), b.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  run.commit(3, 5);
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  EXPECT_EQ(joiner.fragments_taken, fragments + 1);
  EXPECT_EQ(joiner.rounds_taken, 0U) << "the new state includes these rounds";
}

TEST(StateFetcher, ARoundThatOneDonorHasNotGotComesFromAnother) {
  SharedRun run;
  Donor behind(run, 1, {.lag = 3}), good(run, 2);
  Joiner joiner(run);
  joiner.start({behind.info(), good.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  for (FragmentId f = 0; f < fragments; ++f) run.commit(f);
  joiner.fetcher->newest(run.newest());
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
}

TEST(StateFetcher, ARoundThatNoDonorHasYetIsAskedForAgain) {
  SharedRun run;
  Donor donor(run, 1);
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  donor.lag = 1;
  run.commit(0);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return donor.rounds_asked >= 2; });
  donor.lag = 0;
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 0U);
  EXPECT_EQ(joiner.rounds_taken, 1U);
}

/// A donor that is far behind has only an older state than the joiner's, and must not even send it.
TEST(StateFetcher, NeverGoesBack) {
  SharedRun run;
  Donor donor(run, 1, {.keeps = 1});
  Joiner joiner(run);
  joiner.start({donor.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  donor.lag = 6;
  run.commit(0, 6);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return donor.states_given >= fragments + 2; });
  donor.lag = 0;
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, fragments + 1);
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
}

// ---- donors that break the protocol ----

TEST(StateFetcher, GivesUpADonorWhoseFragmentsDoNotFit) {
  SharedRun run, other;
  other.layout = FragmentLayout({{0, 11}, {11, 11}, {22, 11}, {33, 11}, {44, 11}, {55, 11}}, 4096);
  Donor bad(other, 1), good(run, 2, {.ready = [&bad] { return bad.states_given > 0; }});
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.start({bad.info(), good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(bad.states_given, 1U) << "a bad donor must not be asked again";
  joiner.fetcher->stop();

  Joiner without(run);
  without.start({bad.info()});
  without.run_until([&] { return without.failures > 0; });
  EXPECT_THAT(without.why, HasSubstr("elements here and 11 there"));
  EXPECT_EQ(bad.states_given, 2U);
}

TEST(StateFetcher, GivesUpADonorWhoseRoundsDoNotFitAndFetchesTheFragmentAnew) {
  SharedRun run, other;
  other.codecs.codec = quant::default_spec(quant::CodecKind::int4);
  for (auto* one : {&run, &other}) {
    for (FragmentId f = 0; f < fragments; ++f) one->commit(f, 5);
  }
  Donor bad(other, 1), good(run, 2);
  Joiner joiner(run);
  joiner.start({bad.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  run.commit(1);
  other.commit(1);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_THAT(joiner.why, HasSubstr("no round 11 of fragment 1 from the donor at "));
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  EXPECT_FALSE(joiner.fetcher->caught_up()) << "the state from a bad donor must not be trusted";
  EXPECT_EQ(bad.rounds_asked, 1U);
  joiner.failures = 0;
  joiner.start({good.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(good.states_given, 1U);
}

/// For example, results that do not decode are noticed by the handler only.
TEST(StateFetcher, GivesUpADonorWhoseRoundsTheHandlerRefuses) {
  SharedRun run;
  Donor a(run, 1), b(run, 2);
  Joiner joiner(run);
  joiner.start({a.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments; });
  joiner.after_round = [](FragmentId) { throw Error(ErrorKind::network, "that does not decode"); };
  run.commit(1);
  joiner.fetcher->newest(run.newest());
  joiner.run_until([&] { return joiner.failures > 0; });
  EXPECT_EQ(joiner.why, "that does not decode");
  EXPECT_EQ(joiner.fetcher->fetched_anew(), 1U);
  joiner.failures = 0;
  joiner.forget();
  joiner.start({b.info()});
  joiner.run_until([&] { return joiner.fragments_taken == fragments + 1; });
  EXPECT_TRUE(joiner.fetcher->caught_up());
}

/// Donors that the test plays by hand.
TEST(StateFetcher, GivesUpADonorThatSaysAnythingElse) {
  SharedRun run;
  const Frame hello{FrameType::peer_hello,
                    to_bytes(PeerHello{.token = run_token(), .from = 1, .to = fetcher_id}), nullptr};
  const Frame somebody{FrameType::peer_hello,
                       to_bytes(PeerHello{.token = run_token(), .from = 2, .to = fetcher_id}), nullptr};
  const Frame early{FrameType::state_done, to_bytes(StateDone{0}), nullptr};
  const Frame control = control_frame(protocol::Hold{});
  const Frame huge{FrameType::state_data, Bytes(state_frame_limit + 1), nullptr};
  const std::pair<std::vector<Frame>, const char*> cases[] = {
      {{somebody}, "it is another replica"},      {{control}, "its first frame is not a hello"},
      {{hello, early}, "before it was complete"}, {{hello, control}, "no place in a state stream"},
      {{hello, huge}, "expected at most 262160"}, {{hello, hello}, "no place in a state stream"},
  };
  for (const auto& [frames, expected] : cases) {
    RawListener listener;
    std::thread donor([&listener, &frames = frames] {
      RawPeer peer(listener);
      static_cast<void>(peer.receive());
      for (const auto& frame : frames) peer.say(frame);
      EXPECT_TRUE(peer.is_dropped());
    });
    Joiner joiner(run);
    joiner.start({{1, "false", listener.address()}});
    joiner.run_until([&] { return joiner.failures > 0; });
    EXPECT_THAT(joiner.why, HasSubstr(expected));
    donor.join();
  }
}

// ---- its end ----

TEST(StateFetcher, NothingTouchesItAfterItsEnd) {
  for (const bool paced : {false, true}) {
    SharedRun run;
    const std::uint64_t rate = paced ? 2'000'000 : fast;
    Donor a(run, 1, {.bytes_per_second = rate}), b(run, 2, {.bytes_per_second = rate});
    Joiner joiner(run);
    joiner.after_fragment = [&](FragmentId) { joiner.fetcher.reset(); };
    joiner.start({a.info(), b.info()});
    joiner.run_until([&] { return joiner.fetcher == nullptr; });
    joiner.run_out();
    EXPECT_EQ(joiner.fragments_taken, 1U);
  }
  SharedRun run;
  Forwarder dead("127.0.0.1:1");
  dead.refuse();
  Joiner joiner(run);
  joiner.after_failure = [&] { joiner.fetcher.reset(); };
  joiner.start({{1, "eu-1", dead.address()}});
  joiner.run_until([&] { return joiner.fetcher == nullptr; });
  joiner.run_out();
  joiner.renew();
  joiner.start({{1, "eu-1", dead.address()}});
  joiner.fetcher.reset();  // before it starts
  joiner.run_out();
  EXPECT_EQ(joiner.failures, 1U);
}

TEST(StateFetcher, GoesOnWhereItWasStopped) {
  SharedRun run;
  Donor donor(run, 1);
  Joiner joiner(run);
  joiner.fetcher->newest(run.newest());
  joiner.after_fragment = [&](FragmentId) {
    joiner.fetcher->stop();
    joiner.start({donor.info()});
  };
  joiner.start({donor.info()});
  joiner.run_until_at_newest();
  EXPECT_EQ(joiner.fragments_taken, fragments);
}

// ---- random events ----

/// Donors of random speed, memory and lag, on connections that break. At random events, rounds are committed
/// and the fetcher is stopped and started. Once the disorder ends, the joiner must catch up.
void live_through_disorder(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::uint64_t counter = 0;
  const auto below = [&](std::uint64_t bound) { return random_bits(seed, 1, counter++) % bound; };
  SharedRun run;
  std::deque<Donor> donors;
  std::deque<Forwarder> forwarders;
  std::vector<PeerInfo> infos;
  for (std::uint64_t n = 1 + below(3), id = 1; id <= n; ++id) {
    const auto& donor =
        donors.emplace_back(run, id,
                            Donor::Manner{.bytes_per_second = below(2) == 0 ? fast : 20'000'000,
                                          .keeps = below(4) == 0 ? 2U : 20U,
                                          .lag = below(4) == 0 ? 1U : 0U});
    auto& forwarder = forwarders.emplace_back(donor.address());
    const bool may_break = below(2) == 0;
    infos.push_back(may_break ? donor.behind(forwarder) : donor.info());
    if (below(2) == 0) forwarder.cut_within(400'000);
  }
  Joiner joiner(run);
  int disorders = 12;
  const auto disorder = [&](FragmentId f) {
    if (disorders == 0) return;
    if (--disorders == 0) {
      for (auto& forwarder : forwarders) forwarder.cut_within(0);
      for (auto& donor : donors) donor.lag = 0;
      joiner.fetcher->newest(run.newest());
      return;
    }
    run.commit(static_cast<FragmentId>(below(fragments)), 1 + below(3));
    if (below(4) == 0) run.commit(f, 2);
    if (below(3) > 0) joiner.fetcher->newest(run.newest());
    if (below(6) == 0) forwarders[below(forwarders.size())].cut();
    if (below(8) == 0) joiner.start(infos);
  };
  joiner.after_fragment = joiner.after_round = disorder;
  joiner.after_failure = [&] { joiner.start(infos); };
  joiner.fetcher->newest(run.newest());
  joiner.start(infos);
  joiner.run_until([&] { return disorders == 0 || joiner.fetcher->caught_up(); });
  if (disorders > 0) disorders = 1, disorder(0);
  joiner.run_until([&] { return joiner.at_newest() || testing::Test::HasFailure(); });
  ASSERT_FALSE(testing::Test::HasFailure());
  EXPECT_TRUE(joiner.fetcher->caught_up());
}

/// Ten at a time, since they mostly wait.
TEST(StateFetcher, HundredRandomInterleavingsEndWhereTheMembersAre) {
  std::vector<std::thread> threads;
  for (std::uint64_t first = 0; first < 10; ++first) {
    threads.emplace_back([first] {
      for (std::uint64_t seed = first; seed < 100; seed += 10) live_through_disorder(seed);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
