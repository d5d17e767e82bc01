// The choice of settings, and sampling ids from text, stores and files.

#include "isthmus/data/tune.h"

#include "data_support.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

using ::testing::HasSubstr;

TuneRow row(std::uint32_t block, double ratio, double compress, double decompress) {
  TuneRow row;
  row.spec.block_tokens = block;
  row.ratio = ratio;
  row.compress = compress * 1e6;
  row.decompress = decompress * 1e6;
  return row;
}

std::size_t choice_of(std::vector<TuneRow> rows, const std::string& why) {
  TuneReport report;
  report.rows = std::move(rows);
  choose(report);
  EXPECT_THAT(report.reason, HasSubstr(why));
  return report.choice;
}

TEST(Tune, TakesTheSmallestThatIsFastEnough) {
  EXPECT_EQ(choice_of({row(16384, 1, 9000, 9000), row(16384, 3, 300, 1000), row(16384, 4, 99, 1000),
                       row(16384, 5, 300, 499)},
                      "smallest of those that pack 100 MB/s"),
            1U);
}

TEST(Tune, TakesSmallerBlocksWhereTheyCostNext) {
  const auto large = row(262144, 4.0, 300, 1000), middle = row(65536, 3.93, 300, 1000),
             small = row(16384, 3.91, 300, 1000);
  EXPECT_EQ(choice_of({large, middle, small}, "to within 2 %"), 1U);
  const auto slower = row(65536, 3.95, 200, 1000);
  EXPECT_EQ(choice_of({slower, middle, small}, "smallest of those"), 2U) << "3.91 is within 2 % of 3.95";
  EXPECT_EQ(choice_of({large, slower, middle}, "to within 2 %"), 2U) << "of equal blocks the faster setting";
}

TEST(Tune, TakesTheFastestWhereNoneIsFastEnough) {
  EXPECT_EQ(choice_of({row(16384, 5, 50, 300), row(16384, 2, 90, 400)}, "unpacks fastest"), 1U);
}

TEST(Tune, SamplesTextBinFilesAndStores) {
  const TemporaryFolder folder(memory());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "line " + std::to_string(i) + "\n";
  folder.write("texts/a.txt", text);
  folder.write("texts/b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  folder.write("ids.bin", counting_ids(30000));
  StoreSpec spec;
  spec.vocab_size = 70000;
  const std::vector<std::uint32_t> ids(5000, 69999);
  const std::uint64_t start = 0;
  write_store(folder / "store", spec, ids, {&start, 1});
  const struct {
    const char* name;
    std::uint64_t least, most;
    std::uint32_t width;
  } cases[] = {{"texts", 100'000, 600'000, 2}, {"ids.bin", 30000, 30000, 2}, {"store", 5000, 5000, 4}};
  for (const auto& [name, least, most, width] : cases) {
    TuneOptions options;
    options.path = folder / name;
    options.rounds = 1;
    options.sample_bytes = 1'000'000;
    double last = 0;
    const auto report = tune(options, [&](double done) { last = done; });
    EXPECT_DOUBLE_EQ(last, 1);
    EXPECT_GE(report.sampled_tokens, least) << name;
    EXPECT_LE(report.sampled_tokens, most) << name;
    EXPECT_EQ(report.width, width) << name;
    EXPECT_EQ(report.rows.size(), 21U);
    for (const auto& each : report.rows) {
      EXPECT_GT(each.ratio, 0.9) << name;
      EXPECT_GT(each.compress, 0) << name;
      EXPECT_GT(each.decompress, 0) << name;
    }
  }
  TuneOptions options;
  options.path = folder / "nothing";
  EXPECT_THAT(error_of(ErrorKind::data, [&] { (void)tune(options, [](double) {}); }),
              HasSubstr("does not exist"));
}

}  // namespace
}  // namespace isthmus::data
