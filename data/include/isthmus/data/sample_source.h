#pragma once
// Which sequences a replica trains on, and in which order.

#include <cstdint>

#include "isthmus/base/samples.h"

namespace isthmus::data {

/// Asked by one thread of the loader, ahead of their use: what it has given will be trained on.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// What comes next: one sequence at least and at most `most` (>= 1), of one track and in a row. Does not
  /// wait: the loader could not end meanwhile.
  [[nodiscard]] virtual SampleRange next(std::uint64_t most) = 0;
};

/// A track from somewhere on, without end: a replica's own share, as long as all others are there.
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
