// State streams: a fetcher gets exactly what the donor sends, or an error if the connection breaks or a peer
// lies.

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

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::ReplicaId;
using testing::AllOf;
using testing::HasSubstr;

constexpr ReplicaId donor_id = 11;
constexpr ReplicaId fetcher_id = 22;
constexpr StateParts theta = set_of(StatePart::theta);
constexpr StateParts all_parts = 15;
constexpr std::uint64_t fast = 1'000'000'000;  ///< bytes per second

Digest run_token() {
  Digest token;
  token.bytes.fill(7);
  return token;
}

/// The second fragment needs several pieces, the last of them short.
FragmentLayout two_fragments() { return FragmentLayout({{0, 1000}, {1008, 200'003}}, 4096); }

/// Rounds 1 and 2 are sent in fp32.
protocol::CodecPlan codecs() {
  return {.codec = quant::default_spec(quant::CodecKind::int8),
          .warmup_codec = quant::default_spec(quant::CodecKind::fp32),
          .warmup_rounds = 2};
}

/// Random bytes of the length of encoded results.
std::vector<protocol::SharedBytes> results_of(const FragmentLayout& layout, RoundRequest request) {
  std::vector<protocol::SharedBytes> results;
  const auto chunks = layout.chunks_of(request.fragment);
  for (ChunkId k = chunks.first; k < chunks.last; ++k) {
    Bytes bytes(quant::encoded_size(codecs().of(request.round), layout.chunk(k).size));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(random_bits(request.round, k, i));
    results.push_back(std::make_shared<const Bytes>(std::move(bytes)));
  }
  return results;
}

void expect_equal(const std::vector<protocol::SharedBytes>& got,
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

void expect_equal(const FragmentSnapshot& got, const FragmentSnapshot& given) {
  EXPECT_EQ(got.fragment, given.fragment);
  EXPECT_EQ(got.at, given.at);
  EXPECT_EQ(got.parts(), given.parts());
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (given.values[part] == nullptr || got.values[part] == nullptr) continue;
    EXPECT_EQ(*got.values[part], *given.values[part]) << "part " << part;
  }
}

// ---- the pace ----

TEST(Pacer, LetsThroughItsDepthAndThenItsRate) {
  const auto start = Pacer::Clock::time_point(1h);
  Pacer pacer(1'000'000);
  for (int i = 0; i < 5; ++i) EXPECT_LT(pacer.take(10'000, start), start) << "the bucket holds 50 ms";
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pacer.take(10'000, start), start + i * 10ms);
}

TEST(Pacer, APauseSavesNoMoreThanItsDepth) {
  const auto start = Pacer::Clock::time_point(1h);
  Pacer pacer(1'000'000);
  EXPECT_LE(pacer.take(1'000'000, start), start);
  const auto later = start + 1min;
  EXPECT_EQ(pacer.take(50'000, later), later - Pacer::usual_depth);
  EXPECT_EQ(pacer.take(1, later), later);
  EXPECT_GT(pacer.take(1, later), later);
}

TEST(Pacer, PiecesAreWholeValuesAndWorthTheirHeaders) {
  for (const std::uint64_t rate :
       {1ULL, 1'000ULL, 100'000ULL, 1'234'567ULL, 5'000'000ULL, 10'000'000'000ULL}) {
    const auto piece = piece_of(Pacer(rate));
    EXPECT_EQ(piece % sizeof(float), 0U);
    EXPECT_LE(piece, largest_piece);
    EXPECT_GE(piece, 100 * (sizeof(FrameHeader) + sizeof(StateDataHeader)))
        << "headers must add less than 1 %";
  }
  EXPECT_EQ(piece_of(Pacer(1'000'000)), 50'000U) << "50 ms at this rate";
}

// ---- reassembly, without a network ----

class Receiver : public testing::Test {
 protected:
  static Connection::Received frame(FrameType type, Bytes body) {
    return {type, {}, {}, std::make_shared<const Bytes>(std::move(body))};
  }
  static Connection::Received head(FragmentId fragment, std::uint64_t elements, StateParts parts) {
    return frame(FrameType::state_head,
                 to_bytes(StateHead{fragment, {5, {}}, elements, parts, 0, protocol::FragmentLedger(5)}));
  }
  static Connection::Received data(FragmentId fragment, unsigned part, std::uint64_t offset,
                                   std::size_t bytes, std::uint8_t zero = 0) {
    auto body = bytes_of(StateDataHeader{offset, fragment, static_cast<StatePart>(part), {0, zero, 0}});
    body.resize(body.size() + bytes);
    return frame(FrameType::state_data, std::move(body));
  }
  static Connection::Received done(FragmentId fragment) {
    return frame(FrameType::state_done, to_bytes(StateDone{fragment}));
  }
  /// The error for the last of these frames, or how far the receiver is; all earlier frames must be accepted.
  std::string refusal(StateRequest request, const std::vector<Connection::Received>& frames) {
    StateReceiver receiver(layout, request);
    for (std::size_t i = 0; i < frames.size(); ++i) {
      try {
        receiver.take(frames[i]);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::network);
        EXPECT_EQ(i + 1, frames.size()) << "refused too early: " << error.what();
        return error.what();
      }
    }
    return receiver.complete() ? "complete" : "not yet complete";
  }
  std::string refusal(const std::vector<Connection::Received>& frames) { return refusal({0, theta}, frames); }

  FragmentLayout layout = two_fragments();  ///< fragment 0 has 1,000 elements
};

TEST_F(Receiver, TakesPartsInTheirOrderAndPiecesInTheirs) {
  EXPECT_EQ(refusal({head(0, 1000, 1), data(0, 0, 0, 4000), done(0)}), "complete");
  EXPECT_EQ(refusal({head(0, 1000, 1), data(0, 0, 0, 1600), data(0, 0, 400, 2400), done(0)}), "complete");
  EXPECT_EQ(refusal({0, 10}, {head(0, 1000, 10), data(0, 1, 0, 4000), data(0, 3, 0, 4000), done(0)}),
            "complete");
  EXPECT_EQ(refusal({head(0, 1000, 1), data(0, 0, 0, 4000)}), "not yet complete");
}

TEST_F(Receiver, RefusesHeadsOfAnythingElse) {
  EXPECT_THAT(refusal({head(1, 1000, 1)}), HasSubstr("fragment 1; expected parts 1 of fragment 0"));
  EXPECT_THAT(refusal({head(0, 1000, 3)}), HasSubstr("it sent parts 3"));
  EXPECT_THAT(refusal({head(0, 999, 1)}), HasSubstr("1000 elements here and 999 there"));
  const StateHead older{0, {5, {}}, 1000, 1, 0, protocol::FragmentLedger(4)};
  EXPECT_THAT(refusal({frame(FrameType::state_head, to_bytes(older))}),
              HasSubstr("an invalid ledger of fragment 0"));
  EXPECT_THAT(refusal({head(0, UINT64_MAX, 1)}), HasSubstr("1000 elements here"));
  EXPECT_THAT(refusal({head(0, 1000, 1), head(0, 1000, 1)}), HasSubstr("a second head"));
  EXPECT_THAT(refusal({frame(FrameType::state_head, Bytes(3))}), HasSubstr("ends too early"));
}

TEST_F(Receiver, RefusesPiecesThatAreNotTheNext) {
  const auto begun = head(0, 1000, 1);
  EXPECT_THAT(refusal({data(0, 0, 0, 4000)}), HasSubstr("values without a head"));
  EXPECT_THAT(refusal({begun, frame(FrameType::state_data, Bytes(15))}), HasSubstr("without its header"));
  EXPECT_THAT(refusal({begun, data(1, 0, 0, 400)}), HasSubstr("a piece of fragment 1"));
  EXPECT_THAT(refusal({begun, data(0, 1, 0, 400)}), HasSubstr("expected fragment 0, part 0, element 0"));
  EXPECT_THAT(refusal({begun, data(0, 255, 0, 400)}), HasSubstr("part 255"));
  EXPECT_THAT(refusal({begun, data(0, 0, 1, 400)}), HasSubstr("element 1; expected"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 400), data(0, 0, 101, 400)}), HasSubstr("element 100"))
      << "a gap";
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 400), data(0, 0, 0, 400)}), HasSubstr("element 100")) << "again";
  EXPECT_THAT(refusal({begun, data(0, 0, UINT64_MAX, 400)}), HasSubstr("expected"));
}

TEST_F(Receiver, RefusesPiecesOfNoLegalLength) {
  const auto begun = head(0, 1000, 1);
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 0)}), HasSubstr("a piece of 0 bytes"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 4001)}), HasSubstr("a piece of 4001 bytes"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 4004)}), HasSubstr("a piece of 4004 bytes"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 400), data(0, 0, 100, 3604)}), HasSubstr("3604 bytes"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 400, 1)}), HasSubstr("a piece of 400 bytes"))
      << "a reserved byte that is not zero";
  EXPECT_THAT(refusal({1, theta}, {head(1, 200'003, 1), data(1, 0, 0, largest_piece + 4)}),
              HasSubstr("262148 bytes"));
}

TEST_F(Receiver, TakesThatTheDonorHasNoneAndNothingOlderThanWasAskedFor) {
  const auto gone = [](FragmentId fragment) {
    return frame(FrameType::state_gone, to_bytes(StateGone{fragment}));
  };
  EXPECT_EQ(refusal({0, theta, 6}, {gone(0)}), "complete");
  EXPECT_EQ(refusal({0, theta, 5}, {head(0, 1000, 1), data(0, 0, 0, 4000), done(0)}), "complete");
  EXPECT_THAT(refusal({0, theta, 6}, {head(0, 1000, 1)}), HasSubstr("it sent round 5"));
  EXPECT_THAT(refusal({gone(1)}), HasSubstr("that it lacks fragment 1"));
  EXPECT_THAT(refusal({head(0, 1000, 1), gone(0)}), HasSubstr("or has already begun"));
  EXPECT_THAT(refusal({gone(0), gone(0)}), HasSubstr("more than was asked for"));
}

TEST_F(Receiver, RefusesAnEndBeforeTheEndAndAnythingAfterIt) {
  const auto begun = head(0, 1000, 1);
  EXPECT_THAT(refusal({done(0)}), HasSubstr("before it was complete"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 400), done(0)}), HasSubstr("before it was complete"));
  EXPECT_THAT(refusal({0, 3}, {head(0, 1000, 3), data(0, 0, 0, 4000), done(0)}),
              HasSubstr("before it was complete"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 4000), done(1)}), HasSubstr("it ended fragment 1"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 4000), data(0, 0, 1000, 4)}), HasSubstr("expected"));
  EXPECT_THAT(refusal({begun, data(0, 0, 0, 4000), done(0), done(0)}), HasSubstr("more than was asked for"));
  EXPECT_THAT(refusal({begun, frame(FrameType::control, Bytes(4))}), HasSubstr("no place in a state stream"));
}

/// Receives round 3 of fragment 1, or of fragment 0, which is one chunk.
class RoundTaker : public testing::Test {
 protected:
  static Connection::Received chunk(const ChunkHeader& header, std::size_t bytes) {
    return {FrameType::chunk, header, {}, std::make_shared<const Bytes>(bytes)};
  }
  static ChunkHeader header(ChunkId k, protocol::Round round = 3) {
    return header_of(0, {.round = round, .chunk = k, .kind = protocol::ChunkKind::result});
  }
  static Connection::Received end(FrameType type, FragmentId fragment) {
    return {type, {}, {}, std::make_shared<const Bytes>(to_bytes(StateDone{fragment}))};
  }
  std::size_t size(ChunkId k) { return quant::encoded_size(codecs().of(3), layout.chunk(k).size); }
  /// The error for the last of these frames, or how far the receiver is; all earlier frames must be accepted.
  std::string refusal(FragmentId fragment, const std::vector<Connection::Received>& frames) {
    RoundReceiver receiver(layout, codecs(), {fragment, 3});
    for (std::size_t i = 0; i < frames.size(); ++i) {
      try {
        receiver.take(frames[i]);
      } catch (const Error& error) {
        EXPECT_EQ(i + 1, frames.size()) << "refused too early: " << error.what();
        return error.what();
      }
    }
    if (!receiver.complete()) return "not yet complete";
    return receiver.result() ? "complete" : "gone";
  }
  FragmentLayout layout = two_fragments();
};

TEST_F(RoundTaker, TakesAllChunksInTheirOrderOrThatThereAreNone) {
  const auto good = chunk(header(0), size(0));
  EXPECT_EQ(refusal(0, {good}), "not yet complete");
  EXPECT_EQ(refusal(0, {good, end(FrameType::state_done, 0)}), "complete");
  EXPECT_EQ(refusal(0, {end(FrameType::state_gone, 0)}), "gone");
  EXPECT_EQ(refusal(1, {chunk(header(1), size(1)), chunk(header(2), size(2))}), "not yet complete");
}

TEST_F(RoundTaker, RefusesChunksThatAreNotTheNext) {
  EXPECT_THAT(refusal(0, {chunk(header(1), size(1))}), HasSubstr("expected the result of chunk 0"));
  EXPECT_THAT(refusal(1, {chunk(header(2), size(2))}), HasSubstr("expected the result of chunk 1"));
  EXPECT_THAT(refusal(1, {chunk(header(1), size(1)), chunk(header(1), size(1))}), HasSubstr("chunk 2"));
  EXPECT_THAT(refusal(0, {chunk(header(0, 4), size(0))}), HasSubstr("round 4; expected"));
  EXPECT_THAT(refusal(0, {chunk(header(0), size(0)), chunk(header(1), size(1))}),
              HasSubstr("after the last"));
  for (auto change : {+[](ChunkHeader& h) { h.view = 1; }, +[](ChunkHeader& h) { h.sender = 1; },
                      +[](ChunkHeader& h) { h.packing = 1; }, +[](ChunkHeader& h) { h.kind = 1; }}) {
    auto changed = header(0);
    change(changed);
    EXPECT_THAT(refusal(0, {chunk(changed, size(0))}), HasSubstr("unpacked and without a view"));
  }
  auto contributed = chunk(header(0), size(0));
  contributed.contributors = {1};
  EXPECT_THAT(refusal(0, {contributed}), HasSubstr("with contributors"));
}

TEST_F(RoundTaker, RefusesEveryOtherLengthAndWrongEnds) {
  for (const std::size_t wrong : {std::size_t{0}, size(0) - 1, size(0) + 1, std::size_t{4000}})
    EXPECT_THAT(refusal(0, {chunk(header(0), wrong)}), HasSubstr("; expected " + std::to_string(size(0))));
  const auto good = chunk(header(0), size(0));
  EXPECT_THAT(refusal(0, {end(FrameType::state_done, 0)}), HasSubstr("after 0 chunks"));
  EXPECT_THAT(refusal(0, {good, end(FrameType::state_done, 1)}), HasSubstr("it ended fragment 1"));
  EXPECT_THAT(refusal(0, {good, end(FrameType::state_gone, 0)}), HasSubstr("after 1 chunks"));
  EXPECT_THAT(refusal(0, {end(FrameType::state_gone, 1)}), HasSubstr("it ended fragment 1"));
  EXPECT_THAT(refusal(0, {good, end(FrameType::state_done, 0), good}), HasSubstr("more than was asked for"));
  EXPECT_THAT(refusal(0, {end(FrameType::state_head, 0)}), HasSubstr("no place among"));
}

// ---- over sockets ----

/// A member that is only a donor, on its own io thread.
class Donor final : public PeerMesh::Handler {
 public:
  explicit Donor(std::uint64_t bytes_per_second = fast)
      : work_(asio::make_work_guard(io_)),
        pacer_(std::make_shared<Pacer>(bytes_per_second)),
        mesh_(io_, bind(), 1, counters, {}, clock_, trace_, *this) {
    mesh_.begin(donor_id, "donor", run_token(), largest_chunk_frame(4096), buffers_);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Donor() override { stop(); }
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
  void on_message(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    said_ += text + "\n";
  }

  const FragmentLayout layout_ = two_fragments();
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
class StateFetcher {
 public:
  explicit StateFetcher(LinkOptions link = {}) : link_(link) {}

  void dial(const PeerInfo& donor, const Digest& token = run_token()) {
    donor_ = finish(dial_donor(io_, donor, fetcher_id, token, link_, counters_, trace_));
  }
  FragmentSnapshot fetch(StateRequest request, StatePatience patience = {1h, 1h}) {
    return try_to_fetch(request, patience).value();
  }
  std::optional<FragmentSnapshot> try_to_fetch(StateRequest request, StatePatience patience = {1h, 1h}) {
    return finish(fetch_fragment(donor_, layout, request, patience));
  }
  std::optional<std::vector<protocol::SharedBytes>> fetch_results(RoundRequest request) {
    return finish(fetch_round(donor_, layout, codecs(), request, {1h, 1h}, buffers_));
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

  const FragmentLayout layout = two_fragments();

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
  Donor donor;
  StateFetcher fetcher;
  fetcher.dial(donor.info());
  for (const StateRequest request :
       {StateRequest{0, theta}, StateRequest{1, all_parts}, StateRequest{1, 2}, StateRequest{0, 12}}) {
    expect_equal(fetcher.fetch(request), snapshot_of(fetcher.layout, request));
  }
}

TEST(StateStream, GivesRoundsToTheByteAndSaysWhichAreGone) {
  Donor donor;
  StateFetcher fetcher;
  fetcher.dial(donor.info());
  for (const RoundRequest request : {RoundRequest{0, 2}, RoundRequest{1, 2}, RoundRequest{1, 3}}) {
    const auto results = fetcher.fetch_results(request);
    ASSERT_TRUE(results);
    expect_equal(*results, results_of(fetcher.layout, request));
  }
  for (const protocol::Round absent : {protocol::Round{1}, protocol::Round{5}, UINT64_MAX})
    EXPECT_FALSE(fetcher.fetch_results(RoundRequest{1, absent})) << "round " << absent;
  EXPECT_TRUE(fetcher.try_to_fetch({1, theta, 41}));
  EXPECT_FALSE(fetcher.try_to_fetch({1, theta, 42})) << "the donor is at round 41";
  expect_equal(fetcher.fetch({1, theta}), snapshot_of(fetcher.layout, {1, theta}));
}

TEST(StateStream, RoundsAreTakenOutOfTheSameBucket) {
  const auto start = Pacer::Clock::now();
  Donor donor(1'000'000);
  StateFetcher fetcher;
  fetcher.dial(donor.info());
  const auto results = fetcher.fetch_results(RoundRequest{1, 3});
  ASSERT_TRUE(results);
  expect_equal(*results, results_of(fetcher.layout, {1, 3}));
  donor.stop();
  EXPECT_GE(donor.pacer().take(0, start), start - Pacer::usual_depth + 200'003us)
      << "more than a byte per element";
}

TEST(StateStream, CountsItsBytesAndAddsLessThanOnePercent) {
  Donor donor;
  StateFetcher fetcher;
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
  Donor donor(2'000'000);
  StateFetcher fetcher;
  fetcher.dial(donor.info());
  expect_equal(fetcher.fetch({1, theta}), snapshot_of(fetcher.layout, {1, theta}));
  donor.stop();
  EXPECT_LT(donor.counters.total, donor.counters.state + donor.counters.state / 100);
}

TEST(StateStream, ALearnerThatDoesNotReadHoldsUpTheStreamAndFillsNoQueue) {
  constexpr int fragments = 8;  // 25 MB, more than sockets hold
  Donor donor;
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
  Donor donor;
  std::deque<StateFetcher> fetchers;
  for (std::size_t i = 0; i < PeerMesh::max_fetchers; ++i) fetchers.emplace_back().dial(donor.info());
  StateFetcher late;
  EXPECT_THAT(late.problem([&] { late.dial(donor.info()); }), HasSubstr("no state from donor at "));
  EXPECT_THAT(donor.said(), HasSubstr("already serving the state to 16 others"));
  for (auto& fetcher : fetchers) expect_equal(fetcher.fetch({0, 3}), snapshot_of(fetcher.layout, {0, 3}));
  fetchers.pop_front();  // makes room
  while (!late.problem([&] { late.dial(donor.info()); }).empty()) {
  }
  expect_equal(late.fetch({0, theta}), snapshot_of(late.layout, {0, theta}));
}

TEST(StateStream, LearnersThatBreakTheProtocolAreDroppedAndOthersServed) {
  Donor donor;
  const auto dropped = [&](const Frame& frame) {
    RawPeer fetcher(donor.info().address);
    fetcher.say(fetcher_hello());
    EXPECT_TRUE(fetcher.receive()) << "a proper hello must be answered";
    fetcher.say(frame);
    return fetcher.is_dropped();
  };
  EXPECT_TRUE(dropped(request_frame(2, theta))) << "there are only two fragments";
  EXPECT_TRUE(dropped(request_frame(UINT32_MAX, theta)));
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
  StateFetcher fetcher;
  fetcher.dial(donor.info());
  expect_equal(fetcher.fetch({1, theta}), snapshot_of(fetcher.layout, {1, theta}));
}

TEST(StateStream, WithoutTheTokenThereIsNothing) {
  Donor donor;
  StateFetcher fetcher;
  EXPECT_THAT(fetcher.problem([&] { fetcher.dial(donor.info(), Digest()); }),
              AllOf(HasSubstr("no state from donor at " + donor.info().address), HasSubstr("End of file")));
  auto somebody_else = donor.info();
  somebody_else.id = 99;
  EXPECT_THAT(fetcher.problem([&] { fetcher.dial(somebody_else); }), HasSubstr("no state from donor"));
}

TEST(StateStream, ADonorThatIsNotThereIsNamed) {
  StateFetcher fetcher({.hello_limit = 200ms});
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
  Donor donor;
  Forwarder forwarder(donor.info().address);
  forwarder.cut_within(300'000);  // of 800 kB
  auto unlucky = donor.info();
  unlucky.address = forwarder.address();
  StateFetcher fetcher;
  EXPECT_THAT(
      fetcher.problem([&] {
        fetcher.dial(unlucky);
        static_cast<void>(fetcher.fetch({1, theta}));
      }),
      AllOf(HasSubstr("no fragment 1 from the donor at " + forwarder.address()), HasSubstr("it is lost")));
  fetcher.dial(donor.info());
  expect_equal(fetcher.fetch({1, theta}), snapshot_of(fetcher.layout, {1, theta}));
}

/// A donor that the test plays by hand: it accepts the fetcher and sends the given frames.
class FalseDonor : public testing::Test {
 protected:
  std::string outcome(const std::vector<Frame>& frames, StatePatience patience = {20s, 20s}) {
    std::promise<std::string> ended;
    std::thread learning([&] {
      StateFetcher fetcher;
      ended.set_value(fetcher.problem([&] {
        fetcher.dial({donor_id, "donor", listener.address()});
        static_cast<void>(fetcher.fetch({0, theta}, patience));
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
            to_bytes(StateHead{0, {5, {}}, 1000, theta, 0, protocol::FragmentLedger(5)}), nullptr};
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
