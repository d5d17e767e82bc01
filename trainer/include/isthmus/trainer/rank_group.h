#pragma once
// The ranks of one replica as a group of libtorch's collectives (c10d): Gloo on CPUs and NCCL on GPUs.
// On one machine ranks meet through a file, so nothing listens on the network.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

/// Where ranks on several machines meet: c10d's store, which rank 0 serves.
struct RankMeeting {
  std::string host;  ///< rank 0's machine
  std::uint16_t port = 0;
  int listener = -1;        ///< rank 0: a socket that listens there; the group takes it over
  std::string own_address;  ///< of this rank's machine, on which Gloo listens
};

struct RankGroupOptions {
  std::filesystem::path
      store;  ///< equal on all ranks; must not exist before the first of them, and is removed at the end
  std::optional<RankMeeting> meeting = {};  ///< several machines; `store` is not used
  std::uint32_t rank = 0, ranks = 1;
  /// Consecutive ranks that share each sequence.
  std::uint32_t ranks_per_sequence = 1;
  Device device = Device::cpu;  ///< device of the spans; for GPUs, the thread's current one
  /// For meeting, and for each operation: ranks start one together, so it takes no longer than its transfer.
  std::chrono::milliseconds timeout{60'000};
};

/// All ranks call every operation, in the same order and with equal sizes, and all receive the same bits.
/// Spans are on the ranks' device; there an operation runs after work that was queued before it, and work
/// queued later sees its result. If another rank is lost, throws Error(network) naming the rank that throws;
/// the values are then unspecified.
class RankGroup {
 public:
  /// Returns once all ranks have met.
  explicit RankGroup(const RankGroupOptions& options);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// Replaces the values by their mean over ranks.
  void mean(std::span<float> values);
  /// Replaces the values by those of one rank.
  void broadcast(std::span<float> values, std::uint32_t from);
  /// Sends the r-th of `ranks` equal parts of `from` to rank r, and receives this rank's part of each rank,
  /// in the order of the ranks (all-to-all).
  void exchange(std::span<const std::byte> from, std::span<std::byte> to);
  /// Blocks until the device has done the queued work. Throws if that was aborted.
  void settle();

  /// The group of the ranks that share this rank's sequences; null if there are no others.
  [[nodiscard]] std::unique_ptr<RankGroup> sequences() const;

  /// Ends operations that wait for a lost rank. Safe from any thread. (On CPUs a broken connection
  /// ends them, or the timeout.)
  void abort() noexcept;
  [[nodiscard]] bool is_aborted() const { return aborted_; }

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t ranks() const;

 private:
  struct Group;
  explicit RankGroup(std::unique_ptr<Group> group);

  std::unique_ptr<Group> group_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace isthmus::trainer
