#pragma once
// The ranks of one replica as libtorch's own collectives (c10d) see them: Gloo on CPUs, over loopback, and
// NCCL on GPUs. They meet through a file that all of them can reach, so nothing listens to the network.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "isthmus/trainer/device.h"

namespace isthmus::trainer {

struct RankGroupOptions {
  std::filesystem::path
      store;  ///< the same on all ranks; not there before the first of them, and gone at the end
  std::uint32_t rank = 0, ranks = 1;
  Device device = Device::cpu;  ///< where the spans lie; of GPUs the thread's current one
  /// Of meeting, and of each operation: ranks enter one together, so it takes no longer than its transfer.
  std::chrono::milliseconds timeout{60'000};
};

/// Every operation is called by all ranks, in the same order and with equal sizes, and gives all of them the
/// same bits. Spans lie on the ranks' device; there an operation is queued behind what was queued before, and
/// what is queued after it sees its result. Throws Error(network) naming the rank that it is thrown on when
/// another one is lost; the values are then unspecified.
class RankGroup {
 public:
  /// Returns when all ranks have met.
  explicit RankGroup(const RankGroupOptions& options);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// Replaces the values by their mean over ranks.
  void mean(std::span<float> values);
  /// Replaces the values by those of one rank.
  void broadcast(std::span<float> values, std::uint32_t from);
  /// Blocks until the device has done what is queued. Throws where it was cut short.
  void settle();

  /// Ends what waits for a rank that is lost. Safe from any thread. (On CPUs a connection that breaks does
  /// it.)
  void abort() noexcept;

 private:
  struct Group;
  std::unique_ptr<Group> group_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace isthmus::trainer
