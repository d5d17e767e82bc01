#pragma once
// A device that needs no GPU: the GPU's kernels run on the CPU (tests/quant/emulated_gpu.h). Queued work runs
// only when a caller waits for it, so a missing wait, or a missing order between the queue and the model,
// shows in the results.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "device_parameters.h"
#include "emulated_passes.h"
#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/engine/passes.h"
#include "isthmus/outer_sync/engine/state_digest.h"
#include "passes_table.h"
#include "replicas.h"

namespace isthmus::outer_sync {

class EmulatedDevice final : public Passes {
 public:
  /// Only one EmulatedPasses may exist at a time; all devices share it.
  explicit EmulatedDevice(quant::EmulatedPasses& kernels) : kernels_(kernels) {}
  ~EmulatedDevice() override {
    run_until(queued_);
    EXPECT_EQ(marks_now_, 0U) << "a mark outlives the passes";
  }

  std::shared_ptr<std::byte> device_memory(std::size_t bytes) override { return memory(bytes); }
  std::shared_ptr<std::byte> host_memory(std::size_t bytes) override { return memory(bytes); }

  void copy(const void* from, void* to, std::size_t bytes) override {
    queue([=] { std::memcpy(to, from, bytes); });
  }
  void clear(std::span<float> values) override {
    queue([=] { std::ranges::fill(values, 0.0F); });
  }
  std::unique_ptr<Mark> encode_difference(const quant::CodecSpec& spec, std::span<const float> minuend,
                                          std::span<const float> subtrahend, quant::Feedback feedback,
                                          const quant::Noise& noise, std::span<std::byte> out) override {
    const quant::Encoding e{.input = quant::Encoding::Input::difference,
                            .a = minuend.data(),
                            .b = subtrahend.data(),
                            .noise = noise,
                            .elements = minuend.size()};
    const auto encoding = quant::completed(spec, e, feedback, out);
    const auto first_bad = std::make_shared<std::size_t>();
    queue([this, spec, encoding, first_bad] { *first_bad = kernels_.encode(spec, encoding); });
    return std::make_unique<EmulatedMark>(*this, first_bad, minuend.size());
  }
  void decode_accumulate(const quant::CodecSpec& spec, std::span<const std::byte> in, float weight,
                         std::span<float> sum) override {
    queue([=, this] {
      EXPECT_TRUE(quant::valid(spec, in, sum.size()))
          << "the bytes were overwritten before they were decoded";
      kernels_.accumulate(spec, in.data(), weight, sum.data(), sum.size());
    });
  }
  void decode_apply(const quant::CodecSpec& spec, std::span<const std::byte> in, const quant::OuterStep& step,
                    std::span<float> theta, std::span<float> velocity, std::span<float> local) override {
    queue([=, this] {
      EXPECT_TRUE(quant::valid(spec, in, theta.size()))
          << "the bytes were overwritten before they were decoded";
      kernels_.apply(spec, in.data(), step, theta.data(), velocity.data(), local.data(), theta.size());
    });
  }
  void products(std::span<const float> x, std::span<const float> y,
                std::span<quant::Products> tiles) override {
    queue([=, this] { kernels_.products(x.data(), y.data(), x.size(), tiles.data()); });
  }
  std::uint64_t digest(std::span<const float> values) override {
    run_until(queued_);
    return digest_of(values);
  }
  std::unique_ptr<Mark> mark() override { return std::make_unique<EmulatedMark>(*this, nullptr, 0); }

  void after_model() override { EmulatedParameters::model_work = 0; }
  void before_model() override { run_until(queued_); }

 private:
  class EmulatedMark final : public Mark {
   public:
    EmulatedMark(EmulatedDevice& device, std::shared_ptr<std::size_t> first_bad, std::size_t elements)
        : device_(device), behind_(device.queued_), first_bad_(std::move(first_bad)), elements_(elements) {
      EXPECT_LE(++device_.marks_now_, marks) << "more marks than a GPU has";
    }
    ~EmulatedMark() override {
      device_.run_until(behind_);
      --device_.marks_now_;
    }
    std::optional<std::size_t> wait() override {
      device_.run_until(behind_);
      if (!first_bad_ || *first_bad_ == elements_) return std::nullopt;
      return *first_bad_;
    }

   private:
    EmulatedDevice& device_;
    std::size_t behind_;
    std::shared_ptr<std::size_t> first_bad_;
    std::size_t elements_;
  };

  void queue(std::function<void()> work) {
    EXPECT_EQ(EmulatedParameters::model_work, 0) << "a pass does not wait for the model";
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    ++queued_;
  }
  void run_until(std::size_t count) {
    const std::lock_guard lock(mutex_);
    for (; done_ < count; ++done_) {
      work_.front()();
      work_.pop_front();
    }
  }
  /// Filled with garbage, so that code which relies on zeros fails.
  std::shared_ptr<std::byte> memory(std::size_t bytes) {
    const auto owner = std::make_shared<AlignedVector<std::byte>>(bytes, std::byte{0xa5});
    // Freeing waits for queued work, as on a GPU.
    return {owner->data(), [this, owner](std::byte*) { run_until(queued_); }};
  }

  quant::EmulatedPasses& kernels_;
  static inline std::mutex mutex_;  ///< one thread queues, two wait; devices share the kernels
  std::deque<std::function<void()>> work_;
  std::size_t queued_ = 0, done_ = 0, marks_now_ = 0;
};

}  // namespace isthmus::outer_sync
