#include "isthmus/data/heldout.h"

#include "data_support.h"
#include "isthmus/data/sampler.h"

namespace isthmus::data {
namespace {

Corpus counting_corpus(const TemporaryFolder& folder, double heldout) {
  auto config = config_of(folder.write("ids.bin", counting_ids(2000)), 4, heldout);
  config.tokenizer = "vocab:2000";
  return Corpus(config);
}

TEST(HeldOut, BatchesAreEvenlySpacedWindowsOfTheHeldOutPart) {
  const TemporaryFolder folder;
  const auto corpus = counting_corpus(folder, 0.1);  // ids 1800 .. 1999: 49 windows of 4
  const auto device = make_cpu_device();
  const HeldOut heldout(corpus, 4, 10, 4, *device);
  const auto batches = heldout.share(0, 1);
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(batches[0].sequences(), 4);
  EXPECT_EQ(batches[2].sequences(), 2);
  std::uint64_t index = 0;
  for (const auto& batch : batches) {
    for (std::int64_t b = 0; b < batch.sequences(); ++b) {
      const auto window =
          static_cast<std::int64_t>(heldout_window(index + static_cast<std::uint64_t>(b), 10, 49));
      for (std::int64_t i = 0; i <= 4; ++i)
        EXPECT_EQ(row_of(batch, b)[static_cast<std::size_t>(i)], 1800 + window * 4 + i);
    }
    index += batch.sequences();
  }
}

TEST(HeldOut, SharesHaveEverySequenceOnceWhateverTheBatches) {
  const TemporaryFolder folder;
  const auto corpus = counting_corpus(folder, 0.1);
  const auto device = make_cpu_device();
  const auto first_ids = [](const std::vector<Batch>& batches) {
    std::vector<std::int64_t> ids;
    for (const auto& batch : batches) {
      for (std::int64_t b = 0; b < batch.sequences(); ++b) ids.push_back(row_of(batch, b)[0]);
    }
    return ids;
  };
  const HeldOut whole(corpus, 4, 10, 64, *device);
  for (const std::uint64_t members : {1U, 3U, 4U, 12U}) {
    std::vector<std::int64_t> together;
    for (std::uint64_t m = 0; m < members; ++m) {
      const HeldOut of_member(corpus, 4, 10, static_cast<std::int64_t>(1 + 2 * m), *device);
      const auto ids = first_ids(of_member.share(m, members));
      together.insert(together.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(together, first_ids(whole.share(0, 1))) << members << " members";
  }
}

TEST(HeldOut, TakesWhatThereIs) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device();
  const HeldOut all(counting_corpus(folder, 0.1), 4, 1000, 64, *device);
  ASSERT_EQ(all.share(0, 1).size(), 1U);
  EXPECT_EQ(all.share(0, 1)[0].sequences(), 49);
  EXPECT_EQ(all.sequences(), 49);
  const HeldOut none(counting_corpus(folder, 0), 4, 10, 4, *device);
  EXPECT_EQ(none.sequences(), 0);
  EXPECT_TRUE(none.share(0, 1).empty());
}

}  // namespace
}  // namespace isthmus::data
