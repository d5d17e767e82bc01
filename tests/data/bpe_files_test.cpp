// Files of tokenizers that are refused.

#include <gtest/gtest.h>

#include "bpe_support.h"
#include "tokenizer/bpe_spec.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Bad {
  const char* what;
  void (*change)(Json&);
  std::vector<std::string> said;  ///< place, value and expected value
};

void PrintTo(const Bad& bad, std::ostream* out) { *out << bad.what; }

class BadFile : public testing::TestWithParam<Bad> {};

TEST_P(BadFile, IsRefusedByName) {
  const auto message = refusal_after(GetParam().change);
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
  std::filesystem::resize_file(file, max_tokenizer_file + 1);
  EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(make_tokenizer(file)); }),
              AllOf(HasSubstr(file), HasSubstr("at most 67108864")));
}

TEST(BadJson, OtherJsonIsRefused) {
  for (const auto* text :
       {"[]", "3", "null", "\"x\"", "{\"model\": 3}", "{\"model\": {\"vocab\": {\"\\ud800\": 1}}}"})
    EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(parse_bpe_tokenizer(text, "t.json")); }),
                HasSubstr("t.json: "));
}

}  // namespace
}  // namespace isthmus::data
