#include "isthmus/data/corpus.h"

#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_support.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const DataConfig& config) {
  return error_of(ErrorKind::data, [&] { Corpus{config}; });
}

TEST(Corpus, ATextFileIsOneDocumentWithItsTailHeldOut) {
  const TemporaryFolder folder;
  const Corpus corpus(config_of(folder.write("a.txt", "abcdefghijklmnopqrstuvwxyz0123456789ABC"), 4, 0.25));
  EXPECT_EQ(text_of(corpus, Split::train), "abcdefghijklmnopqrstuvwxyz0123");
  EXPECT_EQ(text_of(corpus, Split::heldout), "456789ABC|");
  EXPECT_EQ(corpus.vocab_size(), 256U);
  EXPECT_TRUE(corpus.notes().empty());
}

TEST(Corpus, AHeldOutTailIsAtLeastOneWindow) {
  const TemporaryFolder folder;
  const Corpus corpus(config_of(folder.write("a.txt", "abcdefghijklmnopqrstuvwxyz"), 4, 0.02));
  EXPECT_EQ(text_of(corpus, Split::heldout), "wxyz|");
}

TEST(Corpus, NothingIsHeldOutIfNothingIsAskedFor) {
  const TemporaryFolder folder;
  const Corpus corpus(config_of(folder.write("a.txt", "abcdef"), 4, 0));
  EXPECT_EQ(text_of(corpus, Split::train), "abcdef|");
  EXPECT_EQ(corpus.tokens(Split::heldout), 0U);
}

TEST(Corpus, ReadsAnyRangeOfAPart) {
  const TemporaryFolder folder;
  const Corpus corpus(config_of(folder.write("a.txt", "abcdefghijklmnopqrst"), 4, 0.3));
  std::vector<std::int64_t> two(2);
  corpus.read(Split::train, 12, two);
  EXPECT_EQ(two, (std::vector<std::int64_t>{'m', 'n'}));
  corpus.read(Split::heldout, 0, two);
  EXPECT_EQ(two, (std::vector<std::int64_t>{'p', 'q'}));
}

TEST(Corpus, AFolderIsItsFilesInTheOrderOfTheirPaths) {
  const TemporaryFolder folder;
  folder.write("corpus/b.txt", "bbbb");
  folder.write("corpus/a/z.md", "zzzz");
  folder.write("corpus/a/deep/er.txt", "eeee");
  folder.write("corpus/a.txt", "aaaa");
  folder.write("corpus/empty.txt", "");
  folder.write("corpus/.hidden", "xxxx");
  folder.write("corpus/.git/config", "xxxx");
  const Corpus corpus(config_of(folder / "corpus", 4, 0));
  // '.' sorts before '/'.
  EXPECT_EQ(text_of(corpus, Split::train), "aaaa|eeee|zzzz|bbbb|");
}

TEST(Corpus, WholeFilesOfAFolderAreHeldOut) {
  const TemporaryFolder folder;
  for (int i = 0; i < 100; ++i) folder.write("c/" + std::to_string(i), std::string(100, 'a' + i % 26));
  const Corpus corpus(config_of(folder / "c", 4, 0.1));
  EXPECT_EQ(corpus.tokens(Split::heldout), 10U * 101);
  EXPECT_EQ(corpus.tokens(Split::train), 90U * 101);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[100], 0);
  // Held-out files are not simply the first or the last files.
  const auto text = text_of(corpus, Split::heldout);
  EXPECT_NE(text[0], text[101]);
}

TEST(Corpus, TheHeldOutPartOfUnequalFilesIsNearTheFraction) {
  const TemporaryFolder folder;
  for (int i = 1; i <= 60; ++i) folder.write("c/" + std::to_string(i), std::string(i * i, 'x'));
  const Corpus corpus(config_of(folder / "c", 4, 0.2));
  const auto heldout = static_cast<double>(corpus.tokens(Split::heldout));
  const auto all = heldout + static_cast<double>(corpus.tokens(Split::train));
  EXPECT_NEAR(heldout / all, 0.2, 0.02);
}

TEST(Corpus, TwoFilesGiveOneToEachPart) {
  const TemporaryFolder folder;
  folder.write("c/large", std::string(1000, 'l'));
  folder.write("c/small", std::string(10, 's'));
  const Corpus corpus(config_of(folder / "c", 4, 0.001));
  EXPECT_EQ(corpus.tokens(Split::train), 1001U);
  EXPECT_EQ(text_of(corpus, Split::heldout), "ssssssssss|");
}

TEST(Corpus, AFolderWithOneFileIsSplitLikeThatFile) {
  const TemporaryFolder folder;
  folder.write("c/only", "abcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(text_of(Corpus(config_of(folder / "c", 4, 0.02)), Split::heldout), "wxyz|");
}

TEST(Corpus, LinksAreFollowedAndLoopsEnd) {
  const TemporaryFolder folder;
  folder.write("elsewhere/linked.txt", "llll");
  folder.write("c/a.txt", "aaaa");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "c/link");
  std::filesystem::create_directory_symlink(folder / "c", folder / "c/loop");
  std::filesystem::create_directory_symlink("..", folder / "elsewhere/up");
  const Corpus corpus(config_of(folder / "c", 4, 0));
  EXPECT_EQ(text_of(corpus, Split::train), "aaaa|llll|");
}

TEST(Corpus, OnlyRegularFilesAreRead) {
  const TemporaryFolder folder;
  folder.write("c/a.txt", "aaaa");
  ASSERT_EQ(mkfifo((folder / "c/pipe").c_str(), 0600), 0);
  EXPECT_EQ(text_of(Corpus(config_of(folder / "c", 4, 0)), Split::train), "aaaa|");
}

TEST(Corpus, MissingAndUnsetPathsSayWhatToName) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(config_of(folder / "nowhere")),
              AllOf(HasSubstr("nowhere"), HasSubstr("does not exist")));
  EXPECT_THAT(refusal(config_of("")), HasSubstr("data.path is not set"));
  EXPECT_THAT(refusal(config_of("/dev/null")), HasSubstr("neither a file nor a folder"));
}

TEST(Corpus, EmptyOnesAreRefused) {
  const TemporaryFolder folder;
  folder.write("c/empty", "");
  EXPECT_THAT(refusal(config_of(folder / "c")), AllOf(HasSubstr("/c"), HasSubstr("no text")));
  EXPECT_THAT(refusal(config_of(folder / "c/empty")), HasSubstr("no text"));
  EXPECT_THAT(refusal(config_of(folder.write("e.bin", ""))), HasSubstr("has 0 tokens"));
}

TEST(Corpus, ShortOnesSayHowMuchIsMissing) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.txt", "0123456789");
  EXPECT_THAT(refusal(config_of(file, 256)), AllOf(HasSubstr("257"), HasSubstr("smaller data.seq_len")));
  EXPECT_THAT(refusal(config_of(file, 6, 0.5)), AllOf(HasSubstr("training part"), HasSubstr("has 4 tokens")));
  folder.write("c/large", std::string(1000, 'l'));
  folder.write("c/small", "s");
  EXPECT_THAT(refusal(config_of(folder / "c", 4, 0.001)),
              AllOf(HasSubstr("held-out part"), HasSubstr("has 2 tokens")));
}

TEST(Corpus, ALinkThatLeadsNowhereIsNamed) {
  const TemporaryFolder folder;
  folder.write("c/a.txt", "aaaa");
  std::filesystem::create_symlink("gone", folder / "c/link.txt");
  EXPECT_THAT(refusal(config_of(folder / "c")),
              AllOf(HasSubstr("link.txt"), HasSubstr("broken symbolic link")));
}

/// While it lives, root opens and creates files of this thread as another user, since root may read all
/// files.
class NotRoot {
 public:
  NotRoot() : before_(::setfsuid(::geteuid() == 0 ? 65534 : ::geteuid())) {}
  ~NotRoot() { ::setfsuid(static_cast<uid_t>(before_)); }
  NotRoot(const NotRoot&) = delete;
  NotRoot& operator=(const NotRoot&) = delete;

 private:
  int before_;
};

TEST(Corpus, UnreadableFilesAreNamed) {
  const NotRoot not_root;
  const TemporaryFolder folder;
  const auto file = folder.write("c/secret.txt", "aaaaaaaaaaaa");
  ASSERT_EQ(chmod(file.c_str(), 0), 0);
  EXPECT_THAT(refusal(config_of(folder / "c")),
              AllOf(HasSubstr("secret.txt"), HasSubstr("Permission denied")));
}

TEST(Corpus, ABinaryFileAmongTextIsNamed) {
  const TemporaryFolder folder;
  folder.write("c/a.txt", "aaaa");
  folder.write("c/ids.bin", "aaaa");
  EXPECT_THAT(refusal(config_of(folder / "c")), AllOf(HasSubstr("ids.bin"), HasSubstr("data.path")));
}

TEST(Corpus, TheLimitCutsInOrderAndSaysSo) {
  const TemporaryFolder folder;
  folder.write("c/1", "aaaaa");
  folder.write("c/2", "bbbbb");
  folder.write("c/3", "ccccc");
  auto config = config_of(folder / "c", 4, 0);
  config.max_bytes = 7;
  const Corpus corpus(config);
  EXPECT_EQ(text_of(corpus, Split::train), "aaaaa|bb|");
  ASSERT_EQ(corpus.notes().size(), 1U);
  EXPECT_THAT(corpus.notes()[0],
              AllOf(HasSubstr("data.max_bytes"), HasSubstr("15 bytes"), HasSubstr("first 7 bytes")));
  config.max_bytes = 15;
  EXPECT_TRUE(Corpus(config).notes().empty());
}

TEST(Corpus, TheLimitDividesNoLineOfJsonl) {
  const TemporaryFolder folder;
  const std::string line = "{\"text\": \"abcd\"}\n";  // 17 bytes
  const std::string far(200'000, ' ');                // no line ends near the limit
  auto config = config_of(folder.write("a.jsonl", line + line + far + line + line), 4, 0);
  for (const std::size_t limit :
       {2 * line.size(), 2 * line.size() + far.size() + 1, 3 * line.size() + far.size() - 1}) {
    config.max_bytes = static_cast<std::int64_t>(limit);
    const Corpus corpus(config);
    EXPECT_EQ(text_of(corpus, Split::train), "abcd|abcd|") << limit;
    EXPECT_THAT(corpus.notes().at(0), HasSubstr("first 34 bytes"));
  }
  config.max_bytes = static_cast<std::int64_t>(4 * line.size() + far.size() - 1);
  EXPECT_EQ(text_of(Corpus(config), Split::train), "abcd|abcd|abcd|");
  config.max_bytes = 16;
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("holds no text"), HasSubstr("data.max_bytes")));
}

TEST(Corpus, ABinFileIsItsIds) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("ids.bin", counting_ids(1000)), 4, 0.1);
  config.tokenizer = "vocab:1000";
  const Corpus corpus(config);
  EXPECT_EQ(corpus.tokens(Split::train), 900U);
  EXPECT_EQ(corpus.tokens(Split::heldout), 100U);
  EXPECT_EQ(tokens_of(corpus, Split::train)[899], 899);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[99], 999);
}

TEST(Corpus, ABinFileOfOddLengthNamesTheOffset) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(config_of(folder.write("ids.bin", counting_ids(50) + "x"))),
              AllOf(HasSubstr("ids.bin"), HasSubstr("101 bytes"), HasSubstr("offset 100")));
}

TEST(Corpus, IdsOutsideTheVocabularyNameFileAndOffsetWhenTheyAreRead) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("ids.bin", counting_ids(1000)), 4, 0.1);
  config.tokenizer = "vocab:990";
  const Corpus corpus(config);
  static_cast<void>(tokens_of(corpus, Split::train));
  EXPECT_THAT(error_of(ErrorKind::data, [&] { tokens_of(corpus, Split::heldout); }),
              AllOf(HasSubstr("ids.bin"), HasSubstr("token id 990"), HasSubstr("offset 1980")));
}

TEST(Corpus, TokenizerFaultsAreTheConfigs) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("a.txt", "aaaaaaaaaaaaaaaaa"));
  config.tokenizer = "nowhere.model";
  EXPECT_THAT(error_of(ErrorKind::config, [&] { Corpus{config}; }), HasSubstr("nowhere.model"));
  config.tokenizer = "vocab:100";
  EXPECT_THAT(refusal(config), HasSubstr(".bin"));
}

TEST(Corpus, AJsonlFileIsADocumentForEachLine) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += R"({"id": 1, "text": "line )" + std::to_string(10 + i) + "\"}\n";
  const Corpus corpus(config_of(folder.write("a.jsonl", lines), 4, 0.1));
  EXPECT_EQ(corpus.tokens(Split::train) + corpus.tokens(Split::heldout), 20U * 8);
  EXPECT_THAT(text_of(corpus, Split::train), testing::StartsWith("line 10|line 11|"));
  EXPECT_EQ(text_of(corpus, Split::heldout), "line 28|line 29|") << "whole lines";
  auto other = config_of(folder.write("b.jsonl", R"({"body": "some text that is long enough"})"), 4, 0);
  EXPECT_THAT(refusal(other), AllOf(HasSubstr("b.jsonl"), HasSubstr("text")));
  other.text_field = "body";
  EXPECT_EQ(text_of(Corpus(other), Split::train), "some text that is long enough|");
}

TEST(Corpus, BadDocumentsFailOrAreCounted) {
  const TemporaryFolder folder;
  for (int i = 0; i < 1000; ++i) folder.write("c/" + std::to_string(i) + ".txt", "good text");
  folder.write("c/500.jsonl", "{\"text\": \"good line\"}\n{\"text\": 5}\n{\"text\": \"good again\"}\n");
  auto config = config_of(folder / "c", 4, 0);
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("500.jsonl"), HasSubstr("line 2")));
  config.on_bad = "skip";
  const Corpus corpus(config);
  EXPECT_EQ(corpus.tokens(Split::train), 1000U * 10 + 10 + 11);
  ASSERT_EQ(corpus.notes().size(), 1U);
  EXPECT_THAT(corpus.notes()[0], AllOf(HasSubstr("1 bad document"), HasSubstr("500.jsonl")));
}

TEST(Corpus, AStoreIsReadWithTheTokenizerThatMadeItOrAsIds) {
  const TemporaryFolder folder;
  std::vector<std::uint32_t> ids(5000);
  std::vector<std::uint64_t> starts;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i % 100 == 99 ? 0 : static_cast<std::uint32_t>(1 + i % 99);
    if (i % 100 == 0) starts.push_back(i);
  }
  StoreSpec spec;
  spec.vocab_size = 256;
  spec.tokenizer = make_tokenizer("bytes")->fingerprint();
  spec.block_tokens = 64;
  write_store(folder / "store", spec, ids, starts);
  const Corpus corpus(config_of(folder / "store", 7, 0.05));
  EXPECT_EQ(corpus.tokens(Split::heldout), 300U) << "250, extended to a document boundary";
  EXPECT_EQ(tokens_of(corpus, Split::train)[4699], 0);
  auto as_ids = config_of(folder / "store", 7, 0.05);
  as_ids.tokenizer = "vocab:300";
  EXPECT_EQ(tokens_of(Corpus(as_ids), Split::train), tokens_of(corpus, Split::train));
  as_ids.tokenizer = "vocab:200";
  EXPECT_THAT(refusal(as_ids), HasSubstr("vocab:256"));
  spec.tokenizer = Hasher().update("another").finish();
  write_store(folder / "other", spec, ids, starts);
  EXPECT_THAT(refusal(config_of(folder / "other", 7, 0.05)), HasSubstr("was made with a tokenizer"));
}

TEST(Corpus, AStoreSaysWhatEndsItsDocuments) {
  const TemporaryFolder folder;
  std::vector<std::uint32_t> ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint32_t>(i % 100);
  StoreSpec spec;
  spec.vocab_size = 200;
  spec.separator = 99;
  spec.block_tokens = 64;
  const std::vector<std::uint64_t> starts = {0};
  write_store(folder / "store", spec, ids, starts);
  auto config = config_of(folder / "store");
  config.tokenizer = "vocab:200";
  config.document_mask = true;
  EXPECT_EQ(Corpus(config).mask_separator(), 99);
  spec.separator = 98;
  write_store(folder / "other", spec, ids, starts);
  config.path.clear();
  config.mixture = (folder / "store").string() + " = 1; " + (folder / "other").string() + " = 1";
  EXPECT_THAT(error_of(ErrorKind::config, [&] { Corpus{config}; }), HasSubstr("data.separator"));
  config.document_mask = false;
  EXPECT_EQ(Corpus(config).separator(), std::nullopt);
}

TEST(Corpus, AStoreThatIsNotCompleteIsNotTakenForText) {
  const TemporaryFolder folder;
  folder.write("store.partial/blocks", std::string(100, 'x'));
  folder.write("store.partial/entries", std::string(100, 'x'));
  folder.write("store.partial/journal", std::string(100, 'x'));
  EXPECT_THAT(refusal(config_of(folder / "store.partial")),
              AllOf(HasSubstr("store.partial"), HasSubstr("incomplete")));
}

TEST(Corpus, ABorderOfDocumentsLeavesSomethingToTrainOn) {
  const TemporaryFolder folder;
  auto bytes = counting_ids(520);
  auto config = config_of(folder.write("ids.bin", bytes), 256, 0.5);
  config.tokenizer = "vocab:520";
  config.separator = 9;
  EXPECT_EQ(Corpus(config).tokens(Split::train), 260U);
}

TEST(Corpus, WhatBoundsAttentionMustBeKnown) {
  const TemporaryFolder folder;
  auto config = config_of(folder.write("ids.bin", counting_ids(1000)));
  config.tokenizer = "vocab:1000";
  EXPECT_EQ(Corpus(config).mask_separator(), -1);
  config.document_mask = true;
  EXPECT_THAT(error_of(ErrorKind::config, [&] { Corpus{config}; }), HasSubstr("data.separator"));
  config.separator = 1000;
  EXPECT_THAT(error_of(ErrorKind::config, [&] { Corpus{config}; }), HasSubstr("vocabulary of 1000"));
  config.separator = 50;
  EXPECT_EQ(Corpus(config).mask_separator(), 50);
  config.document_mask = false;
  EXPECT_EQ(Corpus(config).mask_separator(), -1);
  EXPECT_EQ(Corpus(config).separator(), 50U);
}

TEST(Corpus, WhatBoundsAttentionIsWhatEndsDocuments) {
  const TemporaryFolder folder;
  StoreSpec spec;
  spec.vocab_size = 256;
  spec.separator = 7;
  spec.tokenizer = make_tokenizer("bytes")->fingerprint();
  const std::vector<std::uint32_t> ids(100, 7);
  write_store(folder / "store", spec, ids, std::vector<std::uint64_t>{0});
  auto store = config_of(folder / "store", 4, 0);
  store.tokenizer = "vocab:256";
  auto text = config_of(folder.write("a.txt", "abcdefghij"), 4, 0);
  for (auto* config : {&store, &text}) {
    config->separator = 9;
    EXPECT_EQ(Corpus(*config).separator(), 9U);
    config->document_mask = true;
    const std::string own = config == &store ? "7" : "0";
    EXPECT_THAT(error_of(ErrorKind::config, [&] { Corpus{*config}; }),
                AllOf(HasSubstr("end with id " + own), HasSubstr("data.separator is 9")));
    config->separator = config == &store ? 7 : -1;
    EXPECT_EQ(std::to_string(Corpus(*config).mask_separator()), own);
  }
}

TEST(Corpus, FingerprintsAreOfNamesAndContents) {
  const TemporaryFolder folder;
  const auto fingerprint = [&](std::string_view path) {
    return Corpus(config_of(folder / path, 4, 0)).fingerprint();
  };
  folder.write("one/a", "aaaaaa");
  folder.write("one/b", "bbbbbb");
  folder.write("same/b", "bbbbbb");
  folder.write("same/a", "aaaaaa");
  folder.write("renamed/a", "aaaaaa");
  folder.write("renamed/c", "bbbbbb");
  folder.write("moved/a", "aaaaaab");
  folder.write("moved/b", "bbbbb");
  EXPECT_EQ(fingerprint("one"), fingerprint("same"));
  EXPECT_NE(fingerprint("one"), fingerprint("renamed"));
  EXPECT_NE(fingerprint("one"), fingerprint("moved"));
  // A file given by its own path may have a different name on each machine.
  EXPECT_EQ(fingerprint("one/b"), fingerprint("renamed/c"));
  folder.write("x.bin", counting_ids(60));
  folder.write("y.bin", counting_ids(60));
  folder.write("z.bin", counting_ids(61));
  EXPECT_EQ(fingerprint("x.bin"), fingerprint("y.bin"));
  EXPECT_NE(fingerprint("x.bin"), fingerprint("z.bin"));
}

TEST(Corpus, CanBeMoved) {
  const TemporaryFolder folder;
  Corpus corpus(config_of(folder.write("a.txt", "abcdef"), 4, 0));
  const Corpus moved = std::move(corpus);
  EXPECT_EQ(text_of(moved, Split::train), "abcdef|");
}

}  // namespace
}  // namespace isthmus::data
