// Tokenising text into a store: it has the same ids as a corpus of the text, for any number of threads, and
// the same bytes after interruptions.

#include "isthmus/data/tokenize.h"

#include <filesystem>
#include <random>
#include <stdexcept>

#include "data_support.h"
#include "queues/ordered_stage.h"
#include "repetitions.h"
#include "store/store_reader.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ignore(const TokenizeProgress&) {}

TokenizeOptions options_of(const fs::path& source, const fs::path& out) {
  TokenizeOptions options;
  options.sources = {source.string()};
  options.out = out;
  options.block_tokens = 1000;
  options.threads = 2;
  return options;
}

/// The ids as text, separators as '|'.
std::string text_of(const StoreReader& store) {
  std::vector<std::uint16_t> ids(store.tokens());
  store.read(0, store.tokens(), reinterpret_cast<std::byte*>(ids.data()));
  std::string text;
  for (const auto id : ids) text += id == 0 ? '|' : static_cast<char>(id);
  return text;
}

std::string random_text(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) text += std::to_string(random() % 100000) + (random() % 9 == 0 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

/// Files of many sizes, and JSON lines.
void write_corpus(const TemporaryFolder& folder) {
  folder.write("d/a.txt", random_text(2'300'000, 1));
  for (int i = 0; i < 40; ++i)
    folder.write("d/b/" + std::to_string(i) + ".txt", random_text(i * 37 % 1500, 2));
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i % 300), 'x') + "\"}\n";
  lines += "{\"text\": \"" + std::string(1'500'000, 'y') + "\"}\n";
  folder.write("d/c.jsonl", lines);
  folder.write("d/e.txt", "the end");
}

TEST(OrderedStage, GivesResultsInTheOrderOfTheWork) {
  using Stage = OrderedStage<int, int>;
  Stage stage(3, 2, [] {
    return [](int& in, int& out) {
      if (in % 7 == 0) std::this_thread::yield();
      out = in * in;
    };
  });
  std::thread pushing([&] {
    for (int i = 0; i < 500; ++i) {
      int item = i;
      stage.push(item);
    }
    stage.close();
  });
  int result = 0, expected = 0;
  for (; stage.pop(result); ++expected) EXPECT_EQ(result, expected * expected);
  EXPECT_EQ(expected, 500);
  pushing.join();
}

TEST(OrderedStage, ThrowsAFaultWhereItsResultWouldHaveCome) {
  OrderedStage<int, int> stage(3, 2, [] {
    return [](int& in, int& out) {
      if (in == 2) throw Error(ErrorKind::data, "two");
      out = in;
    };
  });
  for (int i = 0; i < 5; ++i) {
    int item = i;
    ASSERT_TRUE(stage.push(item));
  }
  int result = -1;
  EXPECT_TRUE(stage.pop(result));
  EXPECT_TRUE(stage.pop(result));
  EXPECT_EQ(error_of(ErrorKind::data, [&] { stage.pop(result); }), "two");
  stage.stop();
  int item = 9;
  EXPECT_FALSE(stage.push(item));
}

TEST(OrderedStage, ThrowsTheFaultOfWhoFeedsItAtTheEnd) {
  OrderedStage<int, int> stage(1, 1, [] { return [](int& in, int& out) { out = in; }; });
  int item = 5;
  stage.push(item);
  stage.close(Fault{ErrorKind::data, "no more"});
  int result = 0;
  EXPECT_TRUE(stage.pop(result));
  EXPECT_EQ(result, 5);
  EXPECT_EQ(error_of(ErrorKind::data, [&] { stage.pop(result); }), "no more");
}

TEST(Tokenize, GivesTheIdsOfACorpusOfTheSameText) {
  const TemporaryFolder folder(memory());
  folder.write("d/a.txt", random_text(2'300'000, 1));
  for (int i = 0; i < 40; ++i)
    folder.write("d/" + std::to_string(i) + ".txt", random_text(1 + i * 37 % 1500, 2));
  const auto report = tokenize(options_of(folder / "d", folder / "s"), ignore);
  const Corpus corpus(config_of(folder / "d", 4, 0));
  const auto store = open_store(folder / "s");
  EXPECT_EQ(text_of(*store), text_of(corpus, Split::train));
  EXPECT_EQ(report.info.documents, 41U);
  EXPECT_EQ(report.info.spec.tokenizer, corpus.tokenizer_fingerprint());
  EXPECT_EQ(report.info.spec.vocab_size, 256U);
}

TEST(Tokenize, CountsWhatItHasRead) {
  const TemporaryFolder folder(memory());
  write_corpus(folder);
  TokenizeProgress last;
  const auto report = tokenize(options_of(folder / "d", folder / "s"),
                               [&](const TokenizeProgress& progress) { last = progress; });
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "d"))
    bytes += entry.is_regular_file() ? entry.file_size() : 0;
  EXPECT_EQ(report.info.source.bytes, bytes);
  EXPECT_EQ(report.bytes_read, bytes);
  EXPECT_EQ(report.info.source.empty, 10U + 1U);  // 3000 / 300 lines, and the file of 0 * 37 bytes
  EXPECT_EQ(report.info.source.skipped, 0U);
  EXPECT_EQ(report.info.documents, 1U + 39U + 3000U - 10U + 1U + 1U);
  EXPECT_EQ(last.tokens, report.info.tokens);
  EXPECT_EQ(last.documents, report.info.documents);
  EXPECT_EQ(last.stored_bytes, report.info.data_bytes);
  EXPECT_EQ(last.all_source_bytes, bytes);
  const auto store = open_store(folder / "s");
  const auto text = text_of(*store);
  EXPECT_TRUE(text.ends_with("|the end|"));
  std::uint64_t documents = 0;
  for (std::uint64_t block = 0; block < store->info().blocks(); ++block) {
    for (const auto start : store->document_starts(block)) {
      const auto at = block * store->block_tokens() + start;
      EXPECT_TRUE(at == 0 || text[at - 1] == '|') << at;
      ++documents;
    }
  }
  EXPECT_EQ(documents, report.info.documents);
}

TEST(Tokenize, GivesTheSameBytesWhateverTheThreads) {
  const TemporaryFolder folder(memory());
  write_corpus(folder);
  for (const std::uint32_t threads : {1, 2, 7}) {
    auto options = options_of(folder / "d", folder / std::to_string(threads));
    options.threads = threads;
    (void)tokenize(options, ignore);
    for (const auto* name : {"index", "blocks"})
      EXPECT_EQ(read_all(folder / std::to_string(threads) / name), read_all(folder / "1" / name)) << threads;
  }
}

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

TEST(Tokenize, EndsWithTheSameBytesHoweverOftenItIsInterrupted) {
  const TemporaryFolder folder(memory());
  write_corpus(folder);
  folder.write("d/d.jsonl", "{\"text\":\"good\"}\nbad\n{}\n");
  std::mt19937 random(3);
  for (const std::uint32_t block : {repetitions(7'000, 50'000), 100'000U, 400'000U}) {
    auto options = options_of(folder / "d", folder / "whole");
    options.block_tokens = block;
    options.skip_bad = true;
    fs::remove_all(folder / "whole");
    const auto whole = tokenize(options, ignore);
    EXPECT_EQ(whole.info.source.skipped, 2U);
    options.out = folder / "s";
    fs::remove_all(folder / "s");
    options.commit_every = 0;
    int interruptions = 0;
    while (!fs::exists(folder / "s")) {
      auto left = 1 + random() % (whole.info.blocks() / 4 + 2);
      try {
        const auto report = tokenize(options, [&](const TokenizeProgress&) {
          if (left-- == 0) throw Interrupted();
        });
        EXPECT_EQ(report.resumed_at > 0, interruptions > 0);
      } catch (const Interrupted&) {
        ++interruptions;
      }
    }
    EXPECT_GT(interruptions, 0) << block;
    EXPECT_FALSE(fs::exists(folder / "s.partial"));
    for (const auto* name : {"index", "blocks"})
      EXPECT_EQ(read_all(folder / "s" / name), read_all(folder / "whole" / name)) << block;
  }
}

TEST(Tokenize, GoesOnOnlyWithWhatItWasBegunWith) {
  const TemporaryFolder folder(memory());
  write_corpus(folder);
  auto options = options_of(folder / "d", folder / "s");
  options.commit_every = 0;
  int left = 5;
  const auto interrupt = [&](const TokenizeProgress&) {
    if (left-- == 0) throw Interrupted();
  };
  EXPECT_THROW((void)tokenize(options, interrupt), Interrupted);
  const auto refused = [&](const std::string& why) {
    EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
                AllOf(HasSubstr(why), HasSubstr("remove " + (folder / "s.partial").string())));
  };
  options.level = 3;
  refused("--level is 3, but was 1");
  options.level = 1;
  options.block_tokens = 2000;
  refused("--block is 2000, but was 1000");
  options.block_tokens = 1000;
  folder.write("d/e.txt", "the end, changed");
  refused("SRC is 43 files");
}

TEST(Tokenize, NoticesThatTheTextIsNotWhatItWas) {
  const TemporaryFolder folder(memory());
  const auto text = random_text(3'000'000, 5);
  const auto file = folder.write("x.txt", text);
  auto options = options_of(file, folder / "s");
  options.commit_every = 0;
  int left = 500;  // within the first half of the first piece
  EXPECT_THROW((void)tokenize(options,
                              [&](const TokenizeProgress&) {
                                if (left-- == 0) throw Interrupted();
                              }),
               Interrupted);
  const auto time = fs::last_write_time(file);
  auto other = text;
  other[1000] = other[1000] == '0' ? '1' : '0';
  folder.write("x.txt", other);
  fs::last_write_time(file, time);
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("the text differs from what"));
  folder.write("x.txt", text);
  fs::last_write_time(file, time);
  EXPECT_GT(tokenize(options, ignore).resumed_at, 0U);
  EXPECT_EQ(text_of(*open_store(folder / "s")), text + "|");
}

TEST(Tokenize, LeavesNothingWhereItFailsBeforeThereIsAnythingToGoOnFrom) {
  const TemporaryFolder folder(memory());
  const auto file = folder.write("x.jsonl", "{\"text\":\"good\"}\nbad\n");
  auto options = options_of(file, folder / "s");
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
              HasSubstr(file.string() + ", line 2, offset 16: not a line of JSON"));
  EXPECT_FALSE(fs::exists(folder / "s"));
  EXPECT_FALSE(fs::exists(folder / "s.partial"));
  options.skip_bad = true;
  const auto report = tokenize(options, ignore);
  EXPECT_EQ(report.info.source.skipped, 1U);
  EXPECT_THAT(report.bad, ElementsAre(HasSubstr("line 2, offset 16")));
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("already exists"));
}

TEST(Tokenize, SaysThatThereIsNoText) {
  const TemporaryFolder folder(memory());
  folder.write("d/empty.txt", "");
  folder.write("d/bad.jsonl", "bad\n");
  auto options = options_of(folder / "d", folder / "s");
  options.skip_bad = true;
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("the sources contain no text: 2 files, with 1 empty and 1 bad documents"));
}

TEST(Tokenize, RefusesWhatItCannotMake) {
  const TemporaryFolder folder(memory());
  const auto file = folder.write("x.txt", "text");
  auto options = options_of(file, folder / "s");
  options.tokenizer = "vocab:100";
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("cannot read text"));
  options.tokenizer = "bytes";
  options.level = 40;
  EXPECT_THAT(error_of(ErrorKind::config, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("level of zstd"));
  options.level = 1;
  options.block_tokens = 1;
  EXPECT_THAT(error_of(ErrorKind::config, [&] { (void)tokenize(options, ignore); }),
              HasSubstr("ids in a block"));
}

}  // namespace
}  // namespace isthmus::data
