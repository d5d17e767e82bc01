#include "net/state_transfer/state_frames.h"

#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync::transport {

namespace {

constexpr StateParts all_parts = (1U << state_parts) - 1;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::network, what); }

bool contains(StateParts parts, std::size_t part) { return (parts >> part & 1U) != 0; }

void check_fragment(FragmentId fragment, const FragmentLayout& layout) {
  if (fragment >= layout.fragment_count()) {
    refuse("it asked for fragment " + std::to_string(fragment) + " of " +
           std::to_string(layout.fragment_count()));
  }
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

StateRequest state_request_of(const ReceivedFrame& frame, const FragmentLayout& layout) {
  const auto request = from_bytes<StateRequest>(*frame.body);
  check_fragment(request.fragment, layout);
  if (request.parts == 0 || (request.parts & ~all_parts) != 0)
    refuse("it asked for parts " + std::to_string(request.parts) + ", which is not a valid set");
  return request;
}

RoundRequest round_request_of(const ReceivedFrame& frame, const FragmentLayout& layout) {
  const auto request = from_bytes<RoundRequest>(*frame.body);
  check_fragment(request.fragment, layout);
  if (request.round == 0) refuse("it asked for round 0, which has no results");
  return request;
}

// ---- fetcher ----

StateReceiver::StateReceiver(const FragmentLayout& layout, StateRequest request)
    : request_(request), elements_(layout.fragment(request.fragment).size) {}

void StateReceiver::take(const ReceivedFrame& frame) {
  if (complete_) refuse("it sent more than was asked for");
  switch (frame.type) {
    case FrameType::state_head:
      return begin(from_bytes<StateHead>(*frame.body));
    case FrameType::state_data:
      return add(*frame.body);
    case FrameType::state_done:
      return end(from_bytes<StateDone>(*frame.body));
    case FrameType::state_gone:
      return end(from_bytes<StateGone>(*frame.body));
    default:
      refuse("a frame that has no place in a state stream");
  }
}

void StateReceiver::begin(const StateHead& head) {
  if (begun_) refuse("a second head");
  if (head.fragment != request_.fragment || head.parts != request_.parts) {
    refuse("it sent parts " + std::to_string(head.parts) + " of fragment " + std::to_string(head.fragment) +
           "; expected parts " + std::to_string(request_.parts) + " of fragment " +
           std::to_string(request_.fragment));
  }
  if (head.elements != elements_) {
    refuse("fragment " + std::to_string(head.fragment) + " has " + std::to_string(elements_) +
           " elements here and " + std::to_string(head.elements) + " there");
  }
  if (head.at.round < request_.from) {
    refuse("it sent round " + std::to_string(head.at.round) + " of fragment " +
           std::to_string(head.fragment) + "; expected round " + std::to_string(request_.from) + " or later");
  }
  if (!head.ledger.sound() || head.ledger.round() != head.at.round)
    refuse("it sent an invalid ledger of fragment " + std::to_string(head.fragment));
  at_ = head.at;
  ledger_ = head.ledger;
  inner_steps_ = head.inner_steps;
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
    refuse("it ended fragment " + std::to_string(done.fragment) + " before it was complete");
  complete_ = true;
}

void StateReceiver::end(const StateGone& gone) {
  if (begun_ || gone.fragment != request_.fragment)
    refuse("it reported that it lacks fragment " + std::to_string(gone.fragment) +
           ", which was not requested or has already begun");
  complete_ = gone_ = true;
}

std::optional<FragmentSnapshot> StateReceiver::result() {
  assert(complete_);
  if (gone_) return std::nullopt;
  FragmentSnapshot snapshot{.fragment = request_.fragment,
                            .at = at_,
                            .values = {},
                            .inner_steps = inner_steps_,
                            .ledger = std::move(ledger_)};
  std::move(values_.begin(), values_.end(), snapshot.values.begin());
  return snapshot;
}

RoundReceiver::RoundReceiver(const FragmentLayout& layout, const protocol::CodecPlan& codecs,
                             RoundRequest request)
    : layout_(layout),
      codec_(codecs.of(request.round)),
      request_(request),
      chunks_(layout.chunks_of(request.fragment)) {}

void RoundReceiver::take(ReceivedFrame frame) {
  if (complete_) refuse("it sent more than was asked for");
  switch (frame.type) {
    case FrameType::chunk:
      if (!frame.contributors.empty()) refuse("a chunk of a state stream with contributors");
      return add(frame.head, std::move(frame.body));
    case FrameType::state_done:
      return end(from_bytes<StateDone>(*frame.body).fragment, false);
    case FrameType::state_gone:
      return end(from_bytes<StateGone>(*frame.body).fragment, true);
    default:
      refuse("a frame that has no place among a round's results");
  }
}

void RoundReceiver::add(const ChunkHeader& header, protocol::SharedBytes bytes) {
  if (results_.size() == chunks_.size()) refuse("a chunk after the last one of the fragment");
  const auto chunk = chunks_.first + static_cast<ChunkId>(results_.size());
  const auto expected =
      header_of(0, {.round = request_.round, .chunk = chunk, .kind = protocol::ChunkKind::result});
  if (bytes_of(header) != bytes_of(expected)) {
    refuse("chunk " + std::to_string(header.chunk) + " of round " + std::to_string(header.round) +
           "; expected the result of chunk " + std::to_string(chunk) + ", round " +
           std::to_string(request_.round) + ", unpacked and without a view");
  }
  if (const auto size = quant::encoded_size(codec_, layout_.chunk(chunk).size); bytes->size() != size) {
    refuse("chunk " + std::to_string(chunk) + " with " + std::to_string(bytes->size()) + " bytes; expected " +
           std::to_string(size));
  }
  results_.push_back(std::move(bytes));
}

void RoundReceiver::end(FragmentId fragment, bool gone) {
  const std::size_t expected = gone ? 0 : chunks_.size();
  if (fragment != request_.fragment || results_.size() != expected) {
    refuse("it ended fragment " + std::to_string(fragment) + " after " + std::to_string(results_.size()) +
           " chunks of fragment " + std::to_string(request_.fragment) + "; expected " +
           std::to_string(expected));
  }
  complete_ = true;
  gone_ = gone;
}

std::optional<std::vector<protocol::SharedBytes>> RoundReceiver::result() {
  assert(complete_);
  if (gone_) return std::nullopt;
  return std::move(results_);
}

}  // namespace isthmus::outer_sync::transport
