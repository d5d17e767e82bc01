// The data loader against its bound; both are measured alternately in one run:
//
//   bench_loader [--case NAME ...] [--rounds N] [--json FILE] [--folder FOLDER] [--megabytes N]
//
// `raw`     uint16 ids in a file in the page cache, through the whole pipeline into batches. The bound is
//           read() of the whole file, one MiB at a time, by one thread.
// `zstd`    a chunk store of ids as frequent as words are, zstd 1 (`lz4`: LZ4), in the page cache. The bound
//           is the codec library alone: one thread decompresses the same blocks from memory.
// `disk`    a disk with 1.3 times the throughput that training needs; it stalls at random for up to two
//           batches. Training sleeps. `waited` is the fraction of time spent waiting for batches after the
//           first.
//
// `of_bound` is the speed divided by the bound's speed: medians over the rounds.

#include <fcntl.h>
#include <fmt/format.h>
#include <lz4.h>
#include <unistd.h>
#include <zstd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "ids/id_files.h"
#include "ids/token_source.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/data/loader.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point begin) { return Seconds(Clock::now() - begin).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Options {
  std::vector<std::string> cases;
  int rounds = 7;
  std::uint64_t megabytes = 512;
  std::filesystem::path folder = std::filesystem::temp_directory_path();
  std::filesystem::path json;
};

/// Random ids below 50,000, which do not compress well, in a file that is removed with this object.
class IdFile {
 public:
  explicit IdFile(const Options& options)
      : path(options.folder / fmt::format("bench_loader-{}.bin", getpid())), bytes(options.megabytes << 20) {
    std::ofstream out(path, std::ios::binary);
    std::vector<std::uint16_t> ids(1 << 20);
    for (std::uint64_t written = 0; written < bytes; written += 2 * ids.size()) {
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::uint16_t>(random_bits(1, written, i) % 50'000);
      out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(2 * ids.size()));
    }
    if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}: use --folder", path.string()));
  }
  ~IdFile() { std::filesystem::remove(path); }
  IdFile(const IdFile&) = delete;
  IdFile& operator=(const IdFile&) = delete;

  std::filesystem::path path;
  std::uint64_t bytes;
};

DataConfig config_of(const std::filesystem::path& path) {
  DataConfig config;
  config.path = path.string();
  config.tokenizer = "vocab:50304";
  config.seq_len = 1024;
  config.heldout = 0;
  return config;
}

LoaderOptions loader_options(const DataConfig& config, std::int64_t batch, std::int64_t threads) {
  return {.seq_len = config.seq_len,
          .batch = batch,
          .seed = 1,
          .prefetch = config.prefetch,
          .threads = threads,
          .shuffle_blocks = config.shuffle_blocks};
}

/// Bytes per second of reading the whole file.
double read_speed(const IdFile& file) {
  std::vector<char> buffer(1 << 20);
  const int descriptor = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto begin = Clock::now();
  std::uint64_t sum = 0;
  while (true) {
    const auto got = ::read(descriptor, buffer.data(), buffer.size());
    if (got <= 0) break;
    sum += static_cast<std::uint64_t>(got);
  }
  const double seconds = seconds_since(begin);
  ::close(descriptor);
  if (sum != file.bytes) throw std::runtime_error("the file was not read to its end");
  return static_cast<double>(sum) / seconds;
}

/// Bytes of token ids per second through the pipeline after the first batch, over one epoch.
double loader_speed(const Corpus& corpus, const LoaderOptions& options) {
  const auto device = make_cpu_device();
  Trace trace;
  OneTrack source;
  Loader loader(corpus, options, source, *device, trace);
  loader.next();
  const auto windows = window_count(corpus.tokens(Split::train), static_cast<std::uint64_t>(options.seq_len));
  const auto batches = windows / static_cast<std::uint64_t>(options.batch) - 1;
  const auto begin = Clock::now();
  for (std::uint64_t i = 0; i < batches; ++i) loader.next();
  const auto sequences = batches * static_cast<std::uint64_t>(options.batch);
  const auto bytes = sequences * static_cast<std::uint64_t>(options.seq_len) * corpus.width();
  return static_cast<double>(bytes) / seconds_since(begin);
}

/// Measures the bound and the loader with one and two reading threads in turn.
template <class Bound>
void compare(Json& out, const Options& options, const Corpus& corpus, const DataConfig& config,
             const Bound& bound_speed) {
  std::vector<double> bound, one, two;
  for (int round = 0; round < options.rounds; ++round) {
    bound.push_back(bound_speed());
    one.push_back(loader_speed(corpus, loader_options(config, 512, 1)));
    two.push_back(loader_speed(corpus, loader_options(config, 512, 2)));
  }
  out["bound"] = median(bound);
  out["threads_1"] = median(one);
  out["threads_2"] = median(two);
  out["of_bound"] = median(one) / median(bound);
  out["of_bound_threads_2"] = median(two) / median(bound);
}

Json raw(const Options& options) {
  const IdFile file(options);
  const Corpus corpus(config_of(file.path));
  Json out = {{"name", "raw"}, {"bytes", file.bytes}};
  compare(out, options, corpus, config_of(file.path), [&] { return read_speed(file); });
  return out;
}

/// Ids that repeat like text, packed in blocks: phrases of up to twelve ids, the n-th phrase n times as rare
/// as the first, like words.
class Store {
 public:
  Store(const Options& options, StoreCodec codec)
      : folder(options.folder / fmt::format("bench_loader-{}.store", getpid())) {
    spec.vocab_size = 50'000;
    spec.codec = codec;
    spec.level = 1;
    std::vector<std::uint32_t> ids((options.megabytes << 20) / 2 / spec.block_tokens * spec.block_tokens);
    for (std::size_t i = 0, phrase = 0; i < ids.size(); ++phrase) {
      const auto rank = static_cast<std::uint64_t>(std::pow(200'000.0, random_unit(1, 2, phrase)));
      const auto length = 1 + random_bits(3, 4, rank) % 12;
      for (std::uint64_t n = 0; n < length && i < ids.size(); ++n)
        ids[i++] = static_cast<std::uint32_t>(std::pow(50'000.0, random_unit(5, rank, n))) - 1;
    }
    const std::vector<std::uint64_t> starts = {0};
    write_store(folder, spec, ids, starts);
    bytes = 2 * ids.size();
    pack(ids);
  }
  ~Store() {
    std::filesystem::remove_all(folder);
    ZSTD_freeDCtx(context_);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Bytes of ids per second that the codec library alone unpacks.
  double library_speed() {
    std::vector<char> out(2 * std::size_t{spec.block_tokens});
    const auto begin = Clock::now();
    for (const auto& block : packed_) {
      const auto size =
          spec.codec == StoreCodec::zstd
              ? ZSTD_decompressDCtx(context_, out.data(), out.size(), block.data(), block.size())
              : static_cast<std::size_t>(LZ4_decompress_safe(
                    block.data(), out.data(), static_cast<int>(block.size()), static_cast<int>(out.size())));
      if (size != out.size()) throw std::runtime_error("the library did not unpack a block");
    }
    return static_cast<double>(bytes) / seconds_since(begin);
  }
  [[nodiscard]] double ratio() const {
    std::size_t packed = 0;
    for (const auto& block : packed_) packed += block.size();
    return static_cast<double>(bytes) / static_cast<double>(packed);
  }

  std::filesystem::path folder;
  StoreSpec spec;
  std::uint64_t bytes = 0;

 private:
  /// Packs the store's blocks with the codec library alone.
  void pack(const std::vector<std::uint32_t>& ids) {
    const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
    const std::size_t size = 2 * std::size_t{spec.block_tokens};
    for (std::size_t at = 0; at < narrow.size(); at += spec.block_tokens) {
      const auto* from = reinterpret_cast<const char*>(narrow.data() + at);
      std::vector<char> to(std::max<std::size_t>(ZSTD_compressBound(size), LZ4_COMPRESSBOUND(size)));
      to.resize(spec.codec == StoreCodec::zstd
                    ? ZSTD_compress(to.data(), to.size(), from, size, spec.level)
                    : static_cast<std::size_t>(LZ4_compress_default(from, to.data(), static_cast<int>(size),
                                                                    static_cast<int>(to.size()))));
      packed_.push_back(std::move(to));
    }
  }

  std::vector<std::vector<char>> packed_;
  ZSTD_DCtx* context_ = ZSTD_createDCtx();
};

Json packed(const Options& options, const char* name, StoreCodec codec) {
  Store store(options, codec);
  const auto config = config_of(store.folder);
  const Corpus corpus(config);
  Json out = {{"name", name}, {"bytes", store.bytes}, {"ratio", store.ratio()}};
  compare(out, options, corpus, config, [&] { return store.library_speed(); });
  return out;
}

Json zstd(const Options& options) { return packed(options, "zstd", StoreCodec::zstd); }
Json lz4(const Options& options) { return packed(options, "lz4", StoreCodec::lz4); }

/// A simulated disk of `rate` bytes per second that serves one read at a time and stalls now and then.
class SlowDisk : public TokenSource {
 public:
  SlowDisk(std::unique_ptr<TokenSource> file, double rate, double longest_stall)
      : file_(std::move(file)), rate_(rate), longest_stall_(longest_stall) {}
  std::uint64_t tokens() const override { return file_->tokens(); }
  std::uint32_t width() const override { return file_->width(); }
  std::uint64_t block_tokens() const override { return file_->block_tokens(); }
  std::uint64_t heldout_begin(std::uint64_t wanted) const override { return file_->heldout_begin(wanted); }
  std::string place(std::uint64_t token) const override { return file_->place(token); }
  Digest fingerprint() const override { return file_->fingerprint(); }
  void read(std::uint64_t begin, std::uint64_t count, std::byte* out) const override {
    const std::lock_guard lock(mutex_);
    const auto started = Clock::now();
    file_->read(begin, count, out);
    auto takes = static_cast<double>(count * width()) / rate_;
    // Every fourth read stalls, on average for half of the longest stall.
    const auto random = random_bits(7, 0, reads_++);
    if (random % 4 == 0) {
      const double stall = longest_stall_ * static_cast<double>(random >> 40) * 0x1p-24;
      takes += stall;
      stalled_ += stall;
    }
    std::this_thread::sleep_until(started + Seconds(takes));
  }
  double stalled() const { return stalled_; }

 private:
  std::unique_ptr<TokenSource> file_;
  double rate_, longest_stall_;
  mutable std::mutex mutex_;
  mutable std::uint64_t reads_ = 0;
  mutable double stalled_ = 0;
};

Json disk(const Options& options) {
  constexpr std::int64_t batch = 16;
  constexpr double step = 0.004;
  const IdFile file(options);
  const auto config = config_of(file.path);
  const double rate = 1.3 * static_cast<double>(batch * config.seq_len * 2) / step;
  auto source = std::make_unique<SlowDisk>(open_id_file(file.path, {}), rate, 2 * step);
  const auto& slow = *source;
  const Corpus corpus(config, std::move(source));
  const auto device = make_cpu_device();
  Trace trace;
  OneTrack track;
  Loader loader(corpus, loader_options(config, batch, config.threads), track, *device, trace);
  loader.next();
  const auto begin = Clock::now();
  const double before = loader.waited_seconds();
  std::uint64_t batches = 0;
  for (; seconds_since(begin) < 5 * options.rounds; ++batches) {
    std::this_thread::sleep_for(Seconds(step));
    loader.next();
  }
  const double seconds = seconds_since(begin);
  return {
      {"name", "disk"},
      {"batches", batches},
      {"seconds", seconds},
      {"disk_rate", rate},
      {"read_rate", static_cast<double>(batches) * batch * static_cast<double>(config.seq_len) * 2 / seconds},
      {"stalled", slow.stalled() / seconds},
      {"waited", (loader.waited_seconds() - before) / seconds}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("the data loader against what bounds it");
  app.add_option("--case", options.cases, "raw, zstd, lz4, disk; all where none is named");
  app.add_option("--rounds", options.rounds, "of each measurement; the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--megabytes", options.megabytes, "of the file")->check(CLI::Range(16, 1 << 20));
  app.add_option("--folder", options.folder, "for the file");
  app.add_option("--json", options.json, "gets the results");
  CLI11_PARSE(app, argc, argv);
  const std::vector<std::pair<std::string, Json (*)(const Options&)>> all = {
      {"raw", raw}, {"zstd", zstd}, {"lz4", lz4}, {"disk", disk}};
  auto results = Json::array();
  for (const auto& [name, measure] : all) {
    if (!options.cases.empty() && std::ranges::find(options.cases, name) == options.cases.end()) continue;
    results.push_back(measure(options));
    fmt::print("{}\n", results.back().dump());
    std::fflush(stdout);
  }
  if (!options.json.empty()) std::ofstream(options.json) << results.dump(2) << '\n';
  return results.empty() ? 2 : 0;
}

}  // namespace
}  // namespace isthmus::data

int main(int argc, char** argv) {
  try {
    return isthmus::data::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_loader: {}\n", error.what());
    return 1;
  }
}
