#include "order/mixture.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "data_support.h"
#include "isthmus/data/heldout.h"
#include "loader/window_reader.h"
#include "store/store_writer.h"

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
  std::string many = "a = 1";
  for (int i = 0; i < 1023; ++i) many += "; b = 1";
  EXPECT_EQ(parse_mixture(many).size(), 1024U);
  EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(parse_mixture(many + "; c = 1")); }),
              testing::HasSubstr("names 1025 data sets"));
  DataConfig config;
  config.mixture = "a = 1e308; b = 1e308";
  EXPECT_THAT(error_of(ErrorKind::config, [&] { static_cast<void>(config.parts()); }),
              testing::HasSubstr("add up"));
  config.path = "x";
  config.mixture = "a = 1; b = 3";
  error_of(ErrorKind::config, [&] { static_cast<void>(config.parts()); });
  config.path.clear();
  EXPECT_EQ(config.parts()[1].weight, 0.75);
}

/// Two data sets of 1,000 ids each; sequences of 4.
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
  OneTrack source;
  Loader loader(corpus, options, source, *device, trace);
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
  OneTrack from_start, from_there(0, 1500);
  Loader whole(corpus, options, from_start, *device, trace);
  for (int i = 0; i < 150; ++i) whole.next();
  Loader later(corpus, options, from_there, *device, trace);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(inputs_of(later.next()), inputs_of(whole.next()));
}

TEST_F(MixedCorpus, IsReadAsItsDataSetsOneAfterAnother) {
  EXPECT_EQ(corpus.tokens(Split::train), 1600U);
  const auto train = tokens_of(corpus, Split::train);
  EXPECT_EQ(train[799], 799);
  EXPECT_EQ(train[800], 1000);
  EXPECT_EQ(tokens_of(corpus, Split::heldout)[200], 1800);
}

/// Adds a run and merges it with the previous run if it continues that one.
void append(std::vector<SampleRange>& runs, const SampleRange& run) {
  if (!runs.empty() && runs.back().track == run.track && runs.back().end == run.begin)
    runs.back().end = run.end;
  else
    runs.push_back(run);
}

/// The first `count` sequences of the runs.
std::vector<SampleRange> front_of(const std::vector<SampleRange>& runs, std::uint64_t count) {
  std::vector<SampleRange> out;
  for (const auto& run : runs) {
    const auto taken = std::min(run.size(), count);
    if (taken > 0) append(out, {run.track, run.begin, run.begin + taken});
    count -= taken;
  }
  return out;
}

// Mixes a store and a file, read in groups of blocks, with text, of which each window is drawn separately.
RC_GTEST_PROP(MixtureProperty, BatchesAreTheWindowsThatTheNumbersSay, ()) {
  static const TemporaryFolder folder;
  static const auto mixture = [] {
    std::mt19937 random(1);
    std::vector<std::uint32_t> ids(3000);
    std::string bin, text;
    for (auto& id : ids) id = random() % 256;
    for (int i = 0; i < 150'000; ++i) (bin += static_cast<char>(random() % 256)) += '\0';
    for (int i = 0; i < 500; ++i) text += static_cast<char>(random() % 256);
    StoreSpec spec;
    spec.vocab_size = 256;
    spec.tokenizer = make_tokenizer("bytes")->fingerprint();
    spec.block_tokens = 100;
    write_store(folder / "store", spec, ids, std::vector<std::uint64_t>{0, 1001});
    return (folder / "store").string() + " = 6; " + folder.write("ids.bin", bin).string() + " = 3; " +
           folder.write("a.txt", text).string() + " = 1";
  }();
  auto config = config_of("", *rc::gen::element(1, 7, 50, 100, 130), 0.1);
  config.mixture = mixture;
  const Corpus corpus(config);
  LoaderOptions options;
  options.seq_len = config.seq_len;
  options.batch = *rc::gen::element(1, 5, 40);
  options.replicas = *rc::gen::element(1, 2, 7);
  options.seed = 3;
  options.prefetch = *rc::gen::element(1, 2, 64);
  options.threads = *rc::gen::element(1, 3);
  options.shuffle_blocks = *rc::gen::element(1, 2, 7);
  constexpr int batches = 20;
  const auto sequences = batches * static_cast<std::uint64_t>(options.batch);
  // More tracks than replicas, so that some tracks use another seed.
  const auto runs = random_runs(*rc::gen::arbitrary<std::uint32_t>(), *rc::gen::element(1, 3, 10),
                                *rc::gen::element(1, 20, 1000), sequences);

  std::vector<double> weights;
  for (const auto& set : corpus.sets()) weights.push_back(set.weight());
  const auto length = static_cast<std::uint64_t>(options.seq_len);
  const auto shares = static_cast<std::uint64_t>(options.replicas);
  std::map<std::uint64_t, Mixture> turns;  // by seed
  std::vector<std::byte> expected(2 * (length + 1));
  const auto is_window = [&](const std::byte* row, std::uint64_t track, std::uint64_t sequence) {
    const auto seed = 3 + track / shares;
    const auto turn = turns.try_emplace(seed, weights, seed).first->second.at(sequence);
    const auto& set = corpus.sets()[turn.set];
    const Sampler sampler(window_count(set.tokens(Split::train), length), track % shares, shares, seed,
                          shuffle_of(set, length, static_cast<std::uint64_t>(options.shuffle_blocks)));
    set.read(Split::train, sampler.at(turn.sequence).window * length, length + 1, 2, expected.data());
    return std::memcmp(row, expected.data(), expected.size()) == 0;
  };

  const auto device = make_cpu_device();
  Trace trace;
  ListedRuns source(runs, *rc::gen::element(1, 7, 100'000));
  Loader loader(corpus, options, source, *device, trace);
  std::vector<SampleRange> in_order;
  for (int i = 0; i < batches; ++i) {
    const auto& batch = loader.next();
    auto row = batch.rows.begin();
    for (const auto& samples : batch.samples) {
      for (auto sequence = samples.begin; sequence < samples.end; ++sequence)
        RC_ASSERT(is_window(*row++, samples.track, sequence));
      append(in_order, samples);
    }
    RC_ASSERT(row == batch.rows.end());
  }
  RC_ASSERT(in_order == front_of(runs, sequences));
}

}  // namespace
}  // namespace isthmus::data
