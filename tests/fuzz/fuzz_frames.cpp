// Arbitrary bytes on a connection: the frame reader returns exactly the received bytes within its limits, and
// the receiver of the frames throws Error(network) or gets the data that it requested.
//
// Input: a byte (lowest two bits: the receiver, which is a peer, a donor, a fetcher of a fragment, or a
// fetcher of a round; bit 7: checksums are repaired), then the received bytes.

#include "isthmus/outer_sync/protocol/exchanges.h"
#include "net/rate/arrivals.h"
#include "network_support.h"

using namespace isthmus;
using namespace isthmus::outer_sync;
using namespace isthmus::outer_sync::transport;

namespace {

std::size_t longest_chunk() { return quant::encoded_size(fuzz_codecs().of(1), fuzz_layout().chunk(0).size); }

/// Passes frames to `listen` until it returns false or an error ends the connection.
template <class Listen>
void handle(std::span<const std::byte> bytes, std::size_t limit, Listen listen) {
  bool checked = false;
  (void)unless_refused([&] {
    for (auto frame = next_frame(bytes, limit, checked); frame; frame = next_frame(bytes, limit, checked)) {
      if (!listen(std::move(*frame))) break;
    }
    return true;
  });
}

template <class Message>
void check_form(const Message& message, const ReceivedFrame& frame) {
  require(to_bytes(message) == *frame.body, "a message with two encodings");
}

/// For any message: no more bytes can arrive than were sent, and no queue is longer than the round trips
/// allow.
void handle_arrived(const Arrived& said) {
  using namespace std::chrono_literals;
  Arrivals arrivals(2);
  for (const std::size_t lane : {0, 1}) {
    arrivals.begun(lane, lane + 1);
    arrivals.left(lane, 0, true, 1s);
    arrivals.left(lane, 1000, false, 2s);
  }
  arrivals.heard(said, 10ms, 3s);
  require(arrivals.bytes() <= 2000, "more has arrived than was sent");
  require(arrivals.queue().value_or(0s) >= 0s && arrivals.queue().value_or(0s) <= 10ms,
          "impossible queue time");
}

/// Member 0 of two, which is in the middle of an exchange.
protocol::Exchanges exchanges_with_a_peer() {
  auto codecs = fuzz_codecs();
  codecs.exchanges = true;
  protocol::Exchanges exchanges(fuzz_layout(), codecs);
  exchanges.begin_view({.number = 1, .members = {{"a", 1, "", 0}, {"b", 1, "", 1}}, .owners = {}}, 0);
  const auto size = quant::encoded_size(codecs.codec, fuzz_layout().chunk(0).size);
  exchanges.send(0, 5, std::make_shared<const Bytes>(size), 1);
  static_cast<void>(exchanges.take_actions());
  return exchanges;
}

void exchange(protocol::Exchanges& exchanges, const protocol::ChunkMessage& message) {
  const auto refused = exchanges.receive(1, message);
  const auto actions = exchanges.take_actions();
  require(!refused || actions.empty(), "an answer to a chunk that was refused");
  require(exchanges.chunks_held() <= (2 + protocol::Exchanges::max_kept) * fuzz_layout().chunk_count(),
          "too many exchanged chunks are kept");
}

void peer(std::span<const std::byte> bytes) {
  bool known = false;
  auto exchanges = exchanges_with_a_peer();
  const auto limit = largest_chunk_frame(longest_chunk());
  handle(bytes, limit, [&](ReceivedFrame frame) {
    if (!std::exchange(known, true)) {
      check_form(hello_of(frame), frame);
      require(!frame.relay, "a relayed hello");
    } else if (frame.relay && frame.type == FrameType::hail) {
      check_form(from_bytes<Hail>(*frame.body), frame);
    } else if (frame.type == FrameType::begun || frame.type == FrameType::begun_heard) {
      check_form(from_bytes<protocol::ViewNumber>(*frame.body), frame);
    } else if (frame.type == FrameType::arrived) {
      const auto said = from_bytes<Arrived>(*frame.body);
      check_form(said, frame);
      handle_arrived(said);
    } else if (frame.type == FrameType::chunk) {
      const auto head = frame.head;
      require(!frame.relay || size_of(frame_of(frame)) <= limit + sizeof(FrameFront),
              "too long to be relayed");
      const auto message = message_of(std::move(frame));
      require(message.contributors.size() <= protocol::max_members &&
                  message.norms.size() <= protocol::max_members &&
                  message.trained_on.size() <= protocol::max_members * protocol::max_trained_on,
              "too many replicas");
      require(bytes_of(header_of(message, static_cast<quant::Lossless>(head.packing))) == bytes_of(head),
              "a chunk header with two encodings");
      exchange(exchanges, message);
    }
    return true;
  });
}

void donor(std::span<const std::byte> bytes) {
  handle(bytes, unauthenticated_limit, [&](const ReceivedFrame& frame) {
    if (frame.type == FrameType::state_request) {
      const auto request = state_request_of(frame, fuzz_layout());
      require(request.fragment < fuzz_layout().fragment_count() && request.parts != 0,
              "a request for nothing");
      check_form(request, frame);
    } else if (frame.type == FrameType::round_request) {
      const auto request = round_request_of(frame, fuzz_layout());
      require(request.fragment < fuzz_layout().fragment_count() && request.round != 0,
              "a request for nothing");
      check_form(request, frame);
    }
    return true;
  });
}

void fetcher_of_state(std::span<const std::byte> bytes) {
  StateReceiver receiver(fuzz_layout(), {0, agreed_parts, 1});
  handle(bytes, state_frame_limit, [&](const ReceivedFrame& frame) {
    receiver.take(frame);
    if (!receiver.complete()) return true;
    const auto snapshot = receiver.result();
    if (!snapshot) return false;
    require(snapshot->parts() == agreed_parts && snapshot->fragment == 0 && snapshot->at.round >= 1,
            "a state that was not requested");
    for (const auto& values : snapshot->values)
      require(!values || values->size() == fuzz_layout().fragment(0).size, "a state of another size");
    return false;
  });
}

void fetcher_of_round(std::span<const std::byte> bytes) {
  const auto codecs = fuzz_codecs();
  RoundReceiver receiver(fuzz_layout(), codecs, {0, 1});
  handle(bytes, sizeof(ChunkHeader) + longest_chunk(), [&](ReceivedFrame frame) {
    receiver.take(std::move(frame));
    if (!receiver.complete()) return true;
    const auto results = receiver.result();
    if (!results) return false;
    const auto chunks = fuzz_layout().chunks_of(0);
    require(results->size() == chunks.size(), "a round with other chunks");
    for (auto k = chunks.first; k < chunks.last; ++k) {
      require((*results)[k - chunks.first]->size() ==
                  quant::encoded_size(codecs.of(1), fuzz_layout().chunk(k).size),
              "a result of another size");
    }
    return false;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  Bytes bytes(input.begin() + 1, input.end());
  if ((data[0] & 128) != 0) make_good(bytes);
  switch (data[0] & 3) {
    case 0:
      peer(bytes);
      break;
    case 1:
      donor(bytes);
      break;
    case 2:
      fetcher_of_state(bytes);
      break;
    default:
      fetcher_of_round(bytes);
  }
  return 0;
}
