// The patterns that cut text into words, and the characters in it.

#include <gtest/gtest.h>

#include "data_support.h"
#include "tokenizer/bpe_pattern.h"
#include "unicode/newer_characters.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> pieces_of(const CutPattern& pattern, std::string_view text) {
  std::vector<std::string> out;
  CutPattern::Scratch scratch(text.size());
  CutPattern::Match match;
  for (std::size_t at = 0; pattern.find(text, at, scratch, match); at = match.end)
    out.emplace_back(text.substr(match.begin, match.end - match.begin));
  return out;
}

TEST(CutPattern, WhatTheEnginesDisagreeOnIsRefused) {
  for (const auto* pattern :
       {"^a",      "a$",    ".",      "\\w+",         "\\b",        "\\h",     "\\A",      "[[:alpha:]]",
        "[a&&b]",  "[\\S]", "(?i)a",  "(?i:\\p{Lu})", "(?i:ss)",    "(?i:é)",  "a{,3}",    "a{2}+",
        "a{2}?",   "a**",   "(?=a)*", "(?<=a)b",      "(?<name>a)", "\\1",     "\\p{Foo}", "[]",
        "[b-a]",   "a]",    "a}",     "a)",           "(",          "[a",      "a{2",      "a{3,2}",
        "a{1001}", "\\",    "\\x41",  "\\u0041",      "[a-\\s]",    "[\\s-a]", "[a-c-e]",  "a\xFF"}) {
    EXPECT_THAT(error_of(ErrorKind::config, [&] { const CutPattern made("place", pattern); }),
                HasSubstr("place"))
        << pattern;
  }
  const auto deep = std::string(10000, '(');
  EXPECT_THAT(error_of(ErrorKind::config, [&] { const CutPattern made("place", deep); }),
              HasSubstr("groups"));
}

TEST(CutPattern, WhitespaceIsUnicodes) {
  const CutPattern pattern("place", "\\s+");
  EXPECT_EQ(pieces_of(pattern,
                      "a\xC2\x85\xC2\xA0\xE3\x80\x80"
                      "b\xE1\xA0\x8E"
                      "c \t\n"),
            (std::vector<std::string>{"\xC2\x85\xC2\xA0\xE3\x80\x80", " \t\n"}));
}

TEST(CutPattern, CatastrophesEnd) {
  const auto refused = [](const char* pattern, const std::string& text) {
    const CutPattern made("place", pattern);
    EXPECT_THAT(error_of(ErrorKind::data, [&] { pieces_of(made, text); }),
                AllOf(HasSubstr("place"), HasSubstr("limit")))
        << pattern;
  };
  refused("(?:a+)+b", std::string(60, 'a') + "c b");  // exponential backtracking
  refused("(?:[ab]|ab)+[0-9]",
          std::string(300'000, 'a') + "c 5");  // quadratic: each position searches to the end
  refused("(?:[ab]|ab)+d", std::string(3'000'000, 'a') + " d");  // deep recursion
}

TEST(CutPattern, LongRunsAreNone) {
  const CutPattern pattern("place", R"(\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+)");
  const std::string spaces(1'000'000, ' ');
  EXPECT_EQ(pieces_of(pattern, spaces + "a"), (std::vector<std::string>{spaces.substr(1), " ", "a"}));
  std::string many;
  for (int i = 0; i < 500; ++i) many += spaces.substr(0, 2000) + "a";
  EXPECT_EQ(pieces_of(pattern, many).size(), 1500U);
}

TEST(NewerCharacters, AreSeenAsOlderOnesOfTheirKind) {
  EXPECT_EQ(with_older_characters("plain, \xC3\xA9, \xE8\xAA\x9E"), "");
  EXPECT_EQ(with_older_characters("a\xF0\xB1\x8D\x90z"), "a\xF0\xB1\x8D\x8Az") << "U+31350, U+3134A";
  EXPECT_EQ(with_older_characters("\xE1\xB2\x89\xE1\xB2\x8A").size(), 6U) << "U+1C89, U+1C8A";
}

TEST(Utf8, IsWhatTheStandardSays) {
  const auto is_valid = [](std::string_view text) { return utf8_prefix(text) == text.size(); };
  for (const auto* text : {"", "a", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "long enough for eight \xC3\xA9 and more"})
    EXPECT_TRUE(is_valid(text)) << text;
  for (const auto* text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xE1\x80", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xF1\x80\x80"})
    EXPECT_FALSE(is_valid(text)) << text;
}

}  // namespace
}  // namespace isthmus::data
