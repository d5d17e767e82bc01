#include "isthmus/data/loader.h"

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bounded_queue.h"
#include "isthmus/base/error.h"
#include "window.h"

namespace isthmus::data {
namespace {

using Clock = Trace::Clock;

struct HostSlot {
  std::unique_ptr<HostBuffer> buffer;
  std::uint64_t sequence = 0, epoch = 0;
  Clock::time_point begin;
};

struct DeviceSlot {
  std::unique_ptr<DeviceBuffer> buffer;
  Batch batch;
};

Sampler make_sampler(const Corpus& corpus, const LoaderOptions& options) {
  const auto tokens = corpus.tokens(Split::train);
  const auto windows = window_count(tokens, static_cast<std::uint64_t>(options.seq_len));
  if (windows == 0) {
    throw Error(ErrorKind::data, "the training part of the corpus has " + std::to_string(tokens) +
                                     " tokens, fewer than one window of " +
                                     std::to_string(options.seq_len + 1));
  }
  return {windows, static_cast<std::uint64_t>(options.replica), static_cast<std::uint64_t>(options.replicas),
          options.seed};
}

}  // namespace

struct Loader::Pipeline {
  Pipeline(const Corpus& the_corpus, const LoaderOptions& the_options, Device& device, Trace& the_trace)
      : corpus(the_corpus),
        options(the_options),
        trace(the_trace),
        sampler(make_sampler(corpus, options)),
        first_epoch(sampler.at(options.first_sequence).epoch),
        epoch(first_epoch),
        host(static_cast<std::size_t>(options.prefetch)),
        // One more than may be ahead: the batch in the consumer's hands.
        on_device(static_cast<std::size_t>(options.prefetch) + 1),
        free_host(host.size()),
        full_host(host.size()),
        free_device(on_device.size()),
        full_device(on_device.size()) {
    allocate(device);
    // Last, when nothing can fail any more: threads that run are joined by the destructor only.
    disk_load = std::thread([this] { run_stage(full_host, [this] { load_all(); }); });
    gpu_transfer = std::thread([this] { run_stage(full_device, [this] { transfer_all(); }); });
  }

  ~Pipeline() {
    for (auto* queue : {&free_host, &full_host, &free_device, &full_device}) queue->stop();
    disk_load.join();
    gpu_transfer.join();
  }

  void allocate(Device& device) {
    const auto bytes = batch_bytes(options.batch, options.seq_len);
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i].buffer = device.host_buffer(bytes);
      free_host.push(i);
    }
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      auto& slot = on_device[i];
      slot.buffer = device.device_buffer(bytes);
      auto* inputs = reinterpret_cast<std::int64_t*>(slot.buffer->data());
      slot.batch = {0, 0, inputs, inputs + options.batch * options.seq_len, options.batch, options.seq_len};
      free_device.push(i);
    }
  }

  /// A stage ends when a queue is stopped, or with a fault that it hands to the next one.
  template <class Stage>
  static void run_stage(BoundedQueue<std::size_t>& to, Stage stage) {
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
      if (!slot) return;
      load(sequence, host[*slot]);
      full_host.push(*slot);
    }
  }

  void load(std::uint64_t sequence, HostSlot& slot) {
    slot.sequence = sequence;
    slot.epoch = sampler.at(sequence).epoch;
    slot.begin = Clock::now();
    auto* inputs = reinterpret_cast<std::int64_t*>(slot.buffer->data());
    auto* targets = inputs + options.batch * options.seq_len;
    for (std::int64_t b = 0; b < options.batch; ++b) {
      const auto window = sampler.at(sequence + static_cast<std::uint64_t>(b)).window;
      read_window(corpus, Split::train, window, static_cast<std::size_t>(options.seq_len),
                  inputs + b * options.seq_len, targets + b * options.seq_len);
    }
    if (traced(slot.epoch)) {
      trace.complete(Trace::Row::disk_load, "disk_load", slot.begin, Clock::now(), argument(sequence));
    }
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
    to.buffer->fill(*from.buffer, batch_bytes(options.batch, options.seq_len));
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

  const Corpus& corpus;
  const LoaderOptions options;
  Trace& trace;
  const Sampler sampler;
  const std::uint64_t first_epoch;

  // The caller's.
  std::uint64_t epoch;
  std::optional<std::size_t> current;
  Clock::duration waited{};

  // A slot belongs to the thread that popped its index.
  std::vector<HostSlot> host;
  std::vector<DeviceSlot> on_device;
  BoundedQueue<std::size_t> free_host, full_host, free_device, full_device;
  std::thread disk_load, gpu_transfer;
};

Loader::Loader(const Corpus& corpus, const LoaderOptions& options, Device& device, Trace& trace)
    : pipeline_(std::make_unique<Pipeline>(corpus, options, device, trace)) {}

Loader::~Loader() = default;

const Batch& Loader::next() { return pipeline_->next(); }

double Loader::waited_seconds() const { return std::chrono::duration<double>(pipeline_->waited).count(); }

}  // namespace isthmus::data
