#include "transport/state_stream.h"

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <cassert>
#include <cstring>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/transport/address.h"
#include "transport/listen.h"

namespace isthmus::outer_sync::transport {

using asio::use_awaitable;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t smallest_piece = 4 * 1024;
constexpr auto dial_time_limit = 5s;
constexpr auto request_time_limit = 60s;  ///< a learner that asks for nothing gives its place to another
constexpr auto piece_time_limit = 30s;    ///< a learner that does not read does too
constexpr StateParts all_parts = (1U << state_parts) - 1;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::network, what); }

bool contains(StateParts parts, std::size_t part) { return (parts >> part & 1U) != 0; }

template <class Message>
Frame archived(FrameType type, const Message& message) {
  return {type, to_bytes(message), nullptr};
}

StateRequest request_of(const Connection::Received& frame, const FragmentLayout& layout) {
  if (frame.type != FrameType::state_request) refuse("a frame that has no place in a learner's mouth");
  const auto request = from_bytes<StateRequest>(*frame.body);
  if (request.fragment >= layout.fragment_count()) {
    refuse("it asked for fragment " + std::to_string(request.fragment) + " of " +
           std::to_string(layout.fragment_count()));
  }
  if (request.parts == 0 || (request.parts & ~all_parts) != 0)
    refuse("it asked for parts " + std::to_string(request.parts) + ", a set that there is not");
  return request;
}

}  // namespace

StateParts FragmentSnapshot::parts() const {
  StateParts parts = 0;
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (values[part]) parts |= set_of(static_cast<StatePart>(part));
  }
  return parts;
}

// ---- donor ----

Pacer::Pacer(std::uint64_t bytes_per_second) : bytes_per_second_(static_cast<double>(bytes_per_second)) {
  assert(bytes_per_second > 0);
}

Pacer::Clock::time_point Pacer::take(std::size_t bytes, Clock::time_point now) {
  next_ = std::max(next_, now - depth);
  const std::chrono::duration<double> lasts(static_cast<double>(bytes) / bytes_per_second_);
  return std::exchange(next_, next_ + std::chrono::ceil<Clock::duration>(lasts));
}

std::size_t Pacer::piece() const {
  const double worth = bytes_per_second_ * std::chrono::duration<double>(depth).count();
  const auto bytes =
      std::clamp(worth, static_cast<double>(smallest_piece), static_cast<double>(largest_piece));
  return static_cast<std::size_t>(bytes) / sizeof(float) * sizeof(float);
}

StateSender::StateSender(ConnectionPtr connection, std::shared_ptr<Pacer> pacer)
    : connection_(std::move(connection)), pacer_(std::move(pacer)) {}

asio::awaitable<void> StateSender::send(FragmentSnapshot snapshot) {
  StateHead head{.fragment = snapshot.fragment, .at = snapshot.at, .elements = 0, .parts = snapshot.parts()};
  for (const auto& values : snapshot.values) {
    if (values) head.elements = values->size();
  }
  connection_->send(archived(FrameType::state_head, head));
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (snapshot.values[part]) co_await send_part(snapshot, static_cast<StatePart>(part));
  }
  connection_->send(archived(FrameType::state_done, StateDone{snapshot.fragment}));
}

asio::awaitable<void> StateSender::send_part(const FragmentSnapshot& snapshot, StatePart part) {
  const auto values = std::span(*snapshot.values[static_cast<std::size_t>(part)]);
  const auto most = pacer_->piece() / sizeof(float);
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
  if (!connection_->open()) refuse("it went away, or did not read, in the middle of a fragment");
}

asio::awaitable<void> serve_learner(ConnectionPtr connection, const FragmentLayout& layout,
                                    std::shared_ptr<Pacer> pacer, SnapshotSource source) {
  StateSender sender(connection, std::move(pacer));
  for (;;) {
    StateRequest request;
    {
      const Watchdog watchdog(connection, request_time_limit);
      request = request_of(co_await connection->receive(unauthenticated_limit), layout);
    }
    auto snapshot = co_await source(request);
    assert(snapshot.fragment == request.fragment && snapshot.parts() == request.parts);
    co_await sender.send(std::move(snapshot));
  }
}

// ---- learner ----

StateReceiver::StateReceiver(const FragmentLayout& layout, StateRequest request)
    : request_(request), elements_(layout.fragment(request.fragment).size) {}

void StateReceiver::take(const Connection::Received& frame) {
  if (complete_) refuse("it sent more than was asked for");
  switch (frame.type) {
    case FrameType::state_head:
      return begin(from_bytes<StateHead>(*frame.body));
    case FrameType::state_data:
      return add(*frame.body);
    case FrameType::state_done:
      return end(from_bytes<StateDone>(*frame.body));
    default:
      refuse("a frame that has no place in a state stream");
  }
}

void StateReceiver::begin(const StateHead& head) {
  if (begun_) refuse("a second head");
  if (head.fragment != request_.fragment || head.parts != request_.parts) {
    refuse("it sent parts " + std::to_string(head.parts) + " of fragment " + std::to_string(head.fragment) +
           "; asked for were parts " + std::to_string(request_.parts) + " of fragment " +
           std::to_string(request_.fragment));
  }
  if (head.elements != elements_) {
    refuse("fragment " + std::to_string(head.fragment) + " has " + std::to_string(elements_) +
           " elements here and " + std::to_string(head.elements) + " there");
  }
  at_ = head.at;
  begun_ = true;
  for (std::size_t part = 0; part < state_parts; ++part) {
    if (contains(request_.parts, part)) values_[part] = std::make_shared<AlignedVector<float>>(elements_);
  }
  skip_absent_parts();
}

void StateReceiver::skip_absent_parts() {
  while (part_ < state_parts && !values_[part_]) ++part_;
}

void StateReceiver::add(std::span<const std::byte> piece) {
  if (!begun_) refuse("values without a head");
  StateDataHeader header;
  if (piece.size() < sizeof header) refuse("a piece without its header");
  std::memcpy(&header, piece.data(), sizeof header);
  const auto bytes = piece.subspan(sizeof header);
  const auto place = [&header] {
    return "part " + std::to_string(static_cast<unsigned>(header.part)) + ", element " +
           std::to_string(header.offset);
  };
  if (header.fragment != request_.fragment || static_cast<std::size_t>(header.part) != part_ ||
      header.offset != offset_ || part_ >= state_parts) {
    refuse("a piece of fragment " + std::to_string(header.fragment) + ", " + place() +
           "; expected fragment " + std::to_string(request_.fragment) + ", part " + std::to_string(part_) +
           ", element " + std::to_string(offset_));
  }
  const auto count = bytes.size() / sizeof(float);
  if (header.zero != decltype(header.zero){} || count == 0 || bytes.size() % sizeof(float) != 0 ||
      bytes.size() > largest_piece || count > elements_ - offset_) {
    refuse("a piece of " + std::to_string(bytes.size()) + " bytes at " + place() + " of " +
           std::to_string(elements_));
  }
  std::memcpy(values_[part_]->data() + offset_, bytes.data(), bytes.size());
  offset_ += count;
  if (offset_ < elements_) return;
  offset_ = 0;
  ++part_;
  skip_absent_parts();
}

void StateReceiver::end(const StateDone& done) {
  if (!begun_ || part_ < state_parts || done.fragment != request_.fragment)
    refuse("it ended fragment " + std::to_string(done.fragment) + " before all was there");
  complete_ = true;
}

FragmentSnapshot StateReceiver::result() {
  assert(complete_);
  FragmentSnapshot snapshot{.fragment = request_.fragment, .at = at_, .values = {}};
  std::move(values_.begin(), values_.end(), snapshot.values.begin());
  return snapshot;
}

asio::awaitable<ConnectionPtr> dial_donor(asio::io_context& io, PeerInfo donor, protocol::ReplicaId self,
                                          Digest token, LinkOptions link, WireCounters& counters,
                                          Trace& trace) {
  const auto who = "no state from " + donor.name + " at " + donor.address + ": ";
  const auto address = parse_address(donor.address, "the address of " + donor.name);
  asio::ip::tcp::socket socket(io);
  const auto error = co_await dial(socket, address, dial_time_limit);
  if (error) refuse(who + error.message());
  auto connection = start_connection(std::move(socket), counters, link, trace);
  const PeerHello hello{.token = token, .from = self, .to = donor.id, .lane = 0, .role = PeerRole::learner};
  std::string problem;
  try {
    const Watchdog watchdog(connection, link.hello_limit + 2 * link.hold);
    connection->send(archived(FrameType::peer_hello, hello));
    const auto frame = co_await connection->receive(unauthenticated_limit);
    if (frame.type != FrameType::peer_hello) refuse("its first frame is no hello");
    const auto answer = from_bytes<PeerHello>(*frame.body);
    if (answer.token != token || answer.from != donor.id || answer.to != self)
      refuse("it is another replica");
    co_return connection;
  } catch (const Error& broken) {
    problem = broken.what();
  } catch (const asio::system_error& ended) {
    problem = ended.code().message();
  }
  connection->close();
  refuse(who + problem);
}

asio::awaitable<FragmentSnapshot> fetch_fragment(ConnectionPtr donor, const FragmentLayout& layout,
                                                 StateRequest request, StatePatience patience) {
  std::string problem;
  try {
    StateReceiver receiver(layout, request);
    donor->send(archived(FrameType::state_request, request));
    auto limit = patience.head;
    while (!receiver.complete()) {
      const Watchdog watchdog(donor, limit);
      receiver.take(co_await donor->receive(state_frame_limit));
      limit = patience.frame;
    }
    co_return receiver.result();
  } catch (const Error& broken) {
    problem = broken.what();
  } catch (const asio::system_error& ended) {
    problem = "it is lost: " + ended.code().message();
  }
  donor->close();
  refuse("no fragment " + std::to_string(request.fragment) + " from the donor at " + donor->remote() + ": " +
         problem);
}

}  // namespace isthmus::outer_sync::transport
