#include "isthmus/base/near_word.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isthmus {
namespace {

const std::vector<std::string> names = {"launch", "attach", "top", "ctl", "--device-memory"};

TEST(NearWord, IsTheNameThatWasProbablyMeant) {
  EXPECT_EQ(near_word("lanch", names), "launch");
  EXPECT_EQ(near_word("att", names), "attach") << "a beginning";
  EXPECT_EQ(near_word("--divice-memroy", names), "--device-memory");
}

TEST(NearWord, IsEmptyIfNoNameIsNear) {
  EXPECT_EQ(near_word("xylophone", names), "");
  EXPECT_EQ(near_word("launch", std::vector<std::string>()), "");
  EXPECT_EQ(near_word(std::string(100'000, 'a'), names), "");
}

TEST(NearWord, DistanceCountsInsertionsRemovalsAndReplacements) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

}  // namespace
}  // namespace isthmus
