#include "isthmus/data/loader.h"

#include <atomic>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "data_support.h"

namespace isthmus::data {
namespace {

using Row = std::vector<std::int64_t>;

constexpr std::int64_t seq_len = 4;

/// 1,000 counting ids; 900 of them (224 windows of 4) are for training.
class LoaderTest : public testing::Test {
 protected:
  static Corpus make_corpus(const TemporaryFolder& folder, const std::string& tokenizer) {
    auto config = config_of(folder.write("ids.bin", counting_ids(1000)), seq_len, 0.1);
    config.tokenizer = tokenizer;
    return Corpus(config);
  }
  static LoaderOptions options(std::int64_t batch = 3) {
    LoaderOptions out;
    out.seq_len = seq_len;
    out.batch = batch;
    out.seed = 7;
    return out;
  }
  /// Inputs of `count` batches, one row per batch.
  std::vector<Row> inputs(const LoaderOptions& of, int count, OneTrack from = OneTrack()) {
    Loader loader(corpus, of, from, *device, trace);
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) {
      const auto& batch = loader.next();
      rows.push_back(inputs_of(batch));
    }
    return rows;
  }

  TemporaryFolder folder;
  Corpus corpus = make_corpus(folder, "vocab:1000");
  std::unique_ptr<Device> device = make_cpu_device();
  OneTrack source;
  Trace trace;
};

/// A CPU device. Copies take `delay`; copy number `fails_at` fails.
class StrangeDevice : public Device {
 public:
  std::chrono::milliseconds delay{0};
  int fails_at = -1;
  std::atomic<int> fills = 0, releases = 0, host_buffers = 0, device_buffers = 0;

  std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) override {
    ++host_buffers;
    return plain_->host_buffer(bytes);
  }
  std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) override {
    ++device_buffers;
    return std::make_unique<Buffer>(*this, plain_->device_buffer(bytes));
  }
  std::unique_ptr<DeviceTimer> timer() override { return nullptr; }
  bool is_host() const override { return false; }

 private:
  class Buffer : public DeviceBuffer {
   public:
    Buffer(StrangeDevice& device, std::unique_ptr<DeviceBuffer> plain)
        : device_(device), plain_(std::move(plain)) {}
    std::byte* data() override { return plain_->data(); }
    DeviceSpan fill(HostBuffer& from, std::size_t bytes) override {
      if (device_.fills++ == device_.fails_at) throw std::runtime_error("the copy broke");
      std::this_thread::sleep_for(device_.delay);
      return plain_->fill(from, bytes);
    }
    void release() override { ++device_.releases; }

   private:
    StrangeDevice& device_;
    std::unique_ptr<DeviceBuffer> plain_;
  };
  std::unique_ptr<Device> plain_ = make_cpu_device();
};

TEST_F(LoaderTest, BatchesAreTheSamplersWindows) {
  Loader loader(corpus, options(), source, *device, trace);
  const Sampler sampler(224, 0, 1, 7);
  for (std::uint64_t step = 0; step < 200; ++step) {
    const auto& batch = loader.next();
    ASSERT_EQ(batch.samples.size(), 1U);
    ASSERT_EQ(batch.samples[0], (SampleRange{0, 3 * step, 3 * step + 3}));
    ASSERT_EQ(batch.epoch, sampler.at(3 * step).epoch);
    ASSERT_EQ(batch.sequences(), 3);
    ASSERT_EQ(batch.seq_len, seq_len);
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto window =
          static_cast<std::int64_t>(sampler.at(3 * step + static_cast<std::uint64_t>(b)).window);
      Row expected(seq_len + 1);
      std::iota(expected.begin(), expected.end(), window * seq_len);
      ASSERT_EQ(row_of(batch, b), expected);
    }
  }
}

TEST_F(LoaderTest, BatchesDoNotDependOnPrefetch) {
  auto other = options();
  other.prefetch = 1;
  const auto expected = inputs(options(), 100);
  EXPECT_EQ(inputs(other, 100), expected);
  other.prefetch = 9;
  EXPECT_EQ(inputs(other, 100), expected);
}

TEST_F(LoaderTest, ResumingIsSkipping) {
  const auto whole = inputs(options(), 100);
  EXPECT_EQ(inputs(options(), 10, OneTrack(0, 270)), std::vector<Row>(whole.begin() + 90, whole.end()));
}

TEST_F(LoaderTest, ReplicasTogetherSeeWhatOneWouldSee) {
  const auto one = inputs(options(4), 20);
  std::vector<Row> of_replica;
  for (const int replica : {0, 1}) {
    auto half = options(1 + replica);  // batch sizes may differ
    half.replicas = 2;
    Row sequences;
    const OneTrack own(static_cast<std::uint64_t>(replica));
    for (const auto& row : inputs(half, replica == 0 ? 40 : 20, own))
      sequences.insert(sequences.end(), row.begin(), row.end());
    of_replica.push_back(std::move(sequences));
  }
  Row joined, expected;
  for (std::size_t k = 0; k < 40; ++k) {
    for (const auto& sequences : of_replica)
      joined.insert(joined.end(), sequences.begin() + static_cast<std::ptrdiff_t>(k) * seq_len,
                    sequences.begin() + static_cast<std::ptrdiff_t>(k + 1) * seq_len);
  }
  for (const auto& row : one) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_EQ(joined, expected);
}

/// A source that only throws.
class FailingSource : public SampleSource {
 public:
  [[nodiscard]] SampleRange next(std::uint64_t) override { throw Error(ErrorKind::network, "no answer"); }
};

TEST_F(LoaderTest, AFaultOfTheSourceIsThrown) {
  FailingSource failing;
  Loader loader(corpus, options(), failing, *device, trace);
  EXPECT_THAT(error_of(ErrorKind::network, [&] { loader.next(); }), testing::HasSubstr("no answer"));
}

TEST_F(LoaderTest, WhereNothingIsReadAheadTheSourceIsAskedForBatchesAlone) {
  ListedRuns counting({{0, 0, 1}});
  Loader loader(corpus, options(), counting, *device, trace);
  for (std::uint64_t taken = 1; taken <= 100; ++taken) {
    loader.next();
    ASSERT_LE(counting.given(), 3 * (taken + 2));
  }
}

TEST_F(LoaderTest, SequencesOfOneTokenWork) {
  auto shortest = options();
  shortest.seq_len = 1;
  Loader loader(corpus, shortest, source, *device, trace);
  const auto& batch = loader.next();
  EXPECT_EQ(row_of(batch, 0)[1], row_of(batch, 0)[0] + 1);
}

TEST_F(LoaderTest, ABatchLargerThanTheCorpusGoesRoundIt) {
  auto large = options(500);  // the corpus has 224 windows
  Loader loader(corpus, large, source, *device, trace);
  EXPECT_EQ(loader.next().epoch, 0U);
  EXPECT_EQ(loader.next().epoch, 2U);
}

TEST_F(LoaderTest, TooShortACorpusIsRefusedAtOnce) {
  auto long_sequences = options();
  long_sequences.seq_len = 900;
  EXPECT_THAT(error_of(ErrorKind::data, [&] { Loader(corpus, long_sequences, source, *device, trace); }),
              testing::HasSubstr("901"));
}

TEST_F(LoaderTest, BuffersAreAllocatedBeforeTheRunAndGivenBackByTheConsumer) {
  StrangeDevice counting;
  Loader loader(corpus, options(), source, counting, trace);
  EXPECT_EQ(counting.host_buffers, 2);
  EXPECT_EQ(counting.device_buffers, 3);
  for (int i = 0; i < 50; ++i) loader.next();
  EXPECT_EQ(counting.host_buffers, 2);
  EXPECT_EQ(counting.device_buffers, 3);
  EXPECT_EQ(counting.releases, 49);
}

TEST_F(LoaderTest, NoStageRunsFurtherAheadThanPrefetch) {
  StrangeDevice counting;
  Loader loader(corpus, options(), source, counting, trace);
  loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(counting.fills, 3) << "one held by the consumer and two prefetched";
}

TEST_F(LoaderTest, TheBatchInHandStaysAsItIs) {
  Loader loader(corpus, options(), source, *device, trace);
  for (int i = 0; i < 20; ++i) {
    const auto& batch = loader.next();
    const auto before = inputs_of(batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(inputs_of(batch), before);
  }
}

TEST_F(LoaderTest, AFaultInLoadingIsThrownAfterTheGoodBatches) {
  const auto narrow = make_corpus(folder, "vocab:800");
  Loader loader(narrow, options(1), source, *device, trace);
  const Sampler sampler(224, 0, 1, 7);
  std::uint64_t good = 0;
  while (sampler.at(good).window * seq_len + seq_len < 800) ++good;
  for (std::uint64_t step = 0; step < good; ++step) EXPECT_EQ(loader.next().samples[0].begin, step);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of(ErrorKind::data, [&] { loader.next(); }),
                testing::AllOf(testing::HasSubstr("ids.bin"), testing::HasSubstr("offset")));
  }
}

TEST_F(LoaderTest, AFaultInTransferIsThrownAfterTheGoodBatches) {
  StrangeDevice failing;
  failing.fails_at = 5;
  Loader loader(corpus, options(), source, failing, trace);
  for (int i = 0; i < 5; ++i) loader.next();
  EXPECT_THAT(error_of(ErrorKind::data, [&] { loader.next(); }), testing::HasSubstr("the copy broke"));
}

TEST_F(LoaderTest, EndsAtAnyMoment) {
  for (int taken = 0; taken < 8; ++taken) {
    for (const int delay : {0, 1, 3}) {
      StrangeDevice slow;
      slow.delay = std::chrono::milliseconds(delay);
      const auto begin = std::chrono::steady_clock::now();
      {
        OneTrack track;
        Loader loader(corpus, options(), track, slow, trace);
        for (int i = 0; i < taken; ++i) loader.next();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    }
  }
}

TEST_F(LoaderTest, WaitingIsMeasured) {
  StrangeDevice slow;
  slow.delay = std::chrono::milliseconds(20);
  Loader loader(corpus, options(), source, slow, trace);
  loader.next();
  EXPECT_GE(loader.waited_seconds(), 0.015);
}

TEST_F(LoaderTest, TheTraceShowsTheStagesOfTheFirstEpochsAndEveryBorder) {
  const auto file = folder / "trace.json";
  {
    Trace recording(file, "replica 0");
    auto epochs = options(56);  // four batches per epoch
    epochs.traced_epochs = 2;
    OneTrack later(0, 4 * 56);
    Loader loader(corpus, epochs, later, *device, recording);
    for (int i = 0; i < 16; ++i) loader.next();
  }
  std::map<std::string, int> count;
  for (const auto& event : nlohmann::json::parse(read_all(file))) ++count[event.value("name", "")];
  EXPECT_EQ(count["gpu_queue_wait"], 8);
  EXPECT_EQ(count["disk_load"], 8);
  EXPECT_EQ(count["gpu_transfer"], 0) << "a CPU needs no transfer";
  EXPECT_GE(count["chunk"], 8);
  EXPECT_EQ(count["epoch"], 4);
}

}  // namespace
}  // namespace isthmus::data
