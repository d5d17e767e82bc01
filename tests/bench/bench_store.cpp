// The chunk store:  bench_store PATH [TOKENIZER]   where PATH is text (tokenised by bytes, or by TOKENIZER)
// or a .bin file.
//
// read: StoreReader reads whole blocks one after the other, compared with the codec library alone on the
// same compressed bytes in memory; `of_bound` is the speed divided by the library's speed. Text is also
// tokenised: there `of_bound` is the codec library's own fraction of all processor time, the part that
// cannot be saved. Times are processor time of one thread and medians of interleaved rounds, so that other
// load on the machine matters little; wall time is also printed.

#include <fmt/format.h>
#include <lz4.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ids/id_files.h"
#include "isthmus/base/error.h"
#include "isthmus/data/tokenize.h"
#include "store/block_codec.h"
#include "store/store_format.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

namespace isthmus::data {
namespace {

namespace fs = std::filesystem;
constexpr int rounds = 7;

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double now(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);
  return seconds_of(time);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Work>
double cpu_time(Work work, clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  const auto begin = now(clock);
  work();
  return now(clock) - begin;
}

/// A store's compressed blocks in memory, and the time that the codec library needs for them.
class Library {
 public:
  explicit Library(const fs::path& folder) : info_(store_info(folder)), context_(ZSTD_createDCtx()) {
    std::ifstream index(folder / "index", std::ios::binary), blocks(folder / "blocks", std::ios::binary);
    index.seekg(store::header_bytes);
    std::uint64_t end = 0;
    for (std::uint64_t i = 0; i < info_.blocks(); ++i) {
      store::Entry entry;
      index.read(reinterpret_cast<char*>(&entry), sizeof entry);
      std::vector<char> record(entry.end - end);
      blocks.read(record.data(), static_cast<std::streamsize>(record.size()));
      std::uint32_t size = 0;
      std::memcpy(&size, record.data(), sizeof size);
      packed_.emplace_back(record.begin() + 4, record.begin() + 4 + size);
      end = entry.end;
    }
    out_.resize(std::size_t{info_.spec.block_tokens} * info_.spec.stored_width());
  }
  ~Library() { ZSTD_freeDCtx(context_); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void decompress() {
    for (const auto& packed : packed_) {
      if (info_.spec.codec == StoreCodec::lz4) {
        LZ4_decompress_safe(packed.data(), out_.data(), static_cast<int>(packed.size()),
                            static_cast<int>(out_.size()));
      } else if (info_.spec.codec == StoreCodec::zstd) {
        ZSTD_decompressDCtx(context_, out_.data(), out_.size(), packed.data(), packed.size());
      } else {
        std::memcpy(out_.data(), packed.data(), packed.size());
      }
    }
  }

 private:
  StoreInfo info_;
  ZSTD_DCtx* context_;
  std::vector<std::vector<char>> packed_;
  std::vector<char> out_;
};

void read_blocks(const StoreReader& reader, std::uint64_t first, std::uint64_t step,
                 std::vector<std::byte>& out) {
  for (auto block = first; block < reader.info().blocks(); block += step) {
    const auto begin = block * reader.block_tokens();
    reader.read(begin, std::min(reader.block_tokens(), reader.tokens() - begin), out.data());
  }
}

double wall_of_threads(const StoreReader& reader, std::uint64_t threads) {
  const auto begin = now(CLOCK_MONOTONIC);
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < threads; ++t) {
    running.emplace_back([&reader, t, threads] {
      std::vector<std::byte> out(reader.block_tokens() * reader.width());
      read_blocks(reader, t, threads, out);
    });
  }
  for (auto& thread : running) thread.join();
  return now(CLOCK_MONOTONIC) - begin;
}

void measure_reading(const std::string& name, const fs::path& folder) {
  const StoreReader reader(folder);
  Library library(folder);
  std::vector<std::byte> out(reader.block_tokens() * reader.width());
  std::vector<double> alone, ours, one, two;
  for (int i = 0; i < rounds; ++i) {
    alone.push_back(cpu_time([&] { library.decompress(); }));
    ours.push_back(cpu_time([&] { read_blocks(reader, 0, 1, out); }));
    one.push_back(wall_of_threads(reader, 1));
    two.push_back(wall_of_threads(reader, 2));
  }
  const auto speed = [&](double seconds) {
    return static_cast<double>(reader.tokens() * reader.width()) / seconds / 1e6;
  };
  fmt::print(
      "{{\"case\": \"read {}\", \"MB_per_s\": {:.0f}, \"bound\": {:.0f}, \"of_bound\": {:.3f}, "
      "\"wall_1_thread\": {:.0f}, \"wall_2_threads\": {:.0f}}}\n",
      name, speed(median(ours)), speed(median(alone)), median(alone) / median(ours), speed(median(one)),
      speed(median(two)));
}

void measure_tokenising(const std::string& name, TokenizeOptions options) {
  std::vector<double> cpu, wall;
  std::uint64_t bytes = 0;
  for (int i = 0; i < 3; ++i) {
    fs::remove_all(options.out);
    const auto begin = now(CLOCK_MONOTONIC);
    cpu.push_back(cpu_time([&] { bytes = tokenize(options, [](const TokenizeProgress&) {}).bytes_read; },
                           CLOCK_PROCESS_CPUTIME_ID));
    wall.push_back(now(CLOCK_MONOTONIC) - begin);
  }
  // The same ids with the codec library alone.
  const StoreReader reader(options.out);
  store::BlockEncoder encoder(reader.info().spec);
  std::vector<std::byte> ids(reader.block_tokens() * reader.width());
  Bytes narrow, record;
  double library = 0;
  for (std::uint64_t block = 0; block < reader.info().blocks(); ++block) {
    const auto begin = block * reader.block_tokens(),
               count = std::min(reader.block_tokens(), reader.tokens() - begin);
    reader.read(begin, count, ids.data());
    const auto width = reader.info().spec.stored_width();
    narrow.resize(count * width);
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(narrow.data() + i * width, ids.data() + i * reader.width(), width);
    library += cpu_time([&] { encoder.encode(narrow, {}, record); });
  }
  const auto cores = static_cast<double>(std::thread::hardware_concurrency());
  const auto megabytes = static_cast<double>(bytes) / 1e6;
  fmt::print(
      "{{\"case\": \"tokenize {}\", \"MB_per_s\": {:.0f}, \"MB_per_s_of_a_core\": {:.0f}, \"bound\": {:.0f}, "
      "\"of_bound\": {:.3f}}}\n",
      name, megabytes / median(wall), megabytes / median(cpu), cores * megabytes / library,
      library / median(cpu));
}

int run(const fs::path& path, const std::string& tokenizer) {
  const auto folder = fs::temp_directory_path() / fmt::format("bench_store.{}", ::getpid());
  struct Case {
    const char* name;
    StoreCodec codec;
    std::int32_t level;
  };
  for (const auto& [name, codec, level] :
       {Case{"none", StoreCodec::none, 0}, Case{"lz4 1", StoreCodec::lz4, 1},
        Case{"zstd 1", StoreCodec::zstd, 1}, Case{"zstd 3", StoreCodec::zstd, 3}}) {
    if (path.extension() == ".bin") {
      const auto source = open_id_file(path, std::nullopt);
      std::vector<std::byte> bytes(source->tokens() * source->width());
      source->read(0, source->tokens(), bytes.data());
      std::vector<std::uint32_t> ids(source->tokens(), 0);
      for (std::size_t i = 0; i < ids.size(); ++i)
        std::memcpy(&ids[i], bytes.data() + i * source->width(), source->width());
      StoreSpec spec;
      spec.vocab_size = source->width() == 2 ? 65536 : 0xFFFF'FFFF;
      spec.codec = codec;
      spec.level = level;
      const std::uint64_t start = 0;
      write_store(folder, spec, ids, {&start, 1});
    } else {
      TokenizeOptions options;
      options.sources = {path.string()};
      options.out = folder;
      options.tokenizer = tokenizer;
      options.codec = codec;
      options.level = level;
      measure_tokenising(name, options);
    }
    measure_reading(name, folder);
    fs::remove_all(folder);
  }
  return 0;
}

}  // namespace
}  // namespace isthmus::data

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_store PATH [TOKENIZER]\n");
    return 2;
  }
  try {
    return isthmus::data::run(argv[1], argc > 2 ? argv[2] : "bytes");
  } catch (const isthmus::Error& error) {
    fmt::print(stderr, "bench_store: {}\n", error.what());
    return error.exit_status();
  }
}
