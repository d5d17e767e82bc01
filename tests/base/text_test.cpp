#include "isthmus/base/text.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(Text, NothingInItIsAnOrderToATerminal) {
  EXPECT_EQ(printable("eu\x1b[2J\r\n\x7fus\tok"), "eu?[2J???us\tok");
  EXPECT_EQ(printable("\xc3\xa9t\xc3\xa9"), "\xc3\xa9t\xc3\xa9");
  EXPECT_EQ(printable("\xc2\x9b[2J\xc2\xa0\xc2\x85"), "?[2J\xc2\xa0?") << "U+009B is a control sequence too";
  EXPECT_EQ(printable_lines("a\x1b[2J\nb\r\n"), "a?[2J\nb?\n");
  EXPECT_EQ(printable_ascii("\xc3\xa9t\xc3\xa9\t."), "??t???.");
}

TEST(Text, WhatIsTooLongIsCutBetweenCharacters) {
  EXPECT_EQ(printable("12345", 5), "12345");
  EXPECT_EQ(printable("123456", 5), "1234~");
  EXPECT_EQ(printable("12\xe2\x82\xac"
                      "56",
                      5),
            "12~")
      << "the euro sign has three bytes";
  EXPECT_EQ(printable("\xe2\x82\xac\xe2\x82\xac", 2), "~");
  EXPECT_EQ(printable("12", 0), "");
  EXPECT_EQ(printable_ascii("123456", 5), "1234~");
}

}  // namespace
}  // namespace isthmus
