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
  ASSERT_EQ(heldout.batches().size(), 3U);
  EXPECT_EQ(heldout.batches()[0].sequences, 4);
  EXPECT_EQ(heldout.batches()[2].sequences, 2);
  std::uint64_t index = 0;
  for (const auto& batch : heldout.batches()) {
    for (std::int64_t i = 0; i < batch.sequences * batch.seq_len; ++i) {
      const auto window = static_cast<std::int64_t>(heldout_window(index + i / 4, 10, 49));
      EXPECT_EQ(batch.inputs[i], 1800 + window * 4 + i % 4);
      EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
    }
    index += batch.sequences;
  }
}

TEST(HeldOut, TakesWhatThereIs) {
  const TemporaryFolder folder;
  const auto device = make_cpu_device();
  const HeldOut all(counting_corpus(folder, 0.1), 4, 1000, 64, *device);
  ASSERT_EQ(all.batches().size(), 1U);
  EXPECT_EQ(all.batches()[0].sequences, 49);
  EXPECT_TRUE(HeldOut(counting_corpus(folder, 0), 4, 10, 4, *device).batches().empty());
}

}  // namespace
}  // namespace isthmus::data
