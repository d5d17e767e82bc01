#pragma once
// The data-parallel baseline: averages all replicas' gradients by libtorch's own Gloo
// (c10d::ProcessGroupGloo).

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace isthmus::trainer {

struct GlooOptions {
  std::string store_host = "127.0.0.1";   ///< host of the key-value store through which ranks meet; rank 0
                                          ///< serves it
  std::uint16_t store_port = 0;           ///< equal on all ranks
  std::string listen_host = "127.0.0.1";  ///< this rank's own address or host name, which the other ranks
                                          ///< dial
  int rank = 0;
  int world = 1;
  std::chrono::milliseconds timeout{60'000};  ///< for meeting, and for each operation
};

class GlooAllReduce {
 public:
  /// Returns once all ranks have met. Throws Error(network) naming store and rank.
  explicit GlooAllReduce(const GlooOptions& options);
  ~GlooAllReduce();
  GlooAllReduce(const GlooAllReduce&) = delete;
  GlooAllReduce& operator=(const GlooAllReduce&) = delete;

  /// Replaces `values` by their mean over ranks; all ranks call it with equal sizes. Sends fp32. Throws
  /// Error(network) if a rank is lost; the values are then unspecified.
  void mean(std::span<float> values);
  /// Bytes sent by this rank, computed rather than measured: a ring all-reduce of n values over M ranks sends
  /// 2 (M - 1) / M * 4 n bytes from each (Patarasu and Yuan 2009), without headers.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Group;
  std::unique_ptr<Group> group_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace isthmus::trainer
