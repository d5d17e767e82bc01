#pragma once
// Batches of the training split, made ahead of their use:
//   data.threads threads  disk -> blocks of tokens, checked    (what is read in place)
//   thread disk_load      windows of those, in order -> host buffer, where there is a GPU
//   thread gpu_transfer   host buffer -> device buffer         (likewise)
//   caller of next()      device buffer -> training
// Of a stream, disk_load waits for what has not come yet.
// Bounded queues join them, and blocks are read ahead: a group's, and four for each thread, in whole groups.
// Every buffer is allocated by the constructor. Which sequences come is asked of a source: before a batch is
// made, as many as it has, and as many more as are read ahead (of the data set with the largest groups; none
// where windows are read one by one). So what the source has given and next() has not is at most that and
// prefetch + 1 batches, on a GPU 2 prefetch + 1. The trace shows disk_load, gpu_transfer, chunk (one batch
// from the start of its load to its arrival), gpu_queue_wait (the caller waits) and epoch (an instant at each
// border).

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

/// Token ids on the device: rows of seq_len + 1 ids of `width` bytes (2 or 4, little-endian, unsigned). The
/// first seq_len of a row are inputs, the last seq_len, one further, their targets. As narrow as the files
/// have them, so that a quarter or less of what int64 takes is copied; and on a CPU not copied at all, but
/// where blocks were read to.
struct Batch {
  std::span<const SampleRange> samples;  ///< what it is made of, in the order of its rows
  std::uint64_t epoch = 0;               ///< of its first sequence; of the first data set in a mixture
  std::span<const std::byte* const> rows;
  std::uint32_t width = 2;
  std::int64_t seq_len = 0;
  bool together = false;  ///< rows follow one another in memory, without gaps

  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(rows.size()); }
  [[nodiscard]] std::size_t row_bytes() const { return (static_cast<std::size_t>(seq_len) + 1) * width; }
};

struct LoaderOptions {
  std::int64_t seq_len = 256;
  std::int64_t batch = 1;            ///< sequences of this replica in one step
  std::int64_t replicas = 1;         ///< that the data is shared by; see Share
  std::uint64_t seed = 0;            ///< of the order of windows; equal on all replicas
  std::int64_t prefetch = 2;         ///< batches each stage may be ahead
  std::int64_t threads = 2;          ///< that read blocks
  std::int64_t shuffle_blocks = 16;  ///< that are mixed with each other
  std::uint64_t traced_epochs = 5;   ///< epochs from the first batch on whose chunks are traced one by one
};

class Loader {
 public:
  /// All but the options outlive the loader. `source` is asked by the thread disk_load alone, for the next
  /// sequences to train on; what it throws is thrown by next(). What was asked of it and did not come to a
  /// batch is lost with the loader. Throws Error(data) if the training split has no full window, and what the
  /// device throws if there is no memory for the buffers.
  Loader(const Corpus& corpus, const LoaderOptions& options, SampleSource& source, Device& device,
         Trace& trace);
  /// Stops all threads at once, whatever they are doing.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, waiting for it if it is not there yet. It is valid until the next call. What
  /// went wrong in a stage is thrown here, after the batches that were made before it.
  const Batch& next();
  /// Seconds that all next() so far have waited.
  [[nodiscard]] double waited_seconds() const;

 private:
  struct Pipeline;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace isthmus::data
