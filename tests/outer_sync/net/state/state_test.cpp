// State streams over sockets: a fetcher gets exactly what the donor sends, or an error if the connection
// breaks or a peer lies.

#include <gmock/gmock.h>

#include <asio/co_spawn.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/use_future.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "forwarder.h"
#include "isthmus/base/random.h"
#include "net/link/listen.h"
#include "net/state_transfer/state_stream.h"
#include "network_run.h"
#include "raw_peer.h"
#include "state_support.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::ReplicaId;
using testing::AllOf;
using testing::HasSubstr;

constexpr ReplicaId donor_id = 11;
constexpr StateParts all_parts = 15;

/// Random bytes of the length of encoded results.
std::vector<protocol::SharedBytes> results_of(const FragmentLayout& layout, RoundRequest request) {
  std::vector<protocol::SharedBytes> results;
  const auto chunks = layout.chunks_of(request.fragment);
  for (ChunkId k = chunks.first; k < chunks.last; ++k) {
    Bytes bytes(quant::encoded_size(state_codecs().of(request.round), layout.chunk(k).size));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(random_bits(request.round, k, i));
    results.push_back(std::make_shared<const Bytes>(std::move(bytes)));
  }
  return results;
}

void expect_same_state(const std::vector<protocol::SharedBytes>& got,
                       const std::vector<protocol::SharedBytes>& given) {
  ASSERT_EQ(got.size(), given.size());
  for (std::size_t k = 0; k < given.size(); ++k) EXPECT_EQ(*got[k], *given[k]) << "chunk " << k;
}

float value(FragmentId fragment, std::size_t part, std::uint64_t element) {
  return random_unit(fragment, part, element);
}

FragmentSnapshot snapshot_of(const FragmentLayout& layout, StateRequest request) {
  FragmentSnapshot snapshot{.fragment = request.fragment, .at = {40 + request.fragment, {}}, .values = {}};
  snapshot.at.chain.bytes.fill(static_cast<std::uint8_t>(request.fragment + 1));
  for (std::size_t part = 0; part < state_parts; ++part) {
    if ((request.parts >> part & 1) == 0) continue;
    auto values = std::make_shared<AlignedVector<float>>(layout.fragment(request.fragment).size);
    for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = value(request.fragment, part, i);
    snapshot.values[part] = values;
  }
  return snapshot;
}

void expect_same_state(const FragmentSnapshot& got, const FragmentSnapshot& given) {
  EXPECT_EQ(got.fragment, given.fragment);
  EXPECT_EQ(got.at, given.at);
  EXPECT_EQ(got.parts(), given.parts());
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (given.values[part] == nullptr || got.values[part] == nullptr) continue;
    EXPECT_EQ(*got.values[part], *given.values[part]) << "part " << part;
  }
}

/// A member that is only a donor, on its own io thread.
class StreamDonor final : public PeerMesh::Handler {
 public:
  explicit StreamDonor(std::uint64_t bytes_per_second = fast_rate)
      : work_(asio::make_work_guard(io_)),
        pacer_(std::make_shared<Pacer>(bytes_per_second)),
        mesh_(io_, bind(), 1, counters, {}, clock_, trace_, *this) {
    mesh_.begin(donor_id, "donor", run_token(), largest_chunk_frame(4096), buffers_);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~StreamDonor() override { stop(); }
  void stop() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] PeerInfo info() const { return {donor_id, "donor", address_}; }
  /// Largest number of bytes queued for a fetcher when the next fragment was started.
  [[nodiscard]] std::size_t max_queued() const { return max_queued_; }
  [[nodiscard]] Pacer& pacer() { return *pacer_; }  ///< call it only after `stop`
  /// Messages so far.
  [[nodiscard]] std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

  WireCounters counters;

 private:
  asio::ip::tcp::acceptor bind() {
    auto acceptor = listen_at(io_, "127.0.0.1:0", "listen");
    address_ = bound_address(acceptor).to_string();
    return acceptor;
  }
  asio::awaitable<void> on_fetcher(ReplicaId fetcher, ConnectionPtr connection) override {
    EXPECT_EQ(fetcher, fetcher_id);
    SnapshotSource snapshots = [this, connection](StateRequest request) {
      max_queued_ = std::max<std::size_t>(max_queued_, connection->queued_bytes());
      return take_snapshot(request);
    };
    RoundSource rounds = [this](FragmentId fragment, protocol::Round round) {
      return take_round({fragment, round});
    };
    return serve_fetcher(std::move(connection), layout_, pacer_, std::move(snapshots), std::move(rounds));
  }
  /// It holds rounds 2 to 4, and round 5 in part.
  std::vector<protocol::SharedBytes> take_round(RoundRequest request) {
    if (request.round < 2 || request.round > 5) return {};
    auto results = results_of(layout_, request);
    if (request.round == 5) results.back() = nullptr;
    return results;
  }
  asio::awaitable<std::optional<FragmentSnapshot>> take_snapshot(StateRequest request) {
    co_return snapshot_of(layout_, request);
  }
  std::optional<std::string> on_chunk(ReplicaId, Connection::Received) override { return std::nullopt; }
  void on_ack(ReplicaId, protocol::ViewNumber, const protocol::ChunkKey&) override {}
  void on_begun(ReplicaId, protocol::ViewNumber) override {}
  void on_peer_up(ReplicaId) override {}
  void on_peer_down(ReplicaId) override {}
  std::uint64_t order_of(const protocol::ChunkKey&) const override { return 0; }
  void on_broken_peer(ReplicaId, const std::string&) override {}
  void on_bridge(bool) override {}
  void on_message(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    said_ += text + "\n";
  }

  const FragmentLayout layout_ = state_layout();
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::string address_;
  Trace trace_;
  AwakeClock clock_{1h};
  BufferPool buffers_{4096, 16};
  std::shared_ptr<Pacer> pacer_;
  PeerMesh mesh_;
  std::atomic<std::size_t> max_queued_ = 0;
  std::mutex mutex_;
  std::string said_;
  std::thread thread_;
};

/// A fetcher on the test's thread.
class StreamFetcher {
 public:
  explicit StreamFetcher(LinkOptions link = {}) : link_(link) {}

  void dial(const PeerInfo& donor, const Digest& token = run_token()) {
    donor_ = finish(dial_donor(io_, donor, {}, fetcher_id, token, link_, counters_, trace_));
  }
  FragmentSnapshot fetch(StateRequest request, StatePatience patience = {1h, 1h}) {
    return try_to_fetch(request, patience).value();
  }
  std::optional<FragmentSnapshot> try_to_fetch(StateRequest request, StatePatience patience = {1h, 1h}) {
    return finish(fetch_fragment(donor_, layout, request, patience));
  }
  std::optional<std::vector<protocol::SharedBytes>> fetch_results(RoundRequest request) {
    return finish(fetch_round(donor_, layout, state_codecs(), request, {1h, 1h}, buffers_));
  }
  /// The error that `act` throws; empty if it throws none.
  template <class Act>
  std::string problem(Act act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::network);
      return error.what();
    }
    return "";
  }
  [[nodiscard]] const ConnectionPtr& connection() const { return donor_; }

  const FragmentLayout layout = state_layout();

 private:
  template <class T>
  T finish(asio::awaitable<T> task) {
    auto future = asio::co_spawn(io_, std::move(task), asio::use_future);
    while (future.wait_for(0s) != std::future_status::ready) io_.run_one();
    return future.get();
  }

  asio::io_context io_;
  LinkOptions link_;
  WireCounters counters_;
  Trace trace_;
  BufferPool buffers_{4 * 4096, 16};
  ConnectionPtr donor_;
};

Frame fetcher_hello(PeerRole role = PeerRole::fetcher) {
  return {FrameType::peer_hello, to_bytes(PeerHello{run_token(), fetcher_id, donor_id, 0, role}), nullptr};
}
Frame request_frame(FragmentId fragment, StateParts parts) {
  return {FrameType::state_request, to_bytes(StateRequest{fragment, parts}), nullptr};
}
Frame round_frame(FragmentId fragment, protocol::Round round) {
  return {FrameType::round_request, to_bytes(RoundRequest{fragment, round}), nullptr};
}

TEST(StateStream, GivesEveryPartOfEveryFragmentToTheBit) {
  StreamDonor donor;
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  for (const StateRequest request :
       {StateRequest{0, theta_only}, StateRequest{1, all_parts}, StateRequest{1, 2}, StateRequest{0, 12}}) {
    expect_same_state(fetcher.fetch(request), snapshot_of(fetcher.layout, request));
  }
}

TEST(StateStream, GivesRoundsToTheByteAndSaysWhichAreGone) {
  StreamDonor donor;
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  for (const RoundRequest request : {RoundRequest{0, 2}, RoundRequest{1, 2}, RoundRequest{1, 3}}) {
    const auto results = fetcher.fetch_results(request);
    ASSERT_TRUE(results);
    expect_same_state(*results, results_of(fetcher.layout, request));
  }
  for (const protocol::Round absent : {protocol::Round{1}, protocol::Round{5}, UINT64_MAX})
    EXPECT_FALSE(fetcher.fetch_results(RoundRequest{1, absent})) << "round " << absent;
  EXPECT_TRUE(fetcher.try_to_fetch({1, theta_only, 41}));
  EXPECT_FALSE(fetcher.try_to_fetch({1, theta_only, 42})) << "the donor is at round 41";
  expect_same_state(fetcher.fetch({1, theta_only}), snapshot_of(fetcher.layout, {1, theta_only}));
}

TEST(StateStream, RoundsAreTakenOutOfTheSameBucket) {
  const auto start = Pacer::Clock::now();
  StreamDonor donor(1'000'000);
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  const auto results = fetcher.fetch_results(RoundRequest{1, 3});
  ASSERT_TRUE(results);
  expect_same_state(*results, results_of(fetcher.layout, {1, 3}));
  donor.stop();
  EXPECT_GE(donor.pacer().take(0, start), start - Pacer::usual_depth + 200'003us)
      << "more than a byte per element";
}

TEST(StateStream, CountsItsBytesAndAddsLessThanOnePercent) {
  StreamDonor donor;
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  static_cast<void>(fetcher.fetch({1, all_parts}));
  fetcher.connection()->close();
  donor.stop();
  const std::uint64_t values = 4 * 200'003 * sizeof(float);
  EXPECT_EQ(donor.counters.state, values);
  EXPECT_EQ(donor.counters.payload, 0U) << "encoded chunks are counted separately";
  EXPECT_LT(donor.counters.total, values + values / 100);
}

TEST(StateStream, SlowOnesAreInSmallPiecesAndStillWhole) {
  StreamDonor donor(2'000'000);
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  expect_same_state(fetcher.fetch({1, theta_only}), snapshot_of(fetcher.layout, {1, theta_only}));
  donor.stop();
  EXPECT_LT(donor.counters.total, donor.counters.state + donor.counters.state / 100);
}

TEST(StateStream, ALearnerThatDoesNotReadHoldsUpTheStreamAndFillsNoQueue) {
  constexpr int fragments = 8;  // 25 MB, more than sockets hold
  StreamDonor donor;
  RawPeer fetcher(donor.info().address);
  fetcher.say(fetcher_hello());
  for (int i = 0; i < fragments; ++i) fetcher.say(request_frame(1, all_parts));
  std::this_thread::sleep_for(200ms);  // time to queue what must not be queued
  int done = 0;
  while (done < fragments) {
    const auto frame = fetcher.receive();
    ASSERT_TRUE(frame);
    if (frame->type == FrameType::state_done) ++done;
  }
  EXPECT_LE(donor.max_queued(), 100U) << "at most the end of the previous fragment may be queued";
}

TEST(StateStream, SixteenLearnersAreServedAtATime) {
  StreamDonor donor;
  std::deque<StreamFetcher> fetchers;
  for (std::size_t i = 0; i < PeerMesh::max_fetchers; ++i) fetchers.emplace_back().dial(donor.info());
  StreamFetcher late;
  EXPECT_THAT(late.problem([&] { late.dial(donor.info()); }), HasSubstr("no state from donor at "));
  EXPECT_THAT(donor.said(), HasSubstr("no place: 16 others copy the state here"));
  for (auto& fetcher : fetchers)
    expect_same_state(fetcher.fetch({0, 3}), snapshot_of(fetcher.layout, {0, 3}));
  fetchers.pop_front();  // makes room
  while (!late.problem([&] { late.dial(donor.info()); }).empty()) {
  }
  expect_same_state(late.fetch({0, theta_only}), snapshot_of(late.layout, {0, theta_only}));
}

TEST(StateStream, LearnersThatBreakTheProtocolAreDroppedAndOthersServed) {
  StreamDonor donor;
  const auto dropped = [&](const Frame& frame) {
    RawPeer fetcher(donor.info().address);
    fetcher.say(fetcher_hello());
    EXPECT_TRUE(fetcher.receive()) << "a proper hello must be answered";
    fetcher.say(frame);
    return fetcher.is_dropped();
  };
  EXPECT_TRUE(dropped(request_frame(2, theta_only))) << "there are only two fragments";
  EXPECT_TRUE(dropped(request_frame(UINT32_MAX, theta_only)));
  EXPECT_TRUE(dropped(request_frame(0, 0)));
  EXPECT_TRUE(dropped(request_frame(0, 16)));
  EXPECT_TRUE(dropped(Frame{FrameType::state_request, Bytes(3), nullptr}));
  EXPECT_TRUE(dropped(Frame{FrameType::state_request, Bytes(14), nullptr}));
  EXPECT_TRUE(dropped(round_frame(2, 3))) << "there are only two fragments";
  EXPECT_TRUE(dropped(round_frame(0, 0))) << "rounds are numbered from 1";
  EXPECT_TRUE(dropped(Frame{FrameType::round_request, Bytes(11), nullptr}));
  EXPECT_TRUE(dropped(Frame{FrameType::round_request, Bytes(13), nullptr}));
  EXPECT_TRUE(dropped(Frame{FrameType::chunk, Bytes(sizeof(ChunkHeader)), nullptr}))
      << "a fetcher is not a member";
  EXPECT_TRUE(dropped(control_frame(protocol::Hold{})));
  RawPeer unknown_role(donor.info().address);
  unknown_role.say(fetcher_hello(static_cast<PeerRole>(2)));
  EXPECT_TRUE(unknown_role.is_dropped());
  {  // disconnects in the middle
    RawPeer hasty(donor.info().address);
    hasty.say(fetcher_hello());
    hasty.say(request_frame(1, all_parts));
    EXPECT_TRUE(hasty.receive() && hasty.receive() && hasty.receive());
  }
  StreamFetcher fetcher;
  fetcher.dial(donor.info());
  expect_same_state(fetcher.fetch({1, theta_only}), snapshot_of(fetcher.layout, {1, theta_only}));
}

TEST(StateStream, WithoutTheTokenThereIsNothing) {
  StreamDonor donor;
  StreamFetcher fetcher;
  EXPECT_THAT(fetcher.problem([&] { fetcher.dial(donor.info(), Digest()); }),
              AllOf(HasSubstr("no state from donor at " + donor.info().address), HasSubstr("End of file")));
  auto somebody_else = donor.info();
  somebody_else.id = 99;
  EXPECT_THAT(fetcher.problem([&] { fetcher.dial(somebody_else); }), HasSubstr("no state from donor"));
}

TEST(StateStream, ADonorThatIsNotThereIsNamed) {
  StreamFetcher fetcher({.hello_limit = 200ms});
  EXPECT_THAT(fetcher.problem([&] {
    fetcher.dial({1, "eu-1", private_address(90)});
  }),
              HasSubstr("no state from eu-1 at " + private_address(90)));
  RawListener silent;
  EXPECT_THAT(fetcher.problem([&] {
    fetcher.dial({1, "eu-1", silent.address()});
  }),
              HasSubstr("no state from eu-1"));
}

/// A lost connection is an error for the caller; another donor gives the same state.
TEST(StateStream, ADonorThatDiesInTheMiddleIsAnErrorAndAnotherOneIsAsked) {
  StreamDonor donor;
  Forwarder forwarder(donor.info().address);
  forwarder.cut_within(300'000);  // of 800 kB
  auto unlucky = donor.info();
  unlucky.address = forwarder.address();
  StreamFetcher fetcher;
  EXPECT_THAT(
      fetcher.problem([&] {
        fetcher.dial(unlucky);
        static_cast<void>(fetcher.fetch({1, theta_only}));
      }),
      AllOf(HasSubstr("no fragment 1 from the donor at " + forwarder.address()), HasSubstr("it is lost")));
  fetcher.dial(donor.info());
  expect_same_state(fetcher.fetch({1, theta_only}), snapshot_of(fetcher.layout, {1, theta_only}));
}

/// A donor that the test plays by hand: it accepts the fetcher and sends the given frames.
class FalseDonor : public testing::Test {
 protected:
  std::string outcome(const std::vector<Frame>& frames, StatePatience patience = {20s, 20s}) {
    std::promise<std::string> ended;
    std::thread learning([&] {
      StreamFetcher fetcher;
      ended.set_value(fetcher.problem([&] {
        fetcher.dial({donor_id, "donor", listener.address()});
        static_cast<void>(fetcher.fetch({0, theta_only}, patience));
        ADD_FAILURE() << "fetched a fragment";
      }));
    });
    RawPeer peer(listener);
    static_cast<void>(peer.receive());
    const PeerHello hello{run_token(), donor_id, fetcher_id, 0, PeerRole::member};
    peer.say(Frame{FrameType::peer_hello, to_bytes(hello), nullptr});
    const auto request = peer.receive();
    EXPECT_TRUE(request && request->type == FrameType::state_request);
    for (const auto& frame : frames) peer.say(frame);
    EXPECT_TRUE(peer.is_dropped());
    learning.join();
    return ended.get_future().get();
  }
  static Frame head() {
    return {FrameType::state_head,
            to_bytes(StateHead{0, {5, {}}, 1000, theta_only, 0, protocol::FragmentLedger(5)}), nullptr};
  }
  static Frame data(std::uint64_t offset, std::size_t bytes) {
    return {FrameType::state_data, bytes_of(StateDataHeader{offset, 0, StatePart::theta, {}}),
            std::make_shared<const Bytes>(bytes, std::byte{1})};
  }
  RawListener listener;
};

TEST_F(FalseDonor, ThatBreaksTheProtocolIsLeft) {
  EXPECT_THAT(outcome({head(), data(0, 4004)}), HasSubstr("a piece of 4004 bytes"));
  EXPECT_THAT(outcome({head(), data(0, 400), data(100, 400), data(0, 400)}), HasSubstr("expected"));
  EXPECT_THAT(outcome({head(), data(0, largest_piece + 4)}), HasSubstr("expected at most 262160 here"));
  EXPECT_THAT(outcome({Frame{FrameType::control, Bytes(9), nullptr}}), HasSubstr("no place"));
}

TEST_F(FalseDonor, ThatSendsWithoutEndIsLeft) {
  std::vector<Frame> endless{head()};
  for (std::uint64_t piece = 0; piece < 100; ++piece) endless.push_back(data(100 * piece, 400));
  EXPECT_THAT(outcome(endless), HasSubstr("expected fragment 0, part 4"));
}

TEST_F(FalseDonor, ThatFallsSilentIsLeft) {
  EXPECT_THAT(outcome({}, {200ms, 20s}), HasSubstr("it is lost"));
  EXPECT_THAT(outcome({head(), data(0, 400)}, {20s, 200ms}), HasSubstr("it is lost"));
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
