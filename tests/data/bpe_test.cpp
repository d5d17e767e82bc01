#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "data_support.h"
#include "tokenizer/bpe_pattern.h"
#include "tokenizer/bpe_spec.h"
#include "tokenizer/bpe_tokenizer.h"
#include "unicode/newer_characters.h"
#include "unicode/normal_form.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

using Ids = std::vector<std::uint32_t>;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string utf8(unsigned character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 63))};
}

/// Bytes in the byte-level alphabet of a vocabulary.
std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto wanted = static_cast<unsigned char>(c);
    unsigned next = 256, character = 0;
    for (unsigned byte = 0; byte <= wanted; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      character = printable ? byte : next++;
    }
    out += utf8(character);
  }
  return out;
}

Json added(std::uint32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

/// A tokenizer like GPT-2's, in which a byte's id is the byte; ids from 256 on are the results of `merges`.
Json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {
                         {"t", "h"}, {"th", "e"}, {" ", "the"}, {"a", "a"}, {"aa", "aa"}, {"\xC3", "\xA9"}}) {
  Json vocab, list = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = byte;
  for (const auto& [left, right] : merges) {
    list.push_back({spelled(left), spelled(right)});
    const auto size = vocab.size();
    vocab.emplace(spelled(left + right), size);
  }
  const auto end = static_cast<std::uint32_t>(vocab.size());
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(end, "<|endoftext|>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

std::unique_ptr<const Tokenizer> make(const Json& document) {
  return parse_bpe_tokenizer(document.dump(), "t.json");
}

Ids encoded(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// The message with which the small tokenizer is refused after `change`.
template <class Change>
std::string refusal(Change change) {
  auto document = small_tokenizer();
  change(document);
  return error_of(ErrorKind::config, [&] { static_cast<void>(make(document)); });
}

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
  EXPECT_THAT(refusal([](Json& d) { d["added_tokens"][0]["content"] = "<|start|>"; }),
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

struct Bad {
  const char* what;
  void (*change)(Json&);
  std::vector<std::string> said;  ///< place, value and expected value
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.what; }

class BadFile : public testing::TestWithParam<Bad> {};

TEST_P(BadFile, IsRefusedByName) {
  const auto message = refusal(GetParam().change);
  EXPECT_THAT(message, testing::StartsWith("t.json: "));
  for (const auto& words : GetParam().said) EXPECT_THAT(message, HasSubstr(words));
}

Json& model(Json& d) { return d["model"]; }
Json& pre(Json& d) { return d["pre_tokenizer"]; }
void use_split(Json& d, const Json& pattern) {
  const Json split = {{"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}};
  auto bytes = pre(d);
  bytes["use_regex"] = false;
  pre(d) = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadFile,
    testing::Values(
        Bad{"version", [](Json& d) { d["version"] = "2.0"; }, {"version is \"2.0\"", "expected \"1.0\""}},
        Bad{"truncation",
            [](Json& d) {
              d["truncation"] = {{"max_length", 5}};
            },
            {"truncation is an object of 1"}},
        Bad{"padding", [](Json& d) { d["padding"] = Json::object(); }, {"padding", "null"}},
        Bad{"key", [](Json& d) { d["extra"] = 1; }, {"extra is 1", "no such key"}},
        Bad{"no model", [](Json& d) { d.erase("model"); }, {"model is null", "an object"}},
        Bad{"model", [](Json& d) { model(d)["type"] = "Unigram"; }, {"model.type is \"Unigram\"", "\"BPE\""}},
        Bad{"model key", [](Json& d) { model(d)["scores"] = 1; }, {"model.scores", "no such key"}},
        Bad{"dropout", [](Json& d) { model(d)["dropout"] = 0.1; }, {"model.dropout is 0.1"}},
        Bad{"prefix", [](Json& d) { model(d)["continuing_subword_prefix"] = "##"; }, {"prefix is \"##\""}},
        Bad{"suffix", [](Json& d) { model(d)["end_of_word_suffix"] = "</w>"; }, {"suffix is \"</w>\""}},
        Bad{"fallback", [](Json& d) { model(d)["byte_fallback"] = true; }, {"model.byte_fallback is true"}},
        Bad{"ignore_merges", [](Json& d) { model(d)["ignore_merges"] = 1; }, {"model.ignore_merges is 1"}},
        Bad{"vocab", [](Json& d) { model(d)["vocab"] = Json::array(); }, {"model.vocab is an array of 0"}},
        Bad{"no byte", [](Json& d) { model(d)["vocab"].erase("a"); }, {"model.vocab", "byte 97"}},
        Bad{"id", [](Json& d) { model(d)["vocab"]["the"] = -1; }, {"model.vocab.\"the\" is -1", "an id"}},
        Bad{"id of a float", [](Json& d) { model(d)["vocab"]["the"] = 1.5; }, {"\"the\" is 1.5"}},
        Bad{"id of a string", [](Json& d) { model(d)["vocab"]["the"] = "x"; }, {"\"the\" is \"x\""}},
        Bad{"twice", [](Json& d) { model(d)["vocab"]["the"] = 5; }, {"is 5", "no other token"}},
        Bad{"far", [](Json& d) { model(d)["vocab"]["the"] = 1 << 20; }, {"\"the\" is 1048576", "below 526"}},
        Bad{"huge", [](Json& d) { model(d)["vocab"]["the"] = 4294967294U; }, {"below 526"}},
        Bad{"larger", [](Json& d) { model(d)["vocab"]["the"] = 1ULL << 40; }, {"4294967294"}},
        Bad{"empty token", [](Json& d) { model(d)["vocab"][""] = 262; }, {"model.vocab.\"\""}},
        Bad{"merges", [](Json& d) { model(d)["merges"] = nullptr; }, {"model.merges is null"}},
        Bad{"merge", [](Json& d) { model(d)["merges"][1] = 5; }, {"model.merges[1] is 5", "two tokens"}},
        Bad{"three",
            [](Json& d) {
              model(d)["merges"][1] = {"a", "b", "c"};
            },
            {"merges[1]", "two tokens"}},
        Bad{"no string",
            [](Json& d) {
              model(d)["merges"][1] = {"a", 7};
            },
            {"model.merges[1][1] is 7"}},
        Bad{"no space", [](Json& d) { model(d)["merges"][1] = "ab"; }, {"model.merges[1] is \"ab\""}},
        Bad{"two spaces", [](Json& d) { model(d)["merges"][1] = "a b c"; }, {"model.merges[1]"}},
        Bad{"left",
            [](Json& d) { model(d)["merges"][1] = "xyz b"; },
            {"model.merges[1]", "left part", "xyz"}},
        Bad{"right", [](Json& d) { model(d)["merges"][1] = "b xyz"; }, {"model.merges[1]", "right part"}},
        Bad{"result",
            [](Json& d) { model(d)["merges"][1] = "b c"; },
            {"model.merges[1]", "result", "\"bc\""}},
        Bad{"normalizer",
            [](Json& d) {
              d["normalizer"] = {{"type", "NFKC"}};
            },
            {"normalizer.type is \"NFKC\""}},
        Bad{"normalizers",
            [](Json& d) {
              d["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Strip"}}}}};
            },
            {"normalizer.normalizers[0].type is \"Strip\""}},
        Bad{"no pre_tokenizer", [](Json& d) { pre(d) = nullptr; }, {"pre_tokenizer is null", "ByteLevel"}},
        Bad{"pre_tokenizer",
            [](Json& d) { pre(d)["type"] = "Metaspace"; },
            {"pre_tokenizer.type is \"Metaspace\""}},
        Bad{"no bytes",
            [](Json& d) {
              use_split(d, {{"Regex", "a"}});
              pre(d)["pretokenizers"].erase(1);
            },
            {"pre_tokenizer is", "ends with"}},
        Bad{"twice bytes",
            [](Json& d) {
              pre(d) = {{"type", "Sequence"}, {"pretokenizers", {pre(d), pre(d)}}};
            },
            {"pre_tokenizer.pretokenizers[1]", "nothing after ByteLevel"}},
        Bad{"prefix space",
            [](Json& d) { pre(d)["add_prefix_space"] = "no"; },
            {"add_prefix_space is \"no\""}},
        Bad{"string",
            [](Json& d) {
              use_split(d, {{"String", " "}});
            },
            {"pretokenizers[0].pattern.String"}},
        Bad{"behavior",
            [](Json& d) {
              use_split(d, {{"Regex", "a"}});
              pre(d)["pretokenizers"][0]["behavior"] = "Removed";
            },
            {"pretokenizers[0].behavior is \"Removed\"", "\"Isolated\""}},
        Bad{"invert",
            [](Json& d) {
              use_split(d, {{"Regex", "a"}});
              pre(d)["pretokenizers"][0]["invert"] = true;
            },
            {"pretokenizers[0].invert is true"}},
        Bad{"pattern",
            [](Json& d) {
              use_split(d, {{"Regex", "(a"}});
            },
            {"pattern 1", "\"(a\"", "byte 2"}},
        Bad{"nothing",
            [](Json& d) {
              use_split(d, {{"Regex", "a*"}});
            },
            {"\"a*\"", "may match the empty string"}},
        Bad{"post",
            [](Json& d) {
              d["post_processor"] = {{"type", "Mystery"}};
            },
            {"post_processor.type"}},
        Bad{"decoder",
            [](Json& d) {
              d["decoder"] = {{"type", "Metaspace"}};
            },
            {"decoder.type is \"Metaspace\""}},
        Bad{"added", [](Json& d) { d["added_tokens"] = 3; }, {"added_tokens is 3", "an array"}},
        Bad{"added id",
            [](Json& d) { d["added_tokens"][0]["id"] = 300; },
            {"added_tokens[0].id is 300", "262"}},
        Bad{"added id 2",
            [](Json& d) { d["added_tokens"][0] = added(7, "a"); },
            {"added_tokens[0].id is 7", "97"}},
        Bad{"added key", [](Json& d) { d["added_tokens"][0]["x"] = 1; }, {"added_tokens[0].x"}},
        Bad{"added empty",
            [](Json& d) { d["added_tokens"][0]["content"] = ""; },
            {"added_tokens[0].content"}},
        Bad{"added long",
            [](Json& d) { d["added_tokens"][0]["content"] = std::string(5000, 'x'); },
            {"4096"}},
        Bad{"added twice",
            [](Json& d) { d["added_tokens"].push_back(d["added_tokens"][0]); },
            {"every token once"}},
        Bad{"word", [](Json& d) { d["added_tokens"][0]["single_word"] = true; }, {"single_word is true"}}),
    [](const auto& bad) {
      std::string name = bad.param.what;
      for (auto& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

TEST(BadJson, EveryTruncationIsRefused) {
  const auto text = small_tokenizer().dump();
  for (std::size_t size = 0; size < text.size(); size += 1 + text.size() / 400) {
    EXPECT_THAT(error_of(ErrorKind::config,
                         [&] { static_cast<void>(parse_bpe_tokenizer(text.substr(0, size), "t.json")); }),
                HasSubstr("t.json: not a tokenizer.json"));
  }
}

TEST(BadJson, DeepNestingIsRefused) {
  EXPECT_THAT(
      error_of(ErrorKind::config,
               [] { static_cast<void>(parse_bpe_tokenizer(std::string(10'000'000, '['), "t.json")); }),
      HasSubstr("nested deeper than"));
}

TEST(BadJson, LargeFilesAreNotRead) {
  const TemporaryFolder folder;
  const auto file = folder.write("large.json", "{").string();
  std::filesystem::resize_file(file, largest_tokenizer_file + 1);
  EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(make_tokenizer(file)); }),
              AllOf(HasSubstr(file), HasSubstr("at most 67108864")));
}

TEST(BadJson, OtherJsonIsRefused) {
  for (const auto* text :
       {"[]", "3", "null", "\"x\"", "{\"model\": 3}", "{\"model\": {\"vocab\": {\"\\ud800\": 1}}}"})
    EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(parse_bpe_tokenizer(text, "t.json")); }),
                HasSubstr("t.json: "));
}

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
