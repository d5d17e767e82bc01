// bench_outer_state [MILLIONS] [CODEC]: time of an outer step of one fragment of this many million
// parameters (100) on this CPU, how much its statistics add in a checked round and on average, and how much
// receipts (run.audit) add to an owner's reduction of two contributions. Medians of five, in CPU time.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/state_digests.h"

namespace isthmus::outer_sync {
namespace {

class Parameters final : public LocalParameters {
 public:
  explicit Parameters(std::size_t size) : values_(size) {
    for (std::size_t i = 0; i < size; ++i) values_[i] = random_unit(1, 2, i % 65536) - 0.5F;
  }
  std::span<const float> read(Range range) override { return modify(range); }
  std::span<float> modify(Range range) override {
    return std::span(values_).subspan(range.begin, range.size);
  }
  void modified(Range) override {}

 private:
  AlignedVector<float> values_;
};

double median_milliseconds(const std::function<void()>& work) {
  std::vector<double> taken;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::clock();
    work();
    taken.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::ranges::sort(taken);
  return taken[2];
}

double checked_share() {
  double checked = 0;
  constexpr protocol::Round rounds = 1024;
  for (protocol::Round round = 1; round <= rounds; ++round) checked += protocol::is_checked(0, round) ? 1 : 0;
  return checked / rounds;
}

int run(std::size_t elements, const std::string& codec_name) {
  const FragmentLayout layout({{0, elements}}, 65536);
  const auto codec = quant::default_spec(quant::codec_kind(codec_name));
  Parameters local(elements);
  OuterState state(layout, local, false);
  std::vector<protocol::SharedBytes> results;
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto& chunk = layout.chunk(k);
    Bytes bytes(quant::encoded_size(codec, chunk.size));
    if (quant::encode(codec, local.read(chunk), {}, {}, bytes)) std::abort();
    results.push_back(std::make_shared<const Bytes>(std::move(bytes)));
  }
  const auto apply = median_milliseconds([&] {
    if (state.apply(0, codec, results, {.merge = quant::Merge::carry})) std::abort();
  });
  bool good = true;
  const auto products = median_milliseconds([&] { good &= state.products(0, codec, results).has_value(); });
  const auto spread = median_milliseconds([&] { good &= state.spread(0) >= 0; });
  const auto digest = median_milliseconds([&] { good &= state.digest(0) != 0; });
  const auto figures = products + 2 * spread;
  std::printf(
      "%zu parameters, %s: apply %.0f ms; figures of a checked round %.0f ms (products %.0f, spread twice "
      "%.0f), its digest %.0f ms; figures on the average %.1f %% of apply\n",
      elements, codec_name.c_str(), apply, figures, products, spread, digest,
      100 * checked_share() * figures / apply);
  const protocol::CodecPlan codecs{.codec = codec, .warmup_codec = codec};
  Reducer reducer(layout, codecs);
  const auto reduce = median_milliseconds([&] {
    for (ChunkId k = 0; k < layout.chunk_count(); ++k)
      good &=
          reducer.reduce(k, 1, std::vector(2, results[k]), std::vector<std::uint64_t>(2, 1)).bytes != nullptr;
  });
  const auto receipts = median_milliseconds([&] {
    for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
      for (int m = 0; m < 2; ++m) good &= reducer.received(k, 1, *results[k]).bytes != Digest();
    }
  });
  std::printf("owner of all: reduces two contributions in %.0f ms; their receipts %.0f ms, %.0f %% of that\n",
              reduce, receipts, 100 * receipts / reduce);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace isthmus::outer_sync

int main(int argc, char** argv) {
  const auto millions = argc > 1 ? std::strtod(argv[1], nullptr) : 100;
  if (millions <= 0) return std::fputs("usage: bench_outer_state [MILLIONS] [CODEC]\n", stderr), 2;
  return isthmus::outer_sync::run(static_cast<std::size_t>(1e6 * millions), argc > 2 ? argv[2] : "4bit");
}
