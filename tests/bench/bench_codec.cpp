// Codec passes beside a memcpy of the same bytes, which is the bound: elements per second of each.

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/quant/codec.h"

namespace isthmus::quant {
namespace {

constexpr std::size_t elements = 1 << 20;

/// Rounded sums of uniform numbers: bell-shaped, like outer gradients.
std::vector<float> values(std::uint64_t stream) {
  std::vector<float> out(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(1, stream, i * 4 + k);
    out[i] = sum * 1e-3F;
  }
  return out;
}

void report(benchmark::State& state, std::size_t bytes_read_and_written) {
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * elements));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes_read_and_written));
}

void memcpy_fp32(benchmark::State& state) {
  const auto x = values(1);
  std::vector<float> y(elements);
  for (auto _ : state) {
    std::memcpy(y.data(), x.data(), elements * sizeof(float));
    benchmark::ClobberMemory();
  }
  report(state, elements * 8);
}

void encode_plain(benchmark::State& state, CodecSpec spec) {
  const auto x = values(1);
  std::vector<std::byte> out(encoded_size(spec, elements));
  for (auto _ : state) {
    if (!encode(spec, x, {}, out)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  report(state, elements * 4 + out.size());
}

void encode_outer_gradient(benchmark::State& state, CodecSpec spec) {
  const auto global = values(1);
  const auto local = values(2);
  std::vector<float> residual(elements);
  std::vector<std::byte> out(encoded_size(spec, elements));
  for (auto _ : state) {
    if (!encode_difference(spec, global, local, residual, out)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  report(state, elements * 16 + out.size());
}

void decode_values(benchmark::State& state, CodecSpec spec) {
  std::vector<std::byte> in(encoded_size(spec, elements));
  std::vector<float> y(elements);
  if (!encode(spec, values(1), {}, in)) state.SkipWithError("refused");
  for (auto _ : state) {
    if (!decode(spec, in, y)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  report(state, elements * 4 + in.size());
}

void accumulate(benchmark::State& state, CodecSpec spec) {
  std::vector<std::byte> in(encoded_size(spec, elements));
  std::vector<float> sum(elements);
  if (!encode(spec, values(1), {}, in)) state.SkipWithError("refused");
  for (auto _ : state) {
    if (!decode_accumulate(spec, in, 1.0F, sum)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  report(state, elements * 8 + in.size());
}

void add_all() {
  benchmark::RegisterBenchmark("memcpy", memcpy_fp32);
  for (const auto name : codec_names) {
    const CodecSpec spec{codec_kind(name), 128};
    const std::string prefix(name);
    benchmark::RegisterBenchmark((prefix + "/encode").c_str(), encode_plain, spec);
    benchmark::RegisterBenchmark((prefix + "/encode_difference_feedback").c_str(), encode_outer_gradient,
                                 spec);
    benchmark::RegisterBenchmark((prefix + "/decode").c_str(), decode_values, spec);
    benchmark::RegisterBenchmark((prefix + "/decode_accumulate").c_str(), accumulate, spec);
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
