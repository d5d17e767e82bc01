#pragma once
// The passes of quant/cuda behind one interface: the scalar ones, which are the reference, the kernels on an
// emulated GPU, and on a GPU; and operands for them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "emulated_passes.h"
#include "formats.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/cuda_passes.h"
#include "passes_table.h"
#ifdef ISTHMUS_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace isthmus::quant {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;
using Input = Encoding::Input;

/// Operands of a pass. The pass overwrites its outputs.
struct Job {
  CodecSpec spec;
  Input input = Input::plain;
  Floats a = {}, b = {};
  float divisor = 3;
  Floats residual = {};
  float decay = 0.75F;
  Noise noise{0x123456789abcdefULL, 12345};
  Bytes out = {};
};
struct Applied {
  Floats theta, velocity, local;
  friend bool operator==(const Applied&, const Applied&) = default;
};

inline Encoding encoding(Job& job) {
  return {.input = job.input,
          .a = job.a.data(),
          .b = job.b.data(),
          .divisor = job.divisor,
          .residual = job.residual.empty() ? nullptr : job.residual.data(),
          .decay = job.decay,
          .noise = job.noise,
          .elements = job.a.size(),
          .out = job.out.data()};
}

// ---- runners of the passes ----

struct Scalar {
  static std::size_t encode(Job& job) { return scalar_passes().encode(job.spec, encoding(job)); }
  static void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    scalar_passes().decode(spec, in.data(), out.data(), out.size());
  }
  static void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    scalar_passes().accumulate(spec, in.data(), weight, sum.data(), sum.size());
  }
  static void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    scalar_passes().apply(spec, in.data(), step, to.theta.data(), to.velocity.data(),
                          to.local.empty() ? nullptr : to.local.data(), to.theta.size());
  }
  static Products products(const Floats& x, const Floats& y) {
    Products total;
    scalar_passes().products(x.data(), y.data(), x.size(), total);
    return total;
  }
};

inline std::vector<Products> tiles_of(const Floats& x) {
  return std::vector<Products>((x.size() + products_tile - 1) / products_tile);
}

class Emulated {
 public:
  static bool available() { return true; }
  explicit Emulated(bool reversed) : passes_(reversed) {}
  EmulatedPasses& passes() { return passes_; }

  std::size_t encode(Job& job) { return passes_.encode(job.spec, encoding(job)); }
  void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    passes_.decode(spec, in.data(), out.data(), out.size());
  }
  void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    passes_.accumulate(spec, in.data(), weight, sum.data(), sum.size());
  }
  void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    passes_.apply(spec, in.data(), step, to.theta.data(), to.velocity.data(),
                  to.local.empty() ? nullptr : to.local.data(), to.theta.size());
  }
  Products products(const Floats& x, const Floats& y) {
    auto tiles = tiles_of(x);
    passes_.products(x.data(), y.data(), x.size(), tiles.data());
    Products total;
    add_products(tiles, total);
    return total;
  }

 private:
  EmulatedPasses passes_;
};
struct Forward : Emulated {
  Forward() : Emulated(false) {}
};
struct Backward : Emulated {
  Backward() : Emulated(true) {}
};

#ifdef ISTHMUS_WITH_CUDA
/// A copy of a vector in the GPU's memory.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& from) : size_(from.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<std::size_t>(1, size_ * sizeof(T))), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~OnGpu() { cudaFree(data_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  [[nodiscard]] std::span<T> span() const { return {static_cast<T*>(data_), size_}; }
  void read(std::vector<T>& to) const {
    EXPECT_EQ(cudaMemcpy(to.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

class Gpu {
 public:
  static bool available() { return cuda_available(); }

  std::size_t encode(Job& job) {
    const OnGpu a(job.a), b(job.b), residual(job.residual);
    const OnGpu out(job.out);
    const Feedback feedback{residual.span(), job.decay};
    auto mark =
        job.input == Input::plain ? passes_.encode(job.spec, a.span(), feedback, job.noise, out.span())
        : job.input == Input::difference
            ? passes_.encode_difference(job.spec, a.span(), b.span(), feedback, job.noise, out.span())
            : passes_.encode_quotient(job.spec, a.span(), job.divisor, feedback, job.noise, out.span());
    const auto bad = mark.wait();
    EXPECT_TRUE(mark.is_done());
    out.read(job.out);
    residual.read(job.residual);
    return bad.value_or(job.a.size());
  }
  void decode(const CodecSpec& spec, const Bytes& in, Floats& out) {
    const OnGpu encoded(in);
    const OnGpu to(out);
    passes_.decode(spec, encoded.span(), to.span());
    passes_.mark().wait();
    to.read(out);
  }
  void accumulate(const CodecSpec& spec, const Bytes& in, float weight, Floats& sum) {
    const OnGpu encoded(in);
    const OnGpu to(sum);
    passes_.decode_accumulate(spec, encoded.span(), weight, to.span());
    passes_.mark().wait();
    to.read(sum);
  }
  void apply(const CodecSpec& spec, const Bytes& in, const OuterStep& step, Applied& to) {
    const OnGpu encoded(in);
    const OnGpu theta(to.theta), velocity(to.velocity), local(to.local);
    passes_.decode_apply(spec, encoded.span(), step, theta.span(), velocity.span(), local.span());
    passes_.mark().wait();
    theta.read(to.theta);
    velocity.read(to.velocity);
    local.read(to.local);
  }
  Products products(const Floats& x, const Floats& y) {
    const OnGpu first(x), second(y);
    auto tiles = tiles_of(x);
    const OnGpu sums(tiles);
    passes_.products(first.span(), second.span(), sums.span());
    passes_.mark().wait();
    sums.read(tiles);
    Products total;
    add_products(tiles, total);
    return total;
  }

 private:
  CudaPasses passes_{{.thread_blocks = 2, .marks = 4}};
};
#else
struct Gpu : Forward {
  static bool available() { return false; }
};
#endif

// ---- inputs ----

/// Bell-shaped around zero, with rows of zeros and a few large and tiny values.
inline Floats values(std::size_t n, std::uint64_t stream) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    float sum = -2;
    for (std::uint64_t k = 0; k < 4; ++k) sum += random_unit(7, stream, i * 4 + k);
    const auto draw = random_bits(8, stream, i);
    x[i] = (i / 64 % 16 == 5) ? 0 : draw % 97 == 0 ? 8 * sum : draw % 89 == 0 ? sum * 1e-30F : sum;
  }
  return x;
}

inline Job job_of(const CodecSpec& spec, std::size_t n, Input input, bool feedback) {
  Job job{.spec = spec, .input = input, .a = values(n, 1), .b = values(n, 2)};
  if (feedback) job.residual = values(n, 3);
  job.out = Bytes(encoded_size(spec, n), std::byte{0xa5});
  return job;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
inline bool same_bits(const Applied& a, const Applied& b) {
  return same_bits(a.theta, b.theta) && same_bits(a.velocity, b.velocity) && same_bits(a.local, b.local);
}

inline constexpr Rounding roundings[] = {Rounding::nearest, Rounding::stochastic};
inline constexpr ScaleFormat scales[] = {ScaleFormat::bf16, ScaleFormat::e5m3, ScaleFormat::e8m0};
inline constexpr std::size_t lengths[] = {0, 1, 3, 15, 16, 17, 129, 500, 4095, 4096, 4097, 20000};

inline std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs;
  for (const auto& [kind, name, stored, layout, bits, default_block] : codecs) {
    for (const auto rounding : roundings) {
      const bool blocks = layout == CodecLayout::blocks;
      for (const auto scale : scales) {
        for (std::uint32_t block = smallest_block; block <= largest_block; block *= 2)
          if (blocks) specs.push_back({kind, block, scale, block == 64 ? 0.9F : 1, rounding});
      }
      for (const std::uint32_t top_k : {64U, 1U, 7U, 1000U, 4096U})
        if (layout == CodecLayout::pieces)
          specs.push_back({.kind = kind, .rounding = rounding, .top_k = top_k});
      if (layout == CodecLayout::floats) specs.push_back({.kind = kind, .rounding = rounding});
    }
  }
  return specs;
}
inline std::string name_of(const CodecSpec& spec) {
  return std::string(to_string(spec.kind)) + " block " + std::to_string(spec.block) + " scale " +
         std::string(to_string(spec.scale)) + (spec.rounding == Rounding::stochastic ? " drawn" : "") +
         " top_k " + std::to_string(spec.top_k);
}

}  // namespace isthmus::quant
