// The token bucket of state streams, and the length of their pieces.

#include <gtest/gtest.h>

#include <chrono>

#include "net/rate/pacer.h"
#include "net/state_transfer/state_stream.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace isthmus::outer_sync::transport
