// Held-out sets of their own: data.val_path, and the files of a folder that are held out by their names.

#include <filesystem>

#include "corpus/token_stream.h"
#include "data_support.h"
#include "isthmus/data/heldout.h"
#include "stream_server.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// uint16 ids first, first + 1, ...
std::string ids_from(std::size_t first, std::size_t count) {
  return counting_ids(first + count).substr(2 * first);
}

DataConfig ids_config(const std::filesystem::path& path, const std::filesystem::path& val_path = {}) {
  auto config = config_of(path, 4, DataConfig::default_heldout);
  config.tokenizer = "vocab:10000";
  config.val_path = val_path.string();
  return config;
}

std::vector<std::int64_t> counted(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> out;
  for (auto id = first; id < first + count; ++id) out.push_back(id);
  return out;
}

void expect_parts(const DataConfig& config, const std::vector<std::int64_t>& train,
                  const std::vector<std::int64_t>& heldout) {
  const Corpus corpus(config);
  EXPECT_EQ(tokens_of(corpus, Split::train), train);
  EXPECT_EQ(tokens_of(corpus, Split::heldout), heldout);
}

std::string refusal_as(ErrorKind kind, const DataConfig& config) {
  return error_of(kind, [&] { Corpus{config}; });
}

TEST(HeldOutFiles, ValPathIsHeldOutAndAllOfPathTrains) {
  const TemporaryFolder folder;
  const auto train = folder.write("all.bin", ids_from(0, 300));
  expect_parts(ids_config(train, folder.write("own.bin", ids_from(1000, 60))), counted(0, 300),
               counted(1000, 60));
  auto text = config_of(folder.write("a.txt", "abcdefgh"), 4, DataConfig::default_heldout);
  text.val_path = folder.write("b.txt", "xyzxyz").string();
  const Corpus corpus(text);
  EXPECT_EQ(text_of(corpus, Split::train), "abcdefgh|");
  EXPECT_EQ(text_of(corpus, Split::heldout), "xyzxyz|");
}

TEST(HeldOutFiles, NanogptsFolderUsesEachFileForWhatItIs) {
  const TemporaryFolder folder;
  folder.write("owt/train.bin", ids_from(0, 300));
  folder.write("owt/val.bin", ids_from(1000, 60));
  expect_parts(ids_config(folder / "owt"), counted(0, 300), counted(1000, 60));
  for (const auto* other : {"prepare.py", "readme.md", "meta.pkl", "__pycache__/prepare.pyc", ".git/config"})
    folder.write(std::string("owt/") + other, "x");
  expect_parts(ids_config(folder / "owt"), counted(0, 300), counted(1000, 60));
  EXPECT_TRUE(Corpus(ids_config(folder / "owt")).notes().empty());
}

TEST(HeldOutFiles, LlmcsShardsAreDividedByTheWordsInTheirNames) {
  const TemporaryFolder folder;
  folder.write("fineweb/fineweb_val_000000.bin", ids_from(1000, 60));
  folder.write("fineweb/fineweb_train_000002.bin", ids_from(200, 100));
  folder.write("fineweb/fineweb_train_000001.bin", ids_from(0, 200));
  expect_parts(ids_config(folder / "fineweb"), counted(0, 300), counted(1000, 60));
  // Without the word "train", all files without the word "val" are for training.
  folder.write("mine/values_2.bin", ids_from(200, 100));
  folder.write("mine/trains_1.bin", ids_from(0, 200));
  folder.write("mine/val.bin", ids_from(1000, 60));
  expect_parts(ids_config(folder / "mine"), counted(0, 300), counted(1000, 60));
}

TEST(HeldOutFiles, AFolderWithoutAHeldOutFileHoldsOutTheEnd) {
  const TemporaryFolder folder;
  folder.write("c/train.bin", ids_from(0, 300));
  folder.write("c/prepare.py", "x");
  expect_parts(ids_config(folder / "c"), counted(0, 294), counted(294, 6));
}

TEST(HeldOutFiles, AnOtherBinFileIsIgnoredWithANote) {
  const TemporaryFolder folder;
  folder.write("c/train.bin", ids_from(0, 300));
  folder.write("c/val.bin", ids_from(1000, 60));
  folder.write("c/test.bin", ids_from(2000, 60));
  const Corpus corpus(ids_config(folder / "c"));
  EXPECT_EQ(corpus.tokens(Split::train) + corpus.tokens(Split::heldout), 360U);
  ASSERT_EQ(corpus.notes().size(), 1U);
  EXPECT_THAT(corpus.notes()[0], HasSubstr("test.bin is ignored"));
}

TEST(HeldOutFiles, ValPathTakesTheHeldOutFilesOfAFolderAndComesBeforeThoseOfPath) {
  const TemporaryFolder folder;
  folder.write("a/train.bin", ids_from(0, 300));
  folder.write("a/val.bin", ids_from(1000, 60));
  folder.write("b/train.bin", ids_from(3000, 300));
  folder.write("b/val.bin", ids_from(4000, 60));
  expect_parts(ids_config(folder / "a", folder / "b"), counted(0, 300), counted(4000, 60));
  expect_parts(ids_config(folder / "a", folder / "b/train.bin"), counted(0, 300), counted(3000, 300));
}

TEST(HeldOutFiles, WithHeldOut0NothingIsHeldOutAndValBinIsNotTrainedOn) {
  const TemporaryFolder folder;
  folder.write("c/train.bin", ids_from(0, 300));
  folder.write("c/val.bin", ids_from(1000, 60));
  auto config = ids_config(folder / "c");
  config.heldout = 0;
  expect_parts(config, counted(0, 300), {});
}

TEST(HeldOutFiles, InAMixtureEachFolderHasItsOwnAndValPathReplacesAll) {
  const TemporaryFolder folder;
  folder.write("a/train.bin", ids_from(0, 300));
  folder.write("a/val.bin", ids_from(1000, 60));
  auto config = ids_config("");
  config.mixture =
      (folder / "a").string() + " = 1; " + folder.write("b.bin", ids_from(3000, 300)).string() + " = 1";
  const Corpus mixed(config);
  auto heldout = counted(1000, 60);
  for (const auto id : counted(3294, 6)) heldout.push_back(id);
  EXPECT_EQ(tokens_of(mixed, Split::heldout), heldout);
  EXPECT_EQ(mixed.tokens(Split::train), 300U + 294);
  config.val_path = folder.write("own.bin", ids_from(5000, 400)).string();
  const Corpus own(config);
  EXPECT_EQ(own.tokens(Split::train), 600U);
  EXPECT_EQ(tokens_of(own, Split::heldout), counted(5000, 400));
  const auto device = make_cpu_device();
  EXPECT_EQ(HeldOut(own, 4, 50, 8, *device).sequences(), 50) << "not the weight's share of them";
}

TEST(HeldOutFiles, TheFingerprintCoversThem) {
  const TemporaryFolder folder;
  const auto train = folder.write("t.bin", ids_from(0, 300));
  const auto one = folder.write("1.bin", ids_from(1000, 60)),
             other = folder.write("2.bin", ids_from(2000, 60));
  const auto print = [](const DataConfig& config) { return Corpus(config).fingerprint(); };
  EXPECT_NE(print(ids_config(train, one)), print(ids_config(train)));
  EXPECT_NE(print(ids_config(train, one)), print(ids_config(train, other)));
  folder.write("c/train.bin", ids_from(0, 300));
  folder.write("c/val.bin", ids_from(1000, 60));
  EXPECT_EQ(print(ids_config(folder / "c")), print(ids_config(train, one))) << "the same contents";
}

TEST(HeldOutFiles, AHeldOutFractionAsWellIsRefused) {
  const TemporaryFolder folder;
  folder.write("c/train.bin", ids_from(0, 300));
  folder.write("c/val.bin", ids_from(1000, 60));
  auto config = ids_config(folder / "c");
  config.heldout = 0.1;
  EXPECT_THAT(refusal_as(ErrorKind::config, config),
              AllOf(HasSubstr("data.heldout is 0.1"), HasSubstr("held out by their names")));
  config.val_path = (folder / "c/val.bin").string();
  for (const double fraction : {0.1, 0.0}) {
    config.heldout = fraction;
    EXPECT_THAT(refusal_as(ErrorKind::config, config),
                AllOf(HasSubstr("data.heldout is"), HasSubstr("data.val_path is"), HasSubstr("val.bin")));
  }
}

TEST(HeldOutFiles, WhatCannotBeAHeldOutSetIsNamed) {
  const TemporaryFolder folder;
  const auto train = folder.write("t.bin", ids_from(0, 300));
  const auto expect = [&](const DataConfig& config, const std::string& text) {
    EXPECT_THAT(refusal_as(ErrorKind::data, config), HasSubstr(text));
  };
  expect(ids_config(train, folder / "none.bin"), "none.bin does not exist");
  expect(ids_config(train, folder.write("short.bin", ids_from(0, 4))), "needs 5: use a longer file");
  expect(ids_config(train, train), "the same content");
  folder.write("only/val.bin", ids_from(1000, 60));
  expect(ids_config(folder / "only"), "are all held out");
  folder.write("broken/train.bin", ids_from(0, 300));
  std::filesystem::create_symlink("nowhere", folder / "broken/val.bin");
  expect(ids_config(folder / "broken"), "val.bin is not a regular file");
  folder.write("megatron/train.bin", ids_from(0, 300));
  folder.write("megatron/train.idx", "MMIDIDX");
  expect(ids_config(folder / "megatron"), "train.bin belongs to a Megatron data set");
}

TEST(HeldOutFiles, AStreamWithValPathIsTrainedOnFromItsStart) {
  const TemporaryFolder folder;
  const StreamServer server(folder / "socket", [](const std::string&) {
    return R"({"text": "abcdefgh"})"
           "\n" +
           end_of_stream;
  });
  DataConfig config;
  config.path = server.address();
  config.seq_len = 4;
  config.val_path = folder.write("val.txt", "xyzxyz").string();
  config.check();
  StreamOptions options;
  options.store = folder / "store";
  options.reader = "reader-0";
  options.heldout_tokens = 5;
  options.say = [](const std::string&) {};
  const Corpus corpus(config, options);
  EXPECT_EQ(text_of(corpus, Split::heldout), "xyzxyz|");
  std::string first(4, ' ');
  Bytes ids(8);
  ASSERT_EQ(corpus.sets().front().stream()->take(0, 4, ids.data(), {}), 4U);
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<char>(ids[2 * i]);
  EXPECT_EQ(first, "abcd");
}

TEST(HeldOutFiles, AStreamIsNoHeldOutSet) {
  auto config = ids_config("x", "tcp://127.0.0.1:7");
  EXPECT_THAT(error_of(ErrorKind::config, [&] { config.check(); }),
              AllOf(HasSubstr("data.val_path is tcp://"), HasSubstr("expected files")));
  config.val_path = "-";
  EXPECT_THAT(error_of(ErrorKind::config, [&] { config.check(); }), HasSubstr("a stream"));
}

}  // namespace
}  // namespace isthmus::data
