// Reassembly of state streams without a network: fragments and rounds, and frames that are not the next.

#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/link/connection.h"
#include "net/state_transfer/state_stream.h"
#include "state_support.h"

namespace isthmus::outer_sync::transport {
namespace {

using testing::HasSubstr;

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
  std::string refusal(const std::vector<Connection::Received>& frames) {
    return refusal({0, theta_only}, frames);
  }

  FragmentLayout layout = state_layout();  ///< fragment 0 has 1,000 elements
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
  EXPECT_THAT(refusal({1, theta_only}, {head(1, 200'003, 1), data(1, 0, 0, largest_piece + 4)}),
              HasSubstr("262148 bytes"));
}

TEST_F(Receiver, TakesThatTheDonorHasNoneAndNothingOlderThanWasAskedFor) {
  const auto gone = [](FragmentId fragment) {
    return frame(FrameType::state_gone, to_bytes(StateGone{fragment}));
  };
  EXPECT_EQ(refusal({0, theta_only, 6}, {gone(0)}), "complete");
  EXPECT_EQ(refusal({0, theta_only, 5}, {head(0, 1000, 1), data(0, 0, 0, 4000), done(0)}), "complete");
  EXPECT_THAT(refusal({0, theta_only, 6}, {head(0, 1000, 1)}), HasSubstr("it sent round 5"));
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
  std::size_t size(ChunkId k) { return quant::encoded_size(state_codecs().of(3), layout.chunk(k).size); }
  /// The error for the last of these frames, or how far the receiver is; all earlier frames must be accepted.
  std::string refusal(FragmentId fragment, const std::vector<Connection::Received>& frames) {
    RoundReceiver receiver(layout, state_codecs(), {fragment, 3});
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
  FragmentLayout layout = state_layout();
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

}  // namespace
}  // namespace isthmus::outer_sync::transport
