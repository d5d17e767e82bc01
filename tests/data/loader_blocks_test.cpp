// The loader on a data set of many blocks, which are read ahead in groups.

#include <array>
#include <numeric>
#include <set>

#include "data_support.h"
#include "isthmus/data/loader.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

using Row = std::vector<std::int64_t>;

/// 700,000 wide ids: 21 full blocks of 32 windows of 1,000 and a short one, in groups of two.
class BlocksTest : public testing::Test {
 protected:
  static constexpr std::uint32_t ids = 700'000;
  Corpus make() {
    std::vector<std::uint32_t> values(ids);
    std::iota(values.begin(), values.end(), 0);
    std::array<std::uint32_t, 256> header{20240801, 7, ids};
    auto config = config_of(
        folder.write("ids.bin", std::string(reinterpret_cast<const char*>(header.data()), sizeof header) +
                                    std::string(reinterpret_cast<const char*>(values.data()), 4 * ids)),
        length, 0);
    config.tokenizer = "vocab:700000";
    return Corpus(config);
  }
  static LoaderOptions options() {
    LoaderOptions out;
    out.seq_len = length;
    out.batch = 7;
    out.shuffle_blocks = 2;
    return out;
  }
  std::vector<Row> inputs(const LoaderOptions& of, int count, OneTrack from = OneTrack()) {
    Loader loader(corpus, of, from, *device, trace);
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) rows.push_back(inputs_of(loader.next()));
    return rows;
  }
  static constexpr std::int64_t length = 1000;
  static constexpr std::uint64_t windows = 699;

  TemporaryFolder folder;
  Corpus corpus = make();
  std::unique_ptr<Device> device = make_cpu_device();
  OneTrack source;
  Trace trace;
};

TEST_F(BlocksTest, EveryWindowComesOnceInEachEpochAndWhole) {
  auto one = options();
  one.batch = 1;
  Loader loader(corpus, one, source, *device, trace);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> firsts;
    for (std::uint64_t i = 0; i < windows; ++i) {
      const auto& batch = loader.next();
      ASSERT_EQ(batch.epoch, epoch);
      const auto row = row_of(batch, 0);
      ASSERT_EQ(row.front() % length, 0);
      ASSERT_EQ(row.back(), row.front() + length);
      ASSERT_TRUE(firsts.insert(row.front()).second);
    }
    ASSERT_EQ(firsts.size(), windows);
  }
}

TEST_F(BlocksTest, BatchesDoNotDependOnThreadsOrPrefetch) {
  const auto expected = inputs(options(), 250);
  auto other = options();
  other.threads = 4;
  other.prefetch = 5;
  EXPECT_EQ(inputs(other, 250), expected);
}

TEST_F(BlocksTest, ResumingIsSkippingWhereverItIs) {
  const auto whole = inputs(options(), 250);
  for (const int skipped : {1, 17, 99, 100, 101, 199}) {
    const OneTrack later(0, 7 * static_cast<std::uint64_t>(skipped));
    EXPECT_EQ(inputs(options(), 20, later),
              std::vector<Row>(whole.begin() + skipped, whole.begin() + skipped + 20));
  }
}

TEST_F(BlocksTest, ReplicasShareNoWindow) {
  std::set<std::int64_t> seen;
  auto third = options();
  third.batch = 1;
  third.replicas = 3;
  for (std::uint64_t replica = 0; replica < 3; ++replica) {
    for (const auto& row : inputs(third, 150, OneTrack(replica)))
      ASSERT_TRUE(seen.insert(row.front()).second);
  }
}

TEST_F(BlocksTest, RunsOfSeveralTracksAreWhatALoaderOfEachGives) {
  auto shared = options();
  shared.replicas = 2;
  std::vector<std::vector<Row>> of_track;
  auto single = shared;
  single.batch = 1;
  for (std::uint64_t track = 0; track < 5; ++track) of_track.push_back(inputs(single, 400, OneTrack(track)));
  const std::vector<SampleRange> runs = {{0, 0, 150},  {3, 10, 60},   {0, 150, 151}, {4, 0, 200},
                                         {1, 90, 300}, {0, 151, 152}, {2, 7, 8},     {2, 8, 300}};
  ListedRuns source_of_runs(runs, 45);
  Loader loader(corpus, shared, source_of_runs, *device, trace);
  auto row = inputs_of(loader.next());
  std::size_t next = 0;
  for (const auto& run : runs) {
    for (auto sequence = run.begin; sequence < run.end; ++sequence, ++next) {
      if (next == 7) {
        row = inputs_of(loader.next());
        next = 0;
      }
      const auto at = row.begin() + static_cast<std::ptrdiff_t>(next) * length;
      ASSERT_TRUE(std::equal(at, at + length, of_track[run.track][sequence].begin()))
          << "track " << run.track << ", sequence " << sequence;
    }
  }
}

TEST_F(BlocksTest, TheSourceIsAskedForWhatIsReadAheadMoreThanBatches) {
  // Two threads read ahead four blocks each, in four groups; the last group of an epoch may have three
  // blocks.
  constexpr std::uint64_t ahead = 5 * 3 * 32;
  ListedRuns counting({{0, 0, 1}}, 50);
  Loader loader(corpus, options(), counting, *device, trace);
  for (std::uint64_t taken = 1; taken <= 200; ++taken) {
    loader.next();
    ASSERT_GE(counting.given(), 7 * taken + ahead);
    ASSERT_LE(counting.given(), 7 * (taken + 2) + ahead);
  }
}

TEST_F(BlocksTest, AStoreGivesTheSameBatchesAsTheIdsThatItWasMadeOf) {
  std::vector<std::uint32_t> values(ids);
  std::iota(values.begin(), values.end(), 0);
  const std::vector<std::uint64_t> starts = {0};
  StoreSpec spec;
  spec.vocab_size = ids;
  // Blocks with as many windows as the file's; then a block size that is not a multiple of the window.
  for (const std::uint32_t block : {32768U, 32500U}) {
    spec.block_tokens = block;
    const auto store = folder / ("store" + std::to_string(block));
    write_store(store, spec, values, starts);
    auto config = config_of(store, length, 0);
    config.tokenizer = "vocab:700000";
    const Corpus packed(config);
    OneTrack one, same;
    Loader from_store(packed, options(), one, *device, trace);
    Loader from_file(corpus, options(), same, *device, trace);
    for (int i = 0; i < 250; ++i) ASSERT_EQ(inputs_of(from_store.next()), inputs_of(from_file.next()));
  }
}

TEST_F(BlocksTest, AFaultInABlockIsThrownAndAFileThatShrinksIsNamed) {
  Loader loader(corpus, options(), source, *device, trace);
  loader.next();
  std::filesystem::resize_file(folder / "ids.bin", 5000);
  EXPECT_THAT(error_of(ErrorKind::data,
                       [&] {
                         for (int i = 0; i < 300; ++i) loader.next();
                       }),
              testing::AllOf(testing::HasSubstr("ids.bin"), testing::HasSubstr("shorter")));
}

TEST_F(BlocksTest, EndsAtAnyMoment) {
  for (int taken = 0; taken < 30; ++taken) {
    auto many = options();
    many.threads = 3;
    OneTrack track;
    Loader loader(corpus, many, track, *device, trace);
    for (int i = 0; i < taken; ++i) loader.next();
  }
}

}  // namespace
}  // namespace isthmus::data
