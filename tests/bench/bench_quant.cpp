// The outer loop's passes against the memory bandwidth. Each iteration times a pass and, immediately after
// it, a memcpy of 64 MB. Counter `of_memcpy` is the median over the iterations of the pass's throughput
// divided by the memcpy's, each in bytes read and written per second. Several threads work at the same time,
// each on its own memory.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isthmus/base/checksum.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"

namespace isthmus::quant {
namespace {

constexpr std::size_t elements = std::size_t{16} << 20;
constexpr std::size_t alignment = 4096;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t size)
      : size_(size),
        data_(
            static_cast<T*>(std::aligned_alloc(alignment, (size * sizeof(T) / alignment + 1) * alignment))) {
    std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T));
  }
  operator std::span<T>() { return {data_.get(), size_}; }
  operator std::span<const T>() const { return {data_.get(), size_}; }
  T* data() { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::unique_ptr<T, Free> data_;
};

/// Rounded sums of uniform numbers: bell-shaped like outer gradients.
void fill(Buffer<float>& x, std::uint64_t stream) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(1, stream, (i % 65536) * 4 + k);
    x.data()[i] = sum * 1e-3F;
  }
}

struct Operands {
  explicit Operands(const CodecSpec& spec) : bytes(encoded_size(spec, elements)) {
    fill(global, 1);
    fill(local, 2);
    if (encode(spec, local, {}, {}, bytes)) std::abort();
  }
  Buffer<float> global{elements}, local{elements}, third{elements};
  Buffer<std::byte> bytes;
};

using Pass = std::function<bool(Operands&)>;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void run(benchmark::State& state, const CodecSpec& spec, std::size_t bytes_per_element, const Pass& pass,
         const std::shared_ptr<std::barrier<>>& together) {
  Operands operands(spec);
  const Buffer<float> from(elements);
  Buffer<float> to(elements);
  const auto copy = [&] {
    std::memcpy(to.data(), std::span<const float>(from).data(), elements * sizeof(float));
    benchmark::ClobberMemory();
  };
  const auto pass_bytes = static_cast<double>(elements * bytes_per_element + operands.bytes.size());
  const auto copy_bytes = static_cast<double>(elements * 2 * sizeof(float));
  bool good = pass(operands);
  copy();
  std::vector<double> ratios;
  for (auto _ : state) {
    together->arrive_and_wait();
    const auto taken = seconds([&] { good &= pass(operands); });
    together->arrive_and_wait();
    const auto copied = seconds(copy);
    state.SetIterationTime(taken);
    ratios.push_back(pass_bytes / taken / (copy_bytes / copied));
  }
  if (!good) state.SkipWithError("the pass refused its operands");
  state.SetItemsProcessed(static_cast<std::int64_t>(static_cast<std::size_t>(state.iterations()) * elements));
  state.counters["of_memcpy"] = benchmark::Counter(median(ratios), benchmark::Counter::kAvgThreads);
  state.counters["bits"] = benchmark::Counter(bits_per_element(spec), benchmark::Counter::kAvgThreads);
}

void add(const std::string& name, const CodecSpec& spec, std::size_t bytes_per_element, const Pass& pass) {
  for (const int threads : {1, 2}) {
    const auto together = std::make_shared<std::barrier<>>(threads);
    benchmark::RegisterBenchmark(
        name.c_str(), [=](benchmark::State& state) { run(state, spec, bytes_per_element, pass, together); })
        ->Threads(threads)
        ->Iterations(15)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

void add_all() {
  // The checksum that a chunk without TLS costs its sender and its receiver.
  add("crc32c", {.kind = CodecKind::fp32}, 0, [](Operands& o) {
    benchmark::DoNotOptimize(crc32c(std::span<const std::byte>(o.bytes)));
    return true;
  });
  for (const auto name : codec_names) {
    auto spec = default_spec(codec_kind(name));
    for (const auto rounding : {Rounding::nearest, Rounding::stochastic}) {
      spec.rounding = rounding;
      if (rounding == Rounding::stochastic && spec.kind == CodecKind::fp32) continue;
      const std::string how = rounding == Rounding::nearest ? "nearest" : "stochastic";
      add(std::string(name) + "/encode_" + how, spec, 16,
          [spec](Operands& o) {  // global, local, and the residual twice
            return !encode_difference(spec, o.global, o.local, {o.third}, {.key = 1, .first_element = 0},
                                      o.bytes);
          });
    }
    spec.rounding = Rounding::nearest;
    add(std::string(name) + "/decode_accumulate", spec, 8,
        [spec](Operands& o) { return decode_accumulate(spec, o.bytes, 0.5F, o.third); });
    add(std::string(name) + "/decode_apply", spec, 24,
        [spec](Operands& o) {  // global, momentum and local, twice each
          return decode_apply(spec, o.bytes, {.alpha = 0.25F}, o.global, o.third, o.local);
        });
  }
}

}  // namespace
}  // namespace isthmus::quant

int main(int argc, char** argv) {
  isthmus::quant::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
