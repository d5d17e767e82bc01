#include "net/state_transfer/state_stream.h"

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <cassert>
#include <cstring>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "net/link/listen.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t smallest_piece = 4 * 1024;
constexpr auto request_time_limit = 60s;  ///< a fetcher that requests nothing must free its place
constexpr auto piece_time_limit = 30s;    ///< so must a fetcher that does not read

[[noreturn]] void refuse_transfer(const std::string& what) { throw Error(ErrorKind::network, what); }

template <class Message>
Frame archived(FrameType type, const Message& message) {
  return {type, to_bytes(message), nullptr};
}

bool all_there(const std::vector<protocol::SharedBytes>& results) {
  return !results.empty() && std::find(results.begin(), results.end(), nullptr) == results.end();
}

}  // namespace

// ---- donor ----

std::size_t piece_of(const Pacer& pacer) {
  const auto bytes = std::clamp(pacer.depth_in_bytes(), static_cast<double>(smallest_piece),
                                static_cast<double>(largest_piece));
  return static_cast<std::size_t>(bytes) / sizeof(float) * sizeof(float);
}

StateSender::StateSender(ConnectionPtr connection, std::shared_ptr<Pacer> pacer)
    : connection_(std::move(connection)), pacer_(std::move(pacer)) {}

asio::awaitable<void> StateSender::send(FragmentSnapshot snapshot) {
  StateHead head{.fragment = snapshot.fragment,
                 .at = snapshot.at,
                 .elements = 0,
                 .parts = snapshot.parts(),
                 .inner_steps = snapshot.inner_steps,
                 .ledger = std::move(snapshot.ledger)};
  if (head.ledger.round() != head.at.round) head.ledger = protocol::FragmentLedger(head.at.round);
  for (const auto& values : snapshot.values) {
    if (values) head.elements = values->size();
  }
  connection_->send(archived(FrameType::state_head, head));
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (snapshot.values[part]) co_await send_part(snapshot, static_cast<StatePart>(part));
  }
  connection_->send(archived(FrameType::state_done, StateDone{snapshot.fragment}));
}

asio::awaitable<void> StateSender::send(RoundRequest round, const FragmentLayout& layout,
                                        std::vector<protocol::SharedBytes> results) {
  const auto chunks = layout.chunks_of(round.fragment);
  assert(results.size() == chunks.size());
  for (ChunkId k = chunks.first; k < chunks.last; ++k) {
    const protocol::ChunkKey key{round.round, k, 0, protocol::ChunkKind::result};
    const protocol::ChunkMessage message{.view = 0, .key = key, .bytes = results[k - chunks.first]};
    auto frame = chunk_frame(message);
    co_await send_piece(std::move(frame));
  }
  connection_->send(archived(FrameType::state_done, StateDone{round.fragment}));
}

void StateSender::send_gone(FragmentId fragment) {
  connection_->send(archived(FrameType::state_gone, StateGone{fragment}));
}

asio::awaitable<void> StateSender::send_part(const FragmentSnapshot& snapshot, StatePart part) {
  const auto values = std::span(*snapshot.values[static_cast<std::size_t>(part)]);
  const auto most = piece_of(*pacer_) / sizeof(float);
  for (std::size_t offset = 0; offset < values.size(); offset += most) {
    const auto bytes = std::as_bytes(values.subspan(offset, std::min(most, values.size() - offset)));
    const StateDataHeader header{.offset = offset, .fragment = snapshot.fragment, .part = part, .zero = {}};
    Frame piece{FrameType::state_data, bytes_of(header), std::make_shared<Bytes>(bytes.begin(), bytes.end())};
    co_await send_piece(std::move(piece));
  }
}

asio::awaitable<void> StateSender::send_piece(Frame piece) {
  asio::steady_timer pause(connection_->executor());
  pause.expires_at(pacer_->take(piece.body->size(), Pacer::Clock::now()));
  co_await pause.async_wait(use_awaitable);
  const Watchdog watchdog(connection_, piece_time_limit);
  connection_->send(std::move(piece));
  co_await connection_->drained();
  if (!connection_->open())
    refuse_transfer("it closed the connection, or did not read, in the middle of a fragment");
}

namespace {

asio::awaitable<void> give_fragment(StateSender& sender, StateRequest request,
                                    const SnapshotSource& snapshots) {
  auto snapshot = co_await snapshots(request);
  if (!snapshot || snapshot->at.round < request.from) co_return sender.send_gone(request.fragment);
  assert(snapshot->fragment == request.fragment && snapshot->parts() == request.parts);
  co_await sender.send(std::move(*snapshot));
}

asio::awaitable<void> give_round(StateSender& sender, RoundRequest request, const FragmentLayout& layout,
                                 const RoundSource& rounds) {
  auto results = rounds(request.fragment, request.round);
  if (!all_there(results)) co_return sender.send_gone(request.fragment);
  co_await sender.send(request, layout, std::move(results));
}

asio::awaitable<Connection::Received> next_request(ConnectionPtr connection) {
  const Watchdog watchdog(connection, request_time_limit);
  co_return co_await connection->receive(unauthenticated_limit);
}

}  // namespace

asio::awaitable<void> serve_fetcher(ConnectionPtr connection, const FragmentLayout& layout,
                                    std::shared_ptr<Pacer> pacer, SnapshotSource snapshots,
                                    RoundSource rounds) {
  StateSender sender(connection, std::move(pacer));
  for (;;) {
    const auto frame = co_await next_request(connection);
    if (frame.type == FrameType::state_request) {
      co_await give_fragment(sender, state_request_of(frame, layout), snapshots);
    } else if (frame.type == FrameType::round_request) {
      co_await give_round(sender, round_request_of(frame, layout), layout, rounds);
    } else {
      refuse_transfer("a frame that a fetcher may not send");
    }
  }
}

// ---- fetcher ----

namespace {

/// Sends a hello on a dialled connection and waits for its answer. Throws Error(network) if that comes from
/// another replica, and asio::system_error if the connection ends.
asio::awaitable<void> greet(ConnectionPtr connection, PeerHello hello, Connection::Clock::duration limit) {
  const Watchdog watchdog(connection, limit);
  connection->send(archived(FrameType::peer_hello, hello));
  const auto answer = hello_of(co_await connection->receive(unauthenticated_limit));
  if (answer.token != hello.token || answer.from != hello.to || answer.to != hello.from)
    refuse_transfer("the process there is not the member that was dialled");
}

/// Connects to the donor, directly or through the bridge, and sets `to` to the connection that it has begun.
asio::awaitable<void> connect_to(ConnectionPtr& to, asio::ip::tcp::socket socket, const PeerInfo& donor,
                                 const std::optional<PeerInfo>& bridge, const PeerHello& hello,
                                 const LinkOptions& link, WireCounters& counters, Trace& trace) {
  const auto limit = link.hello_limit + 2 * link.hold;
  if (bridge) {
    to = start_connection(std::move(socket), counters, link, trace, {.dialled = true, .name = bridge->name});
    auto wish = hello;
    wish.to = bridge->id;
    wish.role = PeerRole::bridge_seeker;
    wish.beyond = donor.id;
    co_await greet(to, wish, limit + bridge_limit);
    socket = co_await to->release();
  }
  to = start_connection(std::move(socket), counters, link, trace, {.dialled = true, .name = donor.name});
  co_await greet(to, hello, limit);
}

}  // namespace

asio::awaitable<ConnectionPtr> dial_donor(asio::io_context& io, PeerInfo donor,
                                          std::optional<PeerInfo> bridge, protocol::ReplicaId self,
                                          Digest token, LinkOptions link, WireCounters& counters,
                                          Trace& trace) {
  const auto& dialled = bridge ? *bridge : donor;
  const auto who = "no state from " + donor.name + (bridge ? " through " + bridge->name : std::string()) +
                   " at " + dialled.address + ": ";
  const auto address = parse_address(dialled.address, "the address of " + dialled.name);
  asio::ip::tcp::socket socket(io);
  const auto error = co_await dial(socket, address, dial_time_limit, link.mailbox);
  if (error) throw DonorLost(who + error.message());
  const PeerHello hello{.token = token, .from = self, .to = donor.id, .lane = 0, .role = PeerRole::fetcher};
  ConnectionPtr connection;
  std::string problem;
  bool lost = bridge.has_value();  // the bridge may have lost the donor
  try {
    co_await connect_to(connection, std::move(socket), donor, bridge, hello, link, counters, trace);
    co_return connection;
  } catch (const Damaged& damage) {
    problem = damage.what();
    lost = true;
  } catch (const Error& broken) {
    problem = broken.what();
  } catch (const asio::system_error& ended) {
    problem = ended.code().message();
    lost = true;
  }
  if (connection) connection->close();
  if (lost) throw DonorLost(who + problem);
  refuse_transfer(who + problem);
}

namespace {

/// Sends `question` and passes the frames that arrive, each of at most `limit` bytes, to the receiver until
/// it is complete. Errors name `what`.
template <class Receiver>
asio::awaitable<void> ask(ConnectionPtr donor, Frame question, Receiver& receiver, std::string what,
                          StatePatience patience, std::size_t limit, const BufferPool* buffers) {
  std::string problem;
  bool lost = false;
  try {
    donor->send(std::move(question));
    auto wait = patience.head;
    while (!receiver.complete()) {
      const Watchdog watchdog(donor, wait);
      receiver.take(co_await donor->receive(limit, buffers));
      wait = patience.frame;
    }
    co_return;
  } catch (const Damaged& damage) {  // another connection may do better
    problem = damage.what();
    lost = true;
  } catch (const Error& broken) {
    problem = broken.what();
  } catch (const asio::system_error& ended) {
    problem = "it is lost: " + ended.code().message();
    lost = true;
  }
  donor->close();
  problem = "no " + what + " from the donor at " + donor->remote() + ": " + problem;
  if (lost) throw DonorLost(problem);
  refuse_transfer(problem);
}

}  // namespace

asio::awaitable<std::optional<FragmentSnapshot>> fetch_fragment(ConnectionPtr donor,
                                                                const FragmentLayout& layout,
                                                                StateRequest request,
                                                                StatePatience patience) {
  StateReceiver receiver(layout, request);
  const auto what = "fragment " + std::to_string(request.fragment);
  auto question = archived(FrameType::state_request, request);
  co_await ask(std::move(donor), std::move(question), receiver, what, patience, state_frame_limit, nullptr);
  co_return receiver.result();
}

asio::awaitable<std::optional<std::vector<protocol::SharedBytes>>> fetch_round(
    ConnectionPtr donor, const FragmentLayout& layout, protocol::CodecPlan codecs, RoundRequest request,
    StatePatience patience, BufferPool buffers) {
  RoundReceiver receiver(layout, codecs, request);
  const auto what =
      "round " + std::to_string(request.round) + " of fragment " + std::to_string(request.fragment);
  const auto longest =
      layout.chunk(layout.chunks_of(request.fragment).first).size;  // only the last is shorter
  const auto limit = sizeof(ChunkHeader) + quant::encoded_size(codecs.of(request.round), longest);
  auto question = archived(FrameType::round_request, request);
  co_await ask(std::move(donor), std::move(question), receiver, what, patience, limit, &buffers);
  co_return receiver.result();
}

}  // namespace isthmus::outer_sync::transport
