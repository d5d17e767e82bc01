#include "isthmus/data/loader.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bounded_queue.h"
#include "isthmus/base/error.h"
#include "mixture.h"
#include "window_reader.h"

namespace isthmus::data {
namespace {

using Clock = Trace::Clock;

/// Groups whose memory a batch lies in.
class InUse {
 public:
  void add(WindowGroup* group) {
    if (group == nullptr || (!groups_.empty() && groups_.back() == group)) return;
    group->use();
    groups_.push_back(group);
  }
  void release() {
    for (auto* group : groups_) group->release();
    groups_.clear();
  }

 private:
  std::vector<WindowGroup*> groups_;
};

/// A batch in host memory: rows in the buffer, or where they were read to.
struct HostSlot {
  std::unique_ptr<HostBuffer> buffer;
  std::vector<const std::byte*> rows;
  InUse in_use;
  std::uint64_t sequence = 0, epoch = 0;
  Clock::time_point begin;
};

struct DeviceSlot {
  std::unique_ptr<DeviceBuffer> buffer;
  std::vector<const std::byte*> rows;
  InUse in_use;
  Batch batch;
};

std::vector<double> weights_of(const Corpus& corpus) {
  std::vector<double> weights;
  for (const auto& set : corpus.sets()) weights.push_back(set.weight());
  return weights;
}

std::vector<std::unique_ptr<WindowReader>> make_readers(const Corpus& corpus, const LoaderOptions& options,
                                                        bool rows_stay) {
  const auto seq_len = static_cast<std::uint64_t>(options.seq_len);
  // What lies in both queues, in the hands of both threads and of the consumer.
  const auto in_use = static_cast<std::uint64_t>(rows_stay ? options.batch * (2 * options.prefetch + 1) : 0);
  std::vector<std::unique_ptr<WindowReader>> readers;
  for (const auto& set : corpus.sets()) {
    const auto windows = window_count(set.tokens(Split::train), seq_len);
    if (windows == 0) {
      throw Error(ErrorKind::data, "the training part of the corpus " + set.name() + " has " +
                                       std::to_string(set.tokens(Split::train)) +
                                       " tokens, fewer than one window of " + std::to_string(seq_len + 1));
    }
    const auto shuffle = shuffle_of(set, seq_len, static_cast<std::uint64_t>(options.shuffle_blocks));
    const Sampler sampler(windows, static_cast<std::uint64_t>(options.replica),
                          static_cast<std::uint64_t>(options.replicas), options.seed, shuffle);
    readers.push_back(std::make_unique<WindowReader>(set, sampler, shuffle, seq_len, corpus.width(), in_use,
                                                     static_cast<std::uint64_t>(options.replicas)));
  }
  return readers;
}

}  // namespace

struct Loader::Pipeline {
  Pipeline(const Corpus& the_corpus, const LoaderOptions& the_options, Device& device, Trace& the_trace)
      : options(the_options),
        trace(the_trace),
        width(the_corpus.width()),
        on_host(device.is_host()),
        mixture(weights_of(the_corpus), options.seed),
        readers(make_readers(the_corpus, options, on_host)),
        first_epoch(epoch_of(options.first_sequence)),
        epoch(first_epoch),
        host(static_cast<std::size_t>(options.prefetch)),
        // One more than may be ahead: the batch in the consumer's hands.
        on_device(static_cast<std::size_t>(options.prefetch) + 1),
        free_host(host.size()),
        full_host(host.size()),
        free_device(on_device.size()),
        full_device(on_device.size()),
        pool(static_cast<std::size_t>(options.threads)) {
    allocate(device);
    disk_load = std::jthread([this] { run_stage("disk_load", full_host, [this] { load_all(); }); });
    gpu_transfer =
        std::jthread([this] { run_stage("gpu_transfer", full_device, [this] { transfer_all(); }); });
  }

  void stop() {
    pool.stop();
    for (auto* queue : {&free_host, &full_host, &free_device, &full_device}) queue->stop();
  }

  [[nodiscard]] std::size_t batch_bytes() const {
    return static_cast<std::size_t>(options.batch) * row_bytes();
  }
  [[nodiscard]] std::size_t row_bytes() const {
    return (static_cast<std::size_t>(options.seq_len) + 1) * width;
  }
  [[nodiscard]] std::uint64_t epoch_of(std::uint64_t sequence) const {
    return readers.front()->epoch(mixture.count(0, sequence));
  }

  void allocate(Device& device) {
    const auto batch = static_cast<std::size_t>(options.batch);
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i].buffer = device.host_buffer(batch_bytes());
      host[i].rows.resize(batch);
      free_host.push(i);
    }
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      auto& slot = on_device[i];
      slot.buffer = device.device_buffer(batch_bytes());
      slot.rows.resize(batch);
      slot.batch.width = width;
      slot.batch.seq_len = options.seq_len;
      slot.batch.together = !on_host;
      free_device.push(i);
    }
  }

  /// A stage ends when a queue is stopped, or with a fault that it hands to the next one.
  template <class Stage>
  static void run_stage(const char* name, BoundedQueue<std::size_t>& to, Stage stage) {
    pthread_setname_np(pthread_self(), name);  // as `top -H` and profilers show it
    try {
      stage();
    } catch (const Error& error) {
      to.close({error.kind(), error.what()});
    } catch (const std::exception& error) {
      to.close({ErrorKind::data, std::string("loader: ") + error.what()});
    }
  }

  [[nodiscard]] bool traced(std::uint64_t of_epoch) const {
    return of_epoch < first_epoch + options.traced_epochs;
  }
  static std::string argument(std::uint64_t sequence) {
    return "{\"sequence\":" + std::to_string(sequence) + "}";
  }

  void load_all() {
    for (auto sequence = options.first_sequence;; sequence += static_cast<std::uint64_t>(options.batch)) {
      const auto slot = free_host.pop();
      if (!slot || !load(sequence, host[*slot])) return;
      full_host.push(*slot);
    }
  }

  /// False if the loader ends.
  bool load(std::uint64_t sequence, HostSlot& slot) {
    slot.sequence = sequence;
    slot.epoch = epoch_of(sequence);
    slot.begin = Clock::now();
    auto* space = slot.buffer->data();
    for (auto& row : slot.rows) {
      const auto turn = mixture.at(sequence++);
      const auto read = readers[turn.set]->row(turn.sequence, pool, space);
      if (read.tokens == nullptr) return false;
      row = read.tokens;
      if (on_host) {
        slot.in_use.add(read.group);
      } else if (row != space) {
        std::memcpy(space, row, row_bytes());
      }
      space += row_bytes();
    }
    if (traced(slot.epoch)) {
      trace.complete(Trace::Row::disk_load, "disk_load", slot.begin, Clock::now(), argument(slot.sequence));
    }
    return true;
  }

  void transfer_all() {
    while (true) {
      const auto from = full_host.pop();
      if (!from) return;
      const auto to = free_device.pop();
      if (!to) return;
      transfer(host[*from], on_device[*to]);
      free_host.push(*from);
      full_device.push(*to);
    }
  }

  void transfer(HostSlot& from, DeviceSlot& to) {
    const auto begin = Clock::now();
    to.buffer->fill(*from.buffer, batch_bytes());
    if (on_host) {
      std::swap(to.rows, from.rows);
      std::swap(to.in_use, from.in_use);
    } else {
      for (std::size_t i = 0; i < to.rows.size(); ++i) to.rows[i] = to.buffer->data() + i * row_bytes();
    }
    to.batch.rows = to.rows;
    to.batch.sequence = from.sequence;
    to.batch.epoch = from.epoch;
    if (!traced(from.epoch)) return;
    const auto end = Clock::now();
    trace.complete(Trace::Row::gpu_transfer, "gpu_transfer", begin, end, argument(from.sequence));
    trace.async(Trace::Row::disk_load, "chunk", from.sequence, from.begin, end, argument(from.sequence));
  }

  const Batch& next() {
    if (current) {
      on_device[*current].buffer->release();
      on_device[*current].in_use.release();
      free_device.push(*current);
      current.reset();
    }
    const auto begin = Clock::now();
    current = full_device.pop();
    const auto end = Clock::now();
    waited += end - begin;
    const auto& batch = on_device[current.value()].batch;
    if (traced(batch.epoch)) {
      trace.complete(Trace::Row::train, "gpu_queue_wait", begin, end, argument(batch.sequence));
    }
    if (batch.epoch != epoch || batch.sequence == options.first_sequence) {
      epoch = batch.epoch;
      trace.instant(Trace::Row::train, "epoch", "{\"epoch\":" + std::to_string(epoch) + "}");
    }
    return batch;
  }

  const LoaderOptions options;
  Trace& trace;
  const std::uint32_t width;
  const bool on_host;
  const Mixture mixture;
  // disk_load's.
  std::vector<std::unique_ptr<WindowReader>> readers;
  const std::uint64_t first_epoch;

  // The caller's.
  std::uint64_t epoch;
  std::optional<std::size_t> current;
  Clock::duration waited{};

  // A slot belongs to the thread that popped its index.
  std::vector<HostSlot> host;
  std::vector<DeviceSlot> on_device;
  BoundedQueue<std::size_t> free_host, full_host, free_device, full_device;
  ReaderPool pool;  // after the readers: its threads use them
  std::jthread disk_load, gpu_transfer;
  /// Before the threads are joined, also where one of them could not be started.
  struct Stop {
    Pipeline& pipeline;
    ~Stop() { pipeline.stop(); }
  } stop_first{*this};
};

Loader::Loader(const Corpus& corpus, const LoaderOptions& options, Device& device, Trace& trace)
    : pipeline_(std::make_unique<Pipeline>(corpus, options, device, trace)) {}

Loader::~Loader() = default;

const Batch& Loader::next() { return pipeline_->next(); }

double Loader::waited_seconds() const { return std::chrono::duration<double>(pipeline_->waited).count(); }

}  // namespace isthmus::data
