#include "isthmus/data/tokenizer.h"

#include <sentencepiece_trainer.h>

#include "data_support.h"

namespace isthmus::data {
namespace {

std::string sample_text() {
  std::string text;
  const char* words[] = {"the",    "river",  "bends", "north", "of",  "a",
                         "narrow", "bridge", "where", "boats", "wait"};
  for (int line = 0; line < 200; ++line) {
    for (int word = 0; word < 6; ++word)
      text += std::string(words[(line * 7 + word * word * 3 + word) % 11]) + " ";
    text += "\n";
  }
  return text;
}

/// Trains a model of `vocab` ids on the sample text. Returns its file.
std::string train_model(const TemporaryFolder& folder, const std::string& name, int vocab) {
  const auto input = folder.write(name + ".txt", sample_text());
  const auto prefix = (folder / name).string();
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + input.string() + " --model_prefix=" + prefix + " --vocab_size=" + std::to_string(vocab) +
      " --model_type=bpe --minloglevel=2 --num_threads=1");
  EXPECT_TRUE(status.ok()) << status.ToString();
  return prefix + ".model";
}

TEST(BytesTokenizer, EveryByteIsItsOwnId) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256U);
  EXPECT_EQ(tokenizer->separator(), 0U);
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const auto ids = encoded(*tokenizer, all);
  ASSERT_EQ(ids.size(), 256U);
  EXPECT_EQ(ids[255], 255U);
  EXPECT_EQ(tokenizer->decode(ids), all);
}

TEST(BytesTokenizer, EncodingAppends) {
  const auto tokenizer = make_tokenizer("bytes");
  Ids ids = {7};
  tokenizer->encode("a", ids);
  EXPECT_EQ(ids, (Ids{7, 'a'}));
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreNamed) {
  const auto tokenizer = make_tokenizer("bytes");
  const auto message = error_of(ErrorKind::data, [&] { static_cast<void>(tokenizer->decode(Ids{1, 256})); });
  EXPECT_THAT(message, testing::AllOf(testing::HasSubstr("256"), testing::HasSubstr("position 1")));
}

TEST(IdsTokenizer, HasASizeButNoText) {
  const auto tokenizer = make_tokenizer("vocab:50257");
  EXPECT_EQ(tokenizer->vocab_size(), 50257U);
  EXPECT_EQ(tokenizer->decode(Ids{50256, 3}), "50256 3 ");
  EXPECT_THAT(error_of(ErrorKind::data, [&] { encoded(*tokenizer, "text"); }),
              testing::HasSubstr("vocab:50257"));
}

TEST(IdsTokenizer, SizesThatAreNoneAreRefused) {
  for (const auto* name : {"vocab:", "vocab:1", "vocab:-5", "vocab:12x", "vocab:99999999999", "vocab: 7"}) {
    EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(make_tokenizer(name)); }),
                testing::HasSubstr(name));
  }
}

TEST(Tokenizer, UnknownNamesSayWhatIsExpected) {
  EXPECT_THAT(error_of(ErrorKind::config, [] { static_cast<void>(make_tokenizer("gpt2")); }),
              testing::AllOf(testing::HasSubstr("gpt2"), testing::HasSubstr("SentencePiece")));
}

TEST(SentencePieceTokenizer, RoundTripsText) {
  const TemporaryFolder folder;
  const auto tokenizer = make_tokenizer(train_model(folder, "small", 60));
  EXPECT_EQ(tokenizer->vocab_size(), 60U);
  const std::string text = "the narrow river bends where boats wait";
  const auto ids = encoded(*tokenizer, text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_LT(tokenizer->separator(), 60U);
  EXPECT_EQ(tokenizer->decode(Ids{tokenizer->separator()}), "");
  error_of(ErrorKind::data, [&] { static_cast<void>(tokenizer->decode(Ids{60})); });
}

TEST(SentencePieceTokenizer, FilesThatAreNoModelAreNamed) {
  const TemporaryFolder folder;
  for (const auto* contents : {"", "this is no model", "\x0a\xff\xff\xff\xff\x7f"}) {
    const auto file = folder.write("broken.model", contents).string();
    EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(make_tokenizer(file)); }),
                testing::HasSubstr(file));
  }
}

TEST(Tokenizer, FingerprintsTellVocabulariesApart) {
  const TemporaryFolder folder;
  const auto small = train_model(folder, "small", 60);
  const auto large = train_model(folder, "large", 70);
  std::filesystem::copy_file(small, folder / "copy.model");
  const auto of = [](const std::string& name) { return make_tokenizer(name)->fingerprint(); };
  EXPECT_EQ(of(small), of((folder / "copy.model").string()));
  EXPECT_NE(of(small), of(large));
  EXPECT_NE(of(small), of("bytes"));
  EXPECT_EQ(of("bytes"), of("bytes"));
  EXPECT_NE(of("vocab:256"), of("bytes"));
  EXPECT_NE(of("vocab:256"), of("vocab:257"));
}

TEST(SentencePieceTokenizer, MakesACorpusOfText) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("text.txt", sample_text()), 8);
  config.tokenizer = train_model(folder, "small", 60);
  const Corpus corpus(config);
  EXPECT_EQ(corpus.vocab_size(), 60U);
  const auto ids = tokens_of(corpus, Split::train);
  const auto text = corpus.tokenizer().decode(Ids(ids.begin(), ids.end()));
  const auto spaces_for_lines = sample_text().substr(0, 20);
  EXPECT_EQ(text.substr(0, 20), spaces_for_lines);
  EXPECT_EQ(tokens_of(corpus, Split::heldout).back(), corpus.tokenizer().separator());
}

}  // namespace
}  // namespace isthmus::data
