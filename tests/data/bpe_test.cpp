#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <thread>

#include "bpe_support.h"
#include "tokenizer/bpe_spec.h"
#include "unicode/normal_form.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string everything() {
  std::string text = "the the aaaa aaaaa caf\xC3\xA9 <|endoftext|> \xF0\x9F\x98\x80\r\n\n  x";
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  return text;
}

TEST(BpeTokenizer, MergesInOrderInsideOfWords) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer->vocab_size(), 263U);
  EXPECT_EQ(tokenizer->separator(), 262U);
  EXPECT_EQ(encoded(*tokenizer, "the the"), (Ids{257, 258}));
  EXPECT_EQ(encoded(*tokenizer, "aaaaa th"), (Ids{260, 'a', ' ', 256}));
  EXPECT_EQ(encoded(*tokenizer, "\xC3\xA9"), (Ids{261}));
  EXPECT_EQ(encoded(*tokenizer, ""), Ids{});
}

TEST(BpeTokenizer, EncodingAppends) {
  Ids ids = {7};
  make(small_tokenizer())->encode("the", ids);
  EXPECT_EQ(ids, (Ids{7, 257}));
}

TEST(BpeTokenizer, SpecialTokensAreFoundInText) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(encoded(*tokenizer, "the<|endoftext|>the<|endoftext|"),
            (Ids{257, 262, 257, '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|'}));
}

TEST(BpeTokenizer, OfTokensAtOnePlaceTheLongestIsTaken) {
  auto document = small_tokenizer();
  document["added_tokens"].push_back(added(263, "ab"));
  document["added_tokens"].push_back(added(264, "abcd"));
  document["added_tokens"].push_back(added(265, "bc"));
  EXPECT_EQ(encoded(*make(document), "abcabcdbc"), (Ids{263, 'c', 264, 265}));
}

TEST(BpeTokenizer, TokensMayTakeWhitespaceAlong) {
  auto document = small_tokenizer();
  document["added_tokens"].push_back(added(263, "<m>"));
  document["added_tokens"][1]["lstrip"] = true;
  document["added_tokens"].push_back(added(264, "<n>"));
  document["added_tokens"][2]["rstrip"] = true;
  EXPECT_EQ(encoded(*make(document), "a \xE2\x80\xA8\n<m> <m>b<n> \xC2\xA0<m>"),
            (Ids{'a', 263, 263, 'b', 264, 263}));
}

TEST(BpeTokenizer, BytesThatAreNoTextAreThemselves) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(encoded(*tokenizer, "the\xFFthe\xC3"), (Ids{257, 255, 257, 195}));
  EXPECT_EQ(encoded(*tokenizer, "\xED\xA0\x80\xC0\x80\xF5"), (Ids{0xED, 0xA0, 0x80, 0xC0, 0x80, 0xF5}));
}

TEST(BpeTokenizer, DecodingGivesTheBytesBack) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, everything())), everything());
}

RC_GTEST_PROP(BpeTokenizer, AnyBytesComeBack, (const std::vector<char>& bytes)) {
  const auto tokenizer = make(small_tokenizer());
  const std::string text(bytes.begin(), bytes.end());
  RC_ASSERT(tokenizer->decode(encoded(*tokenizer, text)) == text);
}

TEST(BpeTokenizer, IdsOutsideTheVocabularyAreNamed) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_THAT(error_of(ErrorKind::data,
                       [&] {
                         static_cast<void>(tokenizer->decode(Ids{1, 263}));
                       }),
              AllOf(HasSubstr("263"), HasSubstr("position 1")));
}

TEST(BpeTokenizer, IdsThatNobodyHasAreNoText) {
  auto document = small_tokenizer();
  document["model"]["vocab"]["zz"] = 300;
  document["added_tokens"][0]["id"] = 263;
  const auto tokenizer = make(document);
  EXPECT_EQ(tokenizer->vocab_size(), 301U);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 299, 300}), "azz");
}

TEST(BpeTokenizer, MergesMayBeIgnoredForWholeWords) {
  auto document = small_tokenizer();
  document["model"]["vocab"][spelled(" dog")] = 262;
  document["added_tokens"][0]["id"] = 263;
  EXPECT_EQ(encoded(*make(document), "a dog"), (Ids{'a', ' ', 'd', 'o', 'g'}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(encoded(*make(document), "a dog"), (Ids{'a', 262}));
  EXPECT_EQ(encoded(*make(document), "a dogs"), (Ids{'a', ' ', 'd', 'o', 'g', 's'}));
}

TEST(BpeTokenizer, PrefixSpace) {
  auto document = small_tokenizer();
  document["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(encoded(*make(document), "the the<|endoftext|>the<|endoftext|> the"),
            (Ids{258, 258, 262, 258, 262, 258}));
}

TEST(BpeTokenizer, NormalizationFormC) {
  auto document = small_tokenizer();
  EXPECT_EQ(encoded(*make(document), "e\xCC\x81"), (Ids{'e', 0xCC, 0x81}));
  document["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(encoded(*make(document), "e\xCC\x81"), (Ids{261}));
  EXPECT_EQ(to_nfc("ae\xCC\x81 \xE2\x84\xAB."), "a\xC3\xA9 \xC3\x85.");
}

TEST(BpeTokenizer, MergesAsStringsAreTheSame) {
  auto document = small_tokenizer();
  auto lines = Json::array({"#version: 0.2"});
  for (const auto& pair : document["model"]["merges"])
    lines.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  auto other = document;
  other["model"]["merges"] = lines;
  EXPECT_EQ(make(document)->fingerprint(), make(other)->fingerprint());
  EXPECT_EQ(encoded(*make(other), everything()), encoded(*make(document), everything()));
}

/// The same merges straight from the definition: applies the first applicable rule at its first position.
Ids merged_plainly(std::string_view word, const std::vector<MergeRule>& rules) {
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    bool found = false;
    for (const auto& rule : rules) {
      for (std::size_t i = 0; i + 1 < ids.size() && !found; ++i) {
        if (ids[i] != rule.left || ids[i + 1] != rule.right) continue;
        ids[i] = rule.result;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        found = true;
      }
      if (found) break;
    }
    if (!found) return ids;
  }
}

RC_GTEST_PROP(Merges, LongAndShortWordsAreMergedByTheDefinition, ()) {
  std::vector<std::string> tokens = {"a", "b"};
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = *rc::gen::inRange(1, 20); i > 0; --i) {
    const auto left = *rc::gen::elementOf(tokens), right = *rc::gen::elementOf(tokens);
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
    tokens.push_back(left + right);
    pairs.emplace_back(left, right);
  }
  auto document = small_tokenizer(pairs);
  document["pre_tokenizer"]["use_regex"] = false;
  const auto spec = read_bpe_spec(document.dump(), "t.json");
  const auto size = static_cast<std::size_t>(*rc::gen::inRange(1, 120));
  const auto word = *rc::gen::container<std::string>(size, rc::gen::elementOf(std::string("ab")));
  RC_ASSERT(encoded(*make(document), word) == merged_plainly(word, spec.merges));
}

TEST(BpeTokenizer, LongWordsTakeNoQuadraticTime) {
  auto document = small_tokenizer({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  document["pre_tokenizer"]["use_regex"] = false;
  const auto tokenizer = make(document);
  const std::string text(3'000'000, 'a');  // would take an hour in quadratic time
  EXPECT_EQ(encoded(*tokenizer, text).size(), text.size() / 8);
}

TEST(BpeTokenizer, ManyThreadsMayEncode) {
  const auto tokenizer = make(small_tokenizer());
  const auto expected = encoded(*tokenizer, everything());
  std::vector<std::thread> threads;
  std::atomic<int> same = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) same += encoded(*tokenizer, everything()) == expected ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, 200);
}

TEST(BpeTokenizer, SeparatorIsTheFirstOfTheUsualNames) {
  auto document = small_tokenizer();
  document["added_tokens"].push_back(added(263, "</s>"));
  document["added_tokens"].push_back(added(264, "<|end_of_text|>"));
  EXPECT_EQ(make(document)->separator(), 262U);
  document["added_tokens"][0]["content"] = "<|start|>";
  EXPECT_EQ(make(document)->separator(), 264U);
  EXPECT_THAT(refusal_after([](Json& d) { d["added_tokens"][0]["content"] = "<|start|>"; }),
              AllOf(HasSubstr("t.json: added_tokens"), HasSubstr("<|endoftext|>, <|end_of_text|>")));
}

TEST(BpeTokenizer, FingerprintIsOfWhatDecidesIds) {
  const auto same = make(small_tokenizer())->fingerprint();
  const auto changed = [&](auto change) {
    auto document = small_tokenizer();
    change(document);
    return make(document)->fingerprint() != same;
  };
  EXPECT_FALSE(changed([](Json& d) { d["decoder"] = nullptr; }));
  EXPECT_FALSE(changed([](Json& d) { d["pre_tokenizer"]["trim_offsets"] = false; }));
  EXPECT_FALSE(changed([](Json& d) { d["post_processor"] = {{"type", "ByteLevel"}}; }));
  EXPECT_TRUE(changed([](Json& d) { std::swap(d["model"]["merges"][0], d["model"]["merges"][1]); }));
  EXPECT_TRUE(changed([](Json& d) { d["model"]["ignore_merges"] = true; }));
  EXPECT_TRUE(changed([](Json& d) { d["normalizer"] = {{"type", "NFC"}}; }));
  EXPECT_TRUE(changed([](Json& d) { d["pre_tokenizer"]["use_regex"] = false; }));
  EXPECT_TRUE(changed([](Json& d) { d["pre_tokenizer"]["add_prefix_space"] = true; }));
  EXPECT_TRUE(changed([](Json& d) { d["added_tokens"][0]["lstrip"] = true; }));
  EXPECT_TRUE(changed([](Json& d) { d["added_tokens"].push_back(added(263, "xyz")); }));
}

TEST(MakeTokenizer, TakesFilesThatEndInJson) {
  const TemporaryFolder folder;
  const auto file = folder.write("tokenizer.json", small_tokenizer().dump()).string();
  EXPECT_EQ(make_tokenizer(file)->vocab_size(), 263U);
  const auto broken = folder.write("broken.json", "{}").string();
  EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(make_tokenizer(broken)); }),
              HasSubstr(broken));
}

TEST(Corpus, TheLimitDividesNoCharacterThatATokenizerReads) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("a.txt",
                                       "x\xC3\xA9y\xE2\x82\xACz\xF0\x9F\x98\x80"
                                       "end"),
                          1, 0);
  config.tokenizer = folder.write("tokenizer.json", small_tokenizer().dump()).string();
  const std::vector<std::size_t> whole = {0, 1, 1, 3, 4, 4, 4, 7, 8, 8, 8, 8, 12, 13, 14};
  for (std::int64_t limit = 1; limit <= 14; ++limit) {
    config.max_bytes = limit;
    const Corpus corpus(config);
    std::string text;
    for (const auto id : tokens_of(corpus, Split::train)) {
      if (id == 262) continue;  // the separator
      text += id == 261 ? "\xC3\xA9" : std::string(1, static_cast<char>(id));
    }
    EXPECT_EQ(text.size(), whole[static_cast<std::size_t>(limit)]) << "max_bytes " << limit;
    EXPECT_THAT(corpus.notes().at(0), HasSubstr("first " + std::to_string(text.size()) + " bytes"));
  }
}

}  // namespace
}  // namespace isthmus::data
