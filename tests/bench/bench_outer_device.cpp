// bench_outer_device [MILLIONS] [CODEC] [FRAGMENTS]: how long an outer step of this many million parameters
// (124), over all fragments (4), blocks the training thread of a replica on a GPU, and when its work has
// finished. Wall-clock time, medians of five. Status 77: no GPU.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/quant/cuda_passes.h"
#include "isthmus/trainer/outer_state.h"

namespace isthmus::outer_sync {
namespace {

class Parameters final : public DeviceParameters {
 public:
  Parameters(Passes& passes, std::size_t size)
      : host_(size), memory_(passes.device_memory(size * sizeof(float))) {
    for (std::size_t i = 0; i < size; ++i) host_[i] = random_unit(1, 2, i % 65536) - 0.5F;
    passes.copy(host_.data(), memory_.get(), size * sizeof(float));
    passes.mark()->wait();
  }
  std::span<const float> read(Range range) override { return modify(range); }
  std::span<float> modify(Range range) override { return std::span(host_).subspan(range.begin, range.size); }
  void modified(Range) override {}
  std::span<float> device_values(Range range) override {
    return {reinterpret_cast<float*>(memory_.get()) + range.begin, range.size};
  }
  void modified_on_device(Range) override {}

 private:
  AlignedVector<float> host_;
  std::shared_ptr<std::byte> memory_;
};

double milliseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

FragmentLayout layout_of(std::size_t elements, std::size_t fragments) {
  std::vector<Range> ranges;
  for (std::size_t p = 0; p < fragments; ++p)
    ranges.push_back({p * (elements / fragments), elements / fragments});
  return FragmentLayout(ranges, 65536);
}

int run(std::size_t elements, const std::string& codec_name, std::size_t fragments) {
  const auto layout = layout_of(elements, fragments);
  protocol::CodecPlan codecs;
  codecs.codec = codecs.warmup_codec = quant::default_spec(quant::codec_kind(codec_name));
  auto passes = trainer::make_gpu_passes(0);
  Parameters local(*passes, layout.buffer_size());
  OuterState state(layout, codecs, local, std::move(passes));
  const BufferPool buffers(quant::encoded_size(codecs.codec, 65536), 2 * layout.chunk_count());

  std::vector<double> encode, handed_over, apply, applied, chain;
  for (int i = 0; i < 5; ++i) {
    double held[5] = {};
    for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
      std::vector<protocol::SharedBytes> chunks;
      HandOver leaving;
      const auto take = [&](const EncodedChunk& chunk) { chunks.push_back(chunk.bytes); };
      held[0] += milliseconds([&] { leaving = state.encode(p, {.codec = codecs.codec}, buffers, take); });
      held[1] += milliseconds([&] { leaving.finish(); });
      bool good = true;
      held[2] +=
          milliseconds([&] { good = !state.apply(p, codecs.codec, chunks, {.merge = quant::Merge::carry}); });
      held[3] += milliseconds([&] { static_cast<void>(state.velocity({0, 16})); });
      std::vector<std::span<const std::byte>> bytes;
      for (const auto& chunk : chunks) bytes.emplace_back(*chunk);
      held[4] += milliseconds([&] { static_cast<void>(log::next_chain({}, p, 1, bytes)); });
      if (!good) return 1;
    }
    encode.push_back(held[0]), handed_over.push_back(held[1]), apply.push_back(held[2]);
    applied.push_back(held[3]), chain.push_back(held[4]);
  }
  std::printf(
      "%zu parameters in %zu fragments, %s: the training thread is held for %.1f ms by encode, %.1f ms by "
      "apply and "
      "%.1f ms by the chain's hash; meanwhile, from the end of encode to the last chunk handed over %.1f ms, "
      "from "
      "the end of apply to that of its passes %.1f ms (sums over the fragments)\n",
      elements, fragments, codec_name.c_str(), median(encode), median(apply), median(chain),
      median(handed_over), median(applied));
  return 0;
}

}  // namespace
}  // namespace isthmus::outer_sync

int main(int argc, char** argv) {
  const auto millions = argc > 1 ? std::strtod(argv[1], nullptr) : 124;
  const auto fragments = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 4;
  if (millions <= 0 || fragments == 0)
    return std::fputs("usage: bench_outer_device [MILLIONS] [CODEC] [FRAGMENTS]\n", stderr), 2;
  if (!isthmus::quant::cuda_available()) return std::puts("no GPU"), 77;
  return isthmus::outer_sync::run(static_cast<std::size_t>(1e6 * millions), argc > 2 ? argv[2] : "4bit",
                                  fragments);
}
