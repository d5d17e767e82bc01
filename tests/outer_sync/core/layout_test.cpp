// Fragments and chunks.

#include "isthmus/outer_sync/core/layout.h"

#include <gmock/gmock.h>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/log/fingerprint.h"

namespace isthmus::outer_sync {
namespace {

using testing::HasSubstr;

std::string layout_refusal(std::vector<Range> fragments, std::uint64_t chunk_elements) {
  try {
    const FragmentLayout layout(std::move(fragments), chunk_elements);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "accepted";
}

TEST(FragmentLayout, ChunksAreCutFromEachFragmentsBegin) {
  const FragmentLayout layout({{0, 10}, {16, 8}, {24, 3}}, 4);
  std::vector<Range> chunks;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) chunks.push_back(layout.chunk(k));
  EXPECT_THAT(chunks, testing::ElementsAre(Range{0, 4}, Range{4, 4}, Range{8, 2}, Range{16, 4}, Range{20, 4},
                                           Range{24, 3}));
  EXPECT_EQ(layout.chunks_of(1).first, 3U);
  EXPECT_EQ(layout.chunks_of(1).last, 5U);
  EXPECT_EQ(layout.fragment_of(2), 0U);
  EXPECT_EQ(layout.fragment_of(5), 2U);
  EXPECT_EQ(layout.buffer_size(), 27U) << "gaps between fragments belong to the buffer";
  EXPECT_EQ(layout.parameters(), 21U) << "gaps hold no parameters";
}

TEST(FragmentLayout, RefusesWhatIsNoLayout) {
  EXPECT_THAT(layout_refusal({}, 4), HasSubstr("at least one fragment"));
  EXPECT_THAT(layout_refusal({{0, 4}}, 0), HasSubstr("outer.chunk_elements is 0"));
  EXPECT_THAT(layout_refusal({{0, 4}, {4, 0}}, 4), HasSubstr("fragment 1 is empty"));
  EXPECT_THAT(layout_refusal({{0, 4}, {3, 4}}, 4), HasSubstr("fragment 1 is overlapping"));
  EXPECT_THAT(layout_refusal({{8, 4}, {0, 4}}, 4), HasSubstr("fragment 1 is overlapping"));
}

TEST(FragmentLayout, TheLastFragmentsMayOnlyBeAveraged) {
  const FragmentLayout layout({{0, 4}, {4, 4}, {8, 4}}, 4, 1);
  EXPECT_FALSE(layout.averages(0) || layout.averages(1));
  EXPECT_TRUE(layout.averages(2));
  EXPECT_FALSE(FragmentLayout({{0, 4}}, 4).averages(0));
  EXPECT_THROW(FragmentLayout({{0, 4}}, 4, 1), Error);
  const auto digest = [](FragmentId averaged) {
    return fingerprint_of({}, FragmentLayout({{0, 4}, {4, 4}}, 4, averaged));
  };
  EXPECT_NE(digest(0), digest(1)) << "replicas that disagree about it must not train together";
}

TEST(FragmentLayout, ChunksLargerThanAnyFragmentGiveOneEach) {
  const FragmentLayout layout({{5, 10}, {20, 1}}, UINT64_MAX);
  EXPECT_EQ(layout.chunk_count(), 2U);
  EXPECT_EQ(layout.chunk(0), (Range{5, 10}));
}

TEST(FragmentLayout, RefusesFragmentsThatEndBeyondAllNumbers) {
  EXPECT_THAT(layout_refusal({{UINT64_MAX - 4, 10}}, 4), HasSubstr("fragment 0"));
}

}  // namespace
}  // namespace isthmus::outer_sync
