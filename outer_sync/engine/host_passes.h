#pragma once
// The passes in host memory, on the CPU: each has finished when the call returns.

#include "isthmus/outer_sync/engine/passes.h"

namespace isthmus::outer_sync {

class HostPasses : public Passes {
 public:
  std::shared_ptr<std::byte> device_memory(std::size_t bytes) override;
  std::shared_ptr<std::byte> host_memory(std::size_t bytes) override;
  void copy(const void* from, void* to, std::size_t bytes) override;
  void clear(std::span<float> values) override;
  std::unique_ptr<Mark> encode_difference(const quant::CodecSpec& spec, std::span<const float> minuend,
                                          std::span<const float> subtrahend, quant::Feedback feedback,
                                          const quant::Noise& noise, std::span<std::byte> out) override;
  void decode_accumulate(const quant::CodecSpec& spec, std::span<const std::byte> in, float weight,
                         std::span<float> sum) override;
  void decode_apply(const quant::CodecSpec& spec, std::span<const std::byte> in, const quant::OuterStep& step,
                    std::span<float> theta, std::span<float> velocity, std::span<float> local) override;
  void products(std::span<const float> x, std::span<const float> y,
                std::span<quant::Products> tiles) override;
  std::uint64_t digest(std::span<const float> values) override;
  std::unique_ptr<Mark> mark() override;
  void after_model() override {}
  void before_model() override {}
};

}  // namespace isthmus::outer_sync
