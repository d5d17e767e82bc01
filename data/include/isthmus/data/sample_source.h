#pragma once
// Which sequences a replica trains on, and in which order.

#include <cstdint>

#include "isthmus/base/samples.h"

namespace isthmus::data {

/// Called by one thread of the loader, ahead of use: every sequence that it returns will be trained on.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// The next sequences of one track, consecutive: at least one and at most `most` (>= 1). Must not block, or
  /// the loader could not stop.
  [[nodiscard]] virtual SampleRange next(std::uint64_t most) = 0;
};

/// An endless range of one track: a replica's own share, as long as no other replica is lost.
class OneTrack final : public SampleSource {
 public:
  explicit OneTrack(std::uint64_t track = 0, std::uint64_t first = 0) : track_(track), next_(first) {}
  [[nodiscard]] SampleRange next(std::uint64_t most) override {
    const auto begin = next_;
    next_ += most;
    return {track_, begin, next_};
  }

 private:
  std::uint64_t track_, next_;
};

}  // namespace isthmus::data
