#pragma once
// Emulates the parts of CUDA that the kernels of quant/cuda/ and trainer/cuda/ use, to run them on machines
// without a GPU. The threads of a thread block take turns on one CPU thread, from one barrier or shuffle to
// the next, in either direction: a missing barrier gives different results in the two directions. A shuffle
// or barrier that not all threads reach ends the test.

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <vector>

namespace emulated {

inline constexpr unsigned thread_count = 256;
inline constexpr unsigned lane_count = 32;

struct Index {
  unsigned x = 0;
};

class ThreadBlock {
 public:
  ThreadBlock() : stacks_(thread_count * stack_bytes) {
    running = this;
    for (unsigned t = 0; t < thread_count; ++t) {
      auto& fiber = fibers_[t];
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = stacks_.data() + t * stack_bytes;
      fiber.start.uc_stack.ss_size = stack_bytes;
      makecontext(&fiber.start, &ThreadBlock::live, 0);
    }
  }

  /// Runs `kernel` on all threads, from the last to the first if `reversed`.
  void run(const std::function<void()>& kernel, bool reversed) {
    kernel_ = &kernel;
    reversed_ = reversed;
    for (auto& fiber : fibers_) fiber.at = Place::ready;
    while (fibers_[0].at != Place::done) {
      for (unsigned w = 0; w < thread_count / lane_count; ++w)
        run_warp(in_order(w, thread_count / lane_count));
      expect_all(0, thread_count);
    }
  }

  void meet() { yield(Place::block); }
  /// Returns the values of all lanes once each has given its own.
  const std::uint32_t* exchange(std::uint32_t own) {
    auto& turn = fibers_[current_].turn;
    auto& given = given_[current_ / lane_count][turn];
    turn ^= 1;
    given[current_ % lane_count] = own;
    yield(Place::warp);
    return given.data();
  }
  [[nodiscard]] unsigned thread() const { return current_; }

  static inline ThreadBlock* running = nullptr;

 private:
  enum class Place : std::uint8_t { ready, warp, block, done };
  struct Fiber {
    ucontext_t start;
    jmp_buf here;
    bool lives = false;
    Place at = Place::ready;
    unsigned turn = 0;
  };
  static constexpr std::size_t stack_bytes = 64 * 1024;

  [[nodiscard]] unsigned in_order(unsigned i, unsigned count) const { return reversed_ ? count - 1 - i : i; }
  void expect_all(unsigned first, unsigned count) const {
    for (unsigned t = first; t < first + count; ++t) {
      if (fibers_[t].at == fibers_[first].at) continue;
      std::cerr << "thread " << t << " does not come to where thread " << first
                << " does not reach the barrier or shuffle where thread ";
      std::abort();
    }
  }
  /// Runs a warp to the next barrier of the thread block.
  void run_warp(unsigned w) {
    do {
      for (unsigned i = 0; i < lane_count; ++i) resume(w * lane_count + in_order(i, lane_count));
      expect_all(w * lane_count, lane_count);
    } while (fibers_[w * lane_count].at == Place::warp);
  }
  void resume(unsigned t) {
    current_ = t;
    if (_setjmp(scheduler_) != 0) return;
    auto& fiber = fibers_[t];
    if (fiber.lives) _longjmp(fiber.here, 1);
    fiber.lives = true;
    setcontext(&fiber.start);
  }
  void yield(Place place) {
    auto& fiber = fibers_[current_];
    fiber.at = place;
    if (_setjmp(fiber.here) == 0) _longjmp(scheduler_, 1);
  }
  static void live() {
    for (;;) {
      (*running->kernel_)();
      running->yield(Place::done);
    }
  }

  std::vector<std::byte> stacks_;
  std::array<Fiber, thread_count> fibers_;
  std::array<std::array<std::array<std::uint32_t, lane_count>, 2>, thread_count / lane_count> given_{};
  const std::function<void()>* kernel_ = nullptr;
  jmp_buf scheduler_;
  unsigned current_ = 0;
  bool reversed_ = false;
};

}  // namespace emulated

// ---- CUDA's names ----

#define ISTHMUS_LANES inline
#define ISTHMUS_UNROLL
#define ISTHMUS_FAST_EXP expf
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct alignas(16) float4 {
  float x, y, z, w;
};

#define threadIdx (emulated::Index{emulated::ThreadBlock::running->thread()})
inline emulated::Index blockIdx;
inline emulated::Index gridDim;

/// A NaN has the bits of every NaN that a GPU computes.
inline std::uint32_t __float_as_uint(float x) {
  return x == x ? std::bit_cast<std::uint32_t>(x) : 0x7fffffffU;
}
inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
inline void __syncthreads() { emulated::ThreadBlock::running->meet(); }
inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t x, unsigned mask) {
  const auto lane = threadIdx.x % emulated::lane_count;
  return emulated::ThreadBlock::running->exchange(x)[lane ^ mask];
}
inline std::uint32_t __shfl_up_sync(unsigned, std::uint32_t x, unsigned apart) {
  const auto lane = threadIdx.x % emulated::lane_count;
  return emulated::ThreadBlock::running->exchange(x)[lane >= apart ? lane - apart : lane];
}
inline std::uint32_t __shfl_sync(unsigned, std::uint32_t x, unsigned from) {
  return emulated::ThreadBlock::running->exchange(x)[from];
}
inline std::uint32_t __reduce_add_sync(unsigned, std::uint32_t x) {
  const auto* all = emulated::ThreadBlock::running->exchange(x);
  std::uint32_t sum = 0;
  for (unsigned lane = 0; lane < emulated::lane_count; ++lane) sum += all[lane];
  return sum;
}
inline int __clz(int x) { return std::countl_zero(static_cast<std::uint32_t>(x)); }
inline void atomicMin(unsigned long long* to, unsigned long long x) {
  if (x < *to) *to = x;
}

namespace emulated {

/// Runs kernels with two thread blocks, one after the other.
class Launcher {
 public:
  explicit Launcher(bool reversed) : reversed_(reversed) {}

  template <class Kernel, class... Arguments>
  void operator()(Kernel* kernel, const Arguments&... arguments) const {
    gridDim.x = 2;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
      threads_.run([&] { kernel(arguments...); }, reversed_);
  }

 private:
  bool reversed_;
  mutable ThreadBlock threads_;
};

}  // namespace emulated
