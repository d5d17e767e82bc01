#include "ids/id_files.h"

#include <array>

#include "data_support.h"

namespace isthmus::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::array<std::int32_t, 256> header{magic, version, count};
  return {reinterpret_cast<const char*>(header.data()), sizeof header};
}

std::string wide_ids(std::uint32_t first, std::uint32_t count) {
  std::string bytes;
  for (auto id = first; id < first + count; ++id) bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
  return bytes;
}

Corpus corpus_of(const std::filesystem::path& path, const std::string& tokenizer, double heldout = 0.1,
                 std::int64_t separator = -1) {
  auto config = config_of(path, 4, heldout);
  config.tokenizer = tokenizer;
  config.separator = separator;
  return Corpus(config);
}

std::string refusal_of_ids(const std::filesystem::path& path) {
  return error_of(ErrorKind::data, [&] { corpus_of(path, "vocab:70000"); });
}

TEST(IdFiles, LlmcsNarrowAndWideIdsAreRead) {
  const TemporaryFolder folder;
  const auto narrow = folder.write("narrow.bin", llmc_header(20240520, 1, 1000) + counting_ids(1000));
  const auto corpus = corpus_of(narrow, "vocab:1000");
  EXPECT_EQ(corpus.tokens(Split::train), 900U);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[99], 999);
  const auto wide = folder.write("wide.bin", llmc_header(20240801, 7, 500) + wide_ids(65000, 500));
  const auto large = corpus_of(wide, "vocab:128256");
  EXPECT_EQ(large.width(), 4U);
  EXPECT_EQ(tokens_of(large, Split::train)[0], 65000);
  EXPECT_EQ(tokens_of(large, Split::heldout)[49], 65499);
}

TEST(IdFiles, IdsOfAnotherWidthThanBatchesAreConverted) {
  const TemporaryFolder folder;
  const auto wide = folder.write("wide.bin", llmc_header(20240801, 7, 500) + wide_ids(0, 500));
  const auto narrowed = corpus_of(wide, "vocab:500");
  EXPECT_EQ(narrowed.width(), 2U);
  EXPECT_EQ(tokens_of(narrowed, Split::train)[449], 449);
  const auto widened = corpus_of(folder.write("n.bin", counting_ids(500)), "vocab:100000");
  EXPECT_EQ(widened.width(), 4U);
  EXPECT_EQ(tokens_of(widened, Split::train)[449], 449);
}

TEST(IdFiles, AnLlmcFileThatDoesNotFitItsHeaderIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of_ids(folder.write("v.bin", llmc_header(20240520, 7, 100) + counting_ids(100))),
              AllOf(HasSubstr("v.bin"), HasSubstr("version 7"), HasSubstr("expected 1")));
  EXPECT_THAT(refusal_of_ids(folder.write("short.bin", llmc_header(20240520, 1, 101) + counting_ids(100))),
              AllOf(HasSubstr("101 ids"), HasSubstr("1226 bytes"), HasSubstr("has 1224")));
  EXPECT_THAT(refusal_of_ids(folder.write("long.bin", llmc_header(20240520, 1, 99) + counting_ids(100))),
              HasSubstr("1222 bytes"));
  EXPECT_THAT(refusal_of_ids(folder.write("minus.bin", llmc_header(20240801, 7, -1))), HasSubstr("-1 ids"));
  EXPECT_THAT(refusal_of_ids(folder.write("most.bin", llmc_header(20240801, 7, 2147483647))),
              HasSubstr("2147483647 ids"));
}

TEST(IdFiles, AFolderOfShardsIsTheirIdsInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  folder.write("shards/b_000002.bin", llmc_header(20240520, 1, 100) + counting_ids(100));
  folder.write("shards/a_000001.bin", counting_ids(300));
  folder.write("shards/empty.bin", "");
  const auto corpus = corpus_of(folder / "shards", "vocab:1000");
  const auto train = tokens_of(corpus, Split::train);
  EXPECT_EQ(train.size(), 360U);
  EXPECT_EQ(train[299], 299);
  EXPECT_EQ(train[300], 0);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[0], 60);
  folder.write("shards/wide.bin", llmc_header(20240801, 7, 1) + wide_ids(5, 1));
  EXPECT_THAT(refusal_of_ids(folder / "shards"), AllOf(HasSubstr("wide.bin"), HasSubstr("one format")));
}

TEST(IdFiles, TheHeldOutPartBeginsWithADocumentWhereTheSeparatorIsKnown) {
  const TemporaryFolder folder;
  auto bytes = counting_ids(1000);
  bytes[2 * 850] = 0;  // ids 850 and 3 become separators
  bytes[2 * 850 + 1] = 0;
  const auto file = folder.write("ids.bin", bytes);
  EXPECT_EQ(corpus_of(file, "vocab:1000", 0.1, 0).tokens(Split::train), 851U);
  EXPECT_EQ(corpus_of(file, "vocab:1000", 0.1).tokens(Split::train), 900U);
  EXPECT_EQ(corpus_of(file, "vocab:1000", 0.1, 999).tokens(Split::train), 900U)
      << "the separator does not occur";
}

TEST(IdFiles, TheHeldOutPartOfShardsBeginsWithADocumentOfAnyOfThem) {
  const TemporaryFolder folder;
  const auto bytes = counting_ids(1000);
  // The first choice is 900. The last 50 ids of the first shard follow, and none of them is a separator.
  folder.write("shards/0.bin", bytes.substr(0, 1900));
  folder.write("shards/1.bin", bytes.substr(1900));
  EXPECT_EQ(corpus_of(folder / "shards", "vocab:1000", 0.1, 820).tokens(Split::train), 821U);
  EXPECT_EQ(corpus_of(folder / "shards", "vocab:1000", 0.1).tokens(Split::train), 900U);
}

TEST(IdFiles, AFileThatShrinksWhileItIsReadIsNamed) {
  const TemporaryFolder folder;
  const auto file = folder.write("ids.bin", counting_ids(100'000));
  const auto corpus = corpus_of(file, "vocab:100000");
  std::filesystem::resize_file(file, 1000);
  EXPECT_THAT(error_of(ErrorKind::data, [&] { tokens_of(corpus, Split::train); }),
              AllOf(HasSubstr("ids.bin"), HasSubstr("offset"), HasSubstr("shorter")));
}

}  // namespace
}  // namespace isthmus::data
