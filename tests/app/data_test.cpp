// `isthmus data` as users run it: stores are built, interrupted at any time, inspected and damaged.

#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "site.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string some_text(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) text += std::to_string(random() % 1000) + (random() % 9 == 0 ? "\n" : " word ");
  text.resize(bytes);
  return text;
}

void write_corpus(const fs::path& folder) {
  fs::create_directories(folder);
  std::ofstream(folder / "a.txt") << some_text(6'000'000, 1);
  std::ofstream lines(folder / "b.jsonl");
  for (std::uint32_t i = 0; i < 4000; ++i)
    lines << R"({"id": )" << i << R"(, "text": ")" << std::string(i % 700, 'x') << "\"}\n";
  lines << "bad\n";
  std::ofstream(folder / "c.txt") << "the end";
}

std::vector<std::string> tokenize_words(const Site& site, const fs::path& out,
                                        const std::string& on_bad = "skip") {
  return {"data",    "tokenize",   (site / "texts").string(),
          "--out",   out.string(), "--tokenizer",
          "bytes",   "--on-bad",   on_bad,
          "--block", "20000"};
}

TEST(Data, MakesAStoreAndShowsIt) {
  Site site;
  write_corpus(site / "texts");
  const auto made = site.isthmus(tokenize_words(site, site / "store"));
  ASSERT_EQ(made.status, 0) << made.report();
  EXPECT_THAT(made.output,
              AllOf(HasSubstr("in 3996 documents"), HasSubstr("left out   6 empty and 1 bad documents"),
                    HasSubstr("skipped: " + (site / "texts" / "b.jsonl").string() + ", line 4001")));
  const auto shown = site.isthmus({"data", "show", (site / "store").string(), "--verify"});
  ASSERT_EQ(shown.status, 0) << shown.report();
  EXPECT_THAT(shown.output, AllOf(HasSubstr("in 3996 documents"), HasSubstr("zstd 1"),
                                  HasSubstr("verified: the checksums of all")));
  const auto again = site.isthmus(tokenize_words(site, site / "store"));
  EXPECT_EQ(again.status, 3) << again.report();
  EXPECT_THAT(again.output, HasSubstr("already exists"));

  // Change a byte in the middle of the blocks.
  auto blocks = read_all(site / "store" / "blocks");
  blocks[blocks.size() / 2] = static_cast<char>(blocks[blocks.size() / 2] ^ 1);
  std::ofstream(site / "store" / "blocks", std::ios::binary) << blocks;
  EXPECT_EQ(site.isthmus({"data", "show", (site / "store").string()}).status, 0);
  const auto damaged = site.isthmus({"data", "show", (site / "store").string(), "--verify"});
  EXPECT_EQ(damaged.status, 3) << damaged.report();
  EXPECT_THAT(damaged.output, AllOf(HasSubstr((site / "store" / "blocks").string() + ", offset "),
                                    HasSubstr("do not match their checksum"), HasSubstr("1 of ")));
}

TEST(Data, FailsAtABadDocumentAndNamesIt) {
  Site site;
  write_corpus(site / "texts");
  const auto result = site.isthmus(tokenize_words(site, site / "store", "fail"));
  EXPECT_EQ(result.status, 3) << result.report();
  EXPECT_THAT(result.output, HasSubstr((site / "texts" / "b.jsonl").string() + ", line 4001, offset "));
  EXPECT_FALSE(fs::exists(site / "store"));
}

TEST(Data, GoesOnWhereItWasKilledAndEndsWithTheSameBytes) {
  Site site;
  write_corpus(site / "texts");
  const auto whole = site.isthmus(tokenize_words(site, site / "whole"));
  ASSERT_EQ(whole.status, 0) << whole.report();
  std::mt19937 random(7);
  int killed = 0;
  for (int attempt = 0; killed == 0 || !fs::exists(site / "store"); ++attempt) {
    ASSERT_LT(attempt, 200) << "interrupted runs make no progress";
    // A command that finished before it could be killed has tested nothing.
    fs::remove_all(site / "store");
    auto words = tokenize_words(site, site / "store");
    words.insert(words.begin(), {coordinator_program});  // the coordinator's program starts faster
    // The number of threads differs from run to run, which must not show in the result. Packing is slow, so
    // that kills interrupt it.
    words.insert(words.end(), {"--commit-every", "0", "--threads", std::to_string(1 + attempt % 3)});
    Command command(words, site / "log");
    // Kill the command after it has written a random number of further bytes, which does not depend on the
    // machine's speed.
    const auto blocks = site / "store.partial" / "store" / "blocks";
    const auto size = [&] {
      std::error_code error;
      const auto bytes = fs::file_size(blocks, error);
      return error ? 0 : bytes;
    };
    const auto enough = size() + random() % 700'000;
    while (command.running() && size() <= enough) std::this_thread::yield();
    if (command.running()) command.signal(random() % 3 == 0 ? SIGINT : SIGKILL);
    const auto result = command.wait();
    killed += result.status == 137 || result.status == 130;
    ASSERT_THAT(result.status, AnyOf(0, 130, 137)) << result.report();
  }
  // A command that was killed after its last rename leaves its journal, which the next one removes.
  if (fs::exists(site / "store.partial")) {
    const auto last = site.isthmus(tokenize_words(site, site / "store"));
    EXPECT_EQ(last.status, 0) << last.report();
    EXPECT_THAT(last.output, HasSubstr("was already complete"));
  }
  EXPECT_FALSE(fs::exists(site / "store.partial"));
  for (const auto* name : {"index", "blocks"})
    EXPECT_EQ(read_all(site / "store" / name), read_all(site / "whole" / name)) << name;
}

TEST(Data, GoesOnWithStandardInputIfItIsTheSame) {
  Site site;
  std::string stream;
  for (std::uint32_t i = 0; i < 20'000; ++i)
    stream += R"({"text": ")" + std::string(1 + i % 900, static_cast<char>('a' + i % 26)) + "\"}\n";
  const auto file = site.write("stream", stream).string();
  const auto tokenize = [&](const char* out) {
    return std::string(coordinator_program) +
           " data tokenize - --jsonl --block 20000 --commit-every 0 --out " + (site / out).string() +
           " --tokenizer bytes";
  };
  const auto run = [&](const std::string& command) {
    return run_command({"/bin/sh", "-c", command}, site / "log");
  };
  const auto whole = run("cat " + file + " | " + tokenize("whole"));
  ASSERT_EQ(whole.status, 0) << whole.report();
  // A pipe that delivers the first half and then nothing, until the reader is killed.
  ASSERT_EQ(::mkfifo((site / "pipe").c_str(), 0600), 0);
  {
    Command reading({"/bin/sh", "-c", "exec " + tokenize("store") + " < " + (site / "pipe").string()},
                    site / "log");
    std::ofstream pipe(site / "pipe", std::ios::binary);
    pipe << stream.substr(0, stream.size() / 2);
    pipe.flush();
    ASSERT_TRUE(eventually([&] { return fs::exists(site / "store.partial" / "journal"); }))
        << reading.output();
    reading.signal(SIGKILL);
    EXPECT_EQ(reading.wait().status, 137);
  }
  const auto shorter = run("head -c 9 " + file + " | " + tokenize("store"));
  EXPECT_EQ(shorter.status, 3) << shorter.report();
  // Which check notices it first depends on how far the journal was.
  EXPECT_THAT(shorter.output,
              AnyOf(HasSubstr("standard input: has ended after 9 bytes"), HasSubstr("not a line of JSON")));
  const auto other = run("sed 3s/cc/dd/ " + file + " | " + tokenize("store"));
  EXPECT_EQ(other.status, 3) << other.report();
  EXPECT_THAT(other.output, AnyOf(HasSubstr("differ from what the interrupted run had read"),
                                  HasSubstr("the text differs from what")));
  const auto again = run("cat " + file + " | " + tokenize("store"));
  ASSERT_EQ(again.status, 0) << again.report();
  EXPECT_THAT(again.output, HasSubstr(" ids of an earlier run"));
  for (const auto* name : {"index", "blocks"})
    EXPECT_EQ(read_all(site / "store" / name), read_all(site / "whole" / name)) << name;
}

TEST(Data, IsInBothBinariesAndSaysWhatItNeeds) {
  Site site;
  write_corpus(site / "texts");
  auto words = tokenize_words(site, site / "store");
  words.insert(words.begin(), {coordinator_program});
  const auto made = run_command(words, site / "log");
  ASSERT_EQ(made.status, 0) << made.report();
  const auto none =
      site.isthmus({"data", "tokenize", "-", "--out", (site / "x").string(), "--tokenizer", "bytes"});
  EXPECT_EQ(none.status, 2) << none.report();
  EXPECT_THAT(none.output, HasSubstr("--jsonl or --text"));
  const auto missing = site.isthmus({"data", "show", (site / "texts").string()});
  EXPECT_EQ(missing.status, 3) << missing.report();
  EXPECT_THAT(missing.output, HasSubstr((site / "texts" / "index").string()));
}

TEST(Data, MeasuresSettingsOfAStoreAndOfText) {
  Site site;
  write_corpus(site / "texts");
  const auto made = site.isthmus(tokenize_words(site, site / "store"));
  ASSERT_EQ(made.status, 0) << made.report();
  for (const auto* what : {"store", "texts"}) {
    const auto tuned = site.isthmus({"data", "tune", (site / what).string(), "--sample", "1"});
    ASSERT_EQ(tuned.status, 0) << tuned.report();
    EXPECT_THAT(tuned.output,
                AllOf(HasSubstr("decompress"), HasSubstr("choice: --block "), HasSubstr(" zstd 3 ")));
  }
}

}  // namespace
}  // namespace isthmus
