#pragma once
// Measures the rate of this member's link in bytes per second. Has no clock: the caller reports at short
// intervals what was written and whether sockets were full.

#include <chrono>
#include <cstdint>

namespace isthmus::outer_sync::transport {

class UplinkMeter {
 public:
  using Duration = std::chrono::steady_clock::duration;

  /// `written`: bytes given to sockets since the start. `full`: some socket accepts no more data now. Bytes
  /// written between two full samples that follow a third went at the link's rate; before, they may only have
  /// filled the system's buffers.
  void sample(Duration now, std::uint64_t written, bool full) {
    if (full && full_for_ >= 2) {
      time_ += now - last_;
      bytes_ += written - last_written_;
    }
    full_for_ = full ? full_for_ + 1 : 0;
    last_ = now;
    last_written_ = written;
    if (time_ < window) return;
    rate_ = static_cast<std::uint64_t>(static_cast<double>(bytes_) /
                                       std::chrono::duration<double>(time_).count());
    time_ = {};
    bytes_ = 0;
  }
  /// Rate in the last second in which the link was full; 0 before the first.
  [[nodiscard]] std::uint64_t bytes_per_second() const { return rate_; }

 private:
  static constexpr Duration window = std::chrono::seconds(1);
  Duration last_{}, time_{};
  std::uint64_t last_written_ = 0, bytes_ = 0, rate_ = 0;
  std::uint64_t full_for_ = 0;  ///< consecutive full samples
};

}  // namespace isthmus::outer_sync::transport
