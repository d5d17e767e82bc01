#pragma once
// Batches of the training split, prepared ahead of their use in stages that bounded queues connect:
//   data.threads threads  disk -> blocks of tokens, checked    (for data that stays on disk)
//   thread disk_load      windows of those, in order -> host buffer if there is a GPU
//   thread gpu_transfer   host buffer -> device buffer         (only with a GPU)
//   caller of next()      device buffer -> training
// The constructor allocates every buffer. Sequences that the source has returned and next() has not: at most
// a batch, the largest read-ahead of a data set, and prefetch + 1 batches (2 prefetch + 1 with a GPU). The
// trace shows disk_load, gpu_transfer, chunk (one batch from the start of its load to its arrival),
// gpu_queue_wait (the caller waits) and epoch (an instant at each border).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "isthmus/base/samples.h"
#include "isthmus/base/trace.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/device.h"
#include "isthmus/data/sample_source.h"
#include "isthmus/data/sampler.h"

namespace isthmus::data {

/// Token ids on the device: rows of seq_len + 1 unsigned little-endian ids of `width` bytes (2 or 4). The
/// first seq_len of a row are the inputs, the last seq_len their targets. This takes a half or a quarter of
/// the bytes of int64; on a CPU, rows are not even copied but point to where blocks were read.
struct Batch {
  std::span<const SampleRange> samples;  ///< sequences of the batch, in the order of its rows
  std::uint64_t epoch = 0;               ///< of the first sequence; in a mixture, of the first data set
  std::span<const std::byte* const> rows;
  std::uint32_t width = 2;
  std::int64_t seq_len = 0;
  bool together = false;  ///< whether rows are contiguous in memory

  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::size_t row_bytes() const { return (static_cast<std::size_t>(seq_len) + 1) * width; }
};

struct LoaderOptions {
  std::int64_t seq_len = 256;
  std::int64_t batch = 1;            ///< sequences of this replica per step
  std::int64_t replicas = 1;         ///< replicas that share the data; see Share
  std::uint64_t seed = 0;            ///< seed of the order of windows; equal on all replicas
  std::int64_t prefetch = 2;         ///< batches each stage may be ahead
  std::int64_t threads = 2;          ///< threads that read blocks
  std::int64_t shuffle_blocks = 16;  ///< blocks that are shuffled together
  std::uint64_t traced_epochs = 5;   ///< chunks are traced one by one in this many epochs, from the first
                                     ///< batch on
};

class Loader {
 public:
  /// Everything but the options must outlive the loader. Only the thread disk_load calls `source`, for the
  /// next sequences to train on; next() rethrows its errors. Sequences taken from it that are in no batch yet
  /// are lost with the loader. Throws Error(data) if the training split has no full window, and the device's
  /// error if there is no memory for the buffers.
  Loader(const Corpus& corpus, const LoaderOptions& options, SampleSource& source, Device& device,
         Trace& trace);
  /// Stops all threads at once; work that has not begun is dropped.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Waits for the next batch, which is valid until the next call. Throws an error of a stage after the
  /// batches that were made before it.
  const Batch& next();
  /// Seconds that all calls of next() so far have waited.
  [[nodiscard]] double waited_seconds() const;

 private:
  struct Pipeline;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace isthmus::data
