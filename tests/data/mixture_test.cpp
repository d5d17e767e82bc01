#include "mixture.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "data_support.h"
#include "isthmus/data/heldout.h"

namespace isthmus::data {
namespace {

TEST(Mixture, EachDataSetHasItsShareAndItsSequencesInOrder) {
  const std::vector<double> weights = {0.7, 0.25, 0.05};
  const Mixture mixture(weights, 3);
  std::vector<std::uint64_t> next(3, 0);
  for (std::uint64_t k = 0; k < 10 * Mixture::pattern; ++k) {
    for (std::size_t set = 0; set < 3; ++set) ASSERT_EQ(mixture.count(set, k), next[set]);
    const auto turn = mixture.at(k);
    ASSERT_EQ(turn.sequence, next[turn.set]++);
  }
  EXPECT_EQ(next, (std::vector<std::uint64_t>{7170, 2560, 510}));
}

RC_GTEST_PROP(MixtureProperty, EverySlotIsSomebodysWhateverTheWeights, ()) {
  auto weights = *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(
      rc::gen::map(rc::gen::inRange(1, 1'000'000), [](int n) { return static_cast<double>(n) / 1e6; })));
  const auto sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (auto& weight : weights) weight /= sum;
  const Mixture mixture(weights, 1);
  std::uint64_t all = 0;
  for (std::size_t set = 0; set < weights.size(); ++set) {
    const auto slots = mixture.count(set, Mixture::pattern);
    RC_ASSERT(slots >= 1);
    all += slots;
  }
  RC_ASSERT(all == Mixture::pattern);
}

TEST(MixtureConfig, ReadsPathsAndWeights) {
  const auto parts = parse_mixture(" a b.bin = 0.5 ;c=d=2;\n/e=1e1;");
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].path, "a b.bin");
  EXPECT_EQ(parts[1].path, "c=d");
  EXPECT_EQ(parts[2].weight, 10);
  EXPECT_EQ(to_string(parts), "a b.bin = 0.5; c=d = 2; /e = 10");
  for (const char* wrong : {"", "a = 1", "a = 1; b", "a = 1; = 2", "a = 1; b = 0", "a = 1; b = -1",
                            "a = 1; b = nan", "a = 1; b = x", "a = 1;; b = 2", "a = 1; b = 2x"}) {
    EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(parse_mixture(wrong)); }),
                testing::HasSubstr("data.mixture"))
        << wrong;
  }
  DataConfig config;
  config.path = "x";
  config.mixture = "a = 1; b = 3";
  error_of(ErrorKind::config, [&] { static_cast<void>(config.parts()); });
  config.path.clear();
  EXPECT_EQ(config.parts()[1].weight, 0.75);
}

/// 100 ids from `first` on for each data set; sequences of 4.
class MixedCorpus : public testing::Test {
 protected:
  Corpus make() {
    auto config = config_of("", 4, 0.2);
    folder.write("a.bin", counting_ids(1000));
    folder.write("b.bin", counting_ids(2000).substr(2000));  // ids 1000 to 1999
    config.mixture = (folder / "a.bin").string() + " = 3; " + (folder / "b.bin").string() + " = 1";
    config.tokenizer = "vocab:2000";
    return Corpus(config);
  }
  TemporaryFolder folder;
  Corpus corpus = make();
  std::unique_ptr<Device> device = make_cpu_device();
  Trace trace;
};

TEST_F(MixedCorpus, BatchesAndHeldOutSequencesAreMixed) {
  LoaderOptions options;
  options.seq_len = 4;
  options.batch = 64;
  Loader loader(corpus, options, *device, trace);
  std::int64_t a = 0, all = 0;
  for (int i = 0; i < 64; ++i) {
    const auto& batch = loader.next();
    for (std::int64_t b = 0; b < batch.sequences(); ++b, ++all) a += row_of(batch, b)[0] < 1000 ? 1 : 0;
  }
  EXPECT_EQ(a, all * 3 / 4);
  const HeldOut heldout(corpus, 4, 40, 40, *device);
  ASSERT_EQ(heldout.share(0, 1).size(), 1U);
  const auto batch = heldout.share(0, 1)[0];
  a = 0;
  for (std::int64_t b = 0; b < batch.sequences(); ++b) a += row_of(batch, b)[0] < 1000 ? 1 : 0;
  EXPECT_EQ(batch.sequences(), 40);
  EXPECT_EQ(a, 30);
}

TEST_F(MixedCorpus, ResumingIsSkipping) {
  LoaderOptions options;
  options.seq_len = 4;
  options.batch = 10;
  Loader whole(corpus, options, *device, trace);
  for (int i = 0; i < 150; ++i) whole.next();
  options.first_sequence = 1500;
  Loader later(corpus, options, *device, trace);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(inputs_of(later.next()), inputs_of(whole.next()));
}

TEST_F(MixedCorpus, IsReadAsItsDataSetsOneAfterAnother) {
  EXPECT_EQ(corpus.tokens(Split::train), 1600U);
  const auto train = tokens_of(corpus, Split::train);
  EXPECT_EQ(train[799], 799);
  EXPECT_EQ(train[800], 1000);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[200], 1800);
}

}  // namespace
}  // namespace isthmus::data
