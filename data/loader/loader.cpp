#include "isthmus/data/loader.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/time.h"
#include "loader/stream_reader.h"
#include "loader/window_reader.h"
#include "order/mixture.h"
#include "queues/bounded_queue.h"

namespace isthmus::data {
namespace {

using Clock = Trace::Clock;

/// The groups that hold a batch's rows.
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

/// The content of a batch, which moves from stage to stage.
struct Content {
  std::vector<const std::byte*> rows;
  std::vector<SampleRange> samples;
  InUse in_use;
  std::uint64_t epoch = 0;
  bool traced = false;
  Clock::time_point begin;
};

struct HostSlot {
  std::unique_ptr<HostBuffer> buffer;
  Content content;
};

/// On a host, the rows of the batch are in the buffer or where they were read to.
struct DeviceSlot {
  std::unique_ptr<DeviceBuffer> buffer;
  Content content;
  Batch batch;
};

/// Sequences that are in no batch yet, and the data sets that they come from.
struct Run {
  SampleRange samples;
  std::shared_ptr<const Mixture> turns;
};

std::vector<double> weights_of(const Corpus& corpus) {
  std::vector<double> weights;
  for (const auto& set : corpus.sets()) weights.push_back(set.weight());
  return weights;
}

std::unique_ptr<WindowReader> make_reader(const Corpus& corpus, const DataSet& set,
                                          const LoaderOptions& options, bool rows_stay) {
  const auto seq_len = static_cast<std::uint64_t>(options.seq_len);
  // Rows that are in the queue, or that the thread before it or the consumer holds.
  const auto in_use = static_cast<std::uint64_t>(rows_stay ? options.batch * (options.prefetch + 1) : 0);
  const auto windows = window_count(set.tokens(Split::train), seq_len);
  if (windows == 0) {
    data_error(fmt::format("the training part of the corpus {} has {} tokens, fewer than one window of {}",
                           set.name(), set.tokens(Split::train), seq_len + 1));
  }
  const WindowOrder order = {
      .windows = windows,
      .replicas = static_cast<std::uint64_t>(options.replicas),
      .seed = options.seed,
      .shuffle = shuffle_of(set, seq_len, static_cast<std::uint64_t>(options.shuffle_blocks))};
  return std::make_unique<WindowReader>(set, order, seq_len, corpus.width(), in_use,
                                        static_cast<std::uint64_t>(options.threads));
}

std::vector<std::unique_ptr<WindowReader>> make_readers(const Corpus& corpus, const LoaderOptions& options,
                                                        bool rows_stay) {
  std::vector<std::unique_ptr<WindowReader>> readers;
  for (const auto& set : corpus.sets()) {
    if (set.stream() == nullptr) readers.push_back(make_reader(corpus, set, options, rows_stay));
  }
  return readers;
}

/// For a stream, all of which belongs to this replica; otherwise null.
std::unique_ptr<StreamReader> make_stream_reader(const Corpus& corpus, const LoaderOptions& options,
                                                 bool rows_stay) {
  const auto& set = corpus.sets().front();
  if (set.stream() == nullptr) return nullptr;
  auto alone = options;
  alone.replicas = 1;
  return std::make_unique<StreamReader>(
      set, static_cast<std::uint64_t>(options.seq_len),
      [&corpus, &set, alone, rows_stay] { return make_reader(corpus, set, alone, rows_stay); });
}

std::uint64_t max_read_ahead(const std::vector<std::unique_ptr<WindowReader>>& readers) {
  std::uint64_t most = 0;
  for (const auto& reader : readers) most = std::max(most, reader->ahead());
  return most;
}

}  // namespace

/// It has many fields because it holds those of all stages; each group below names the thread that uses it.
struct Loader::Pipeline {
  Pipeline(const Corpus& the_corpus, const LoaderOptions& the_options, SampleSource& the_source,
           Device& device, Trace& the_trace)
      : options(the_options),
        trace(the_trace),
        width(the_corpus.width()),
        on_host(device.is_host()),
        weights(weights_of(the_corpus)),
        source(the_source),
        readers(make_readers(the_corpus, options, on_host)),
        stream(make_stream_reader(the_corpus, options, on_host)),
        wanted(static_cast<std::uint64_t>(options.batch) + max_read_ahead(readers)),
        host(on_host ? 0 : static_cast<std::size_t>(options.prefetch)),
        // One more than the prefetch: the consumer holds a batch.
        on_device(static_cast<std::size_t>(options.prefetch) + 1),
        free_host(host.size()),
        full_host(host.size()),
        free_device(on_device.size()),
        full_device(on_device.size()),
        pool(static_cast<std::size_t>(options.threads)) {
    allocate(device);
    disk_load = std::jthread(
        [this] { run_stage("disk_load", on_host ? full_device : full_host, [this] { load_all(); }); });
    if (on_host) return;
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
  void allocate(Device& device) {
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i].buffer = device.host_buffer(batch_bytes());
      allocate(host[i].content);
      free_host.push(i);
    }
    for (std::size_t i = 0; i < on_device.size(); ++i) {
      auto& slot = on_device[i];
      slot.buffer = device.device_buffer(batch_bytes());
      allocate(slot.content);
      slot.batch.width = width;
      slot.batch.seq_len = options.seq_len;
      slot.batch.together = !on_host;
      free_device.push(i);
    }
  }
  void allocate(Content& content) const {
    content.rows.resize(static_cast<std::size_t>(options.batch));
    content.samples.reserve(content.rows.size());
  }

  /// A stage ends when a queue is stopped, or with a fault that it passes to the next one.
  template <class Stage>
  static void run_stage(const char* name, BoundedQueue<std::size_t>& to, Stage stage) {
    pthread_setname_np(pthread_self(), name);  // shown by `top -H` and profilers
    try {
      stage();
    } catch (const Error& error) {
      to.close({error.kind(), error.what()});
    } catch (const std::exception& error) {
      to.close({ErrorKind::data, std::string("loader: ") + error.what()});
    }
  }

  static std::string argument(const Content& content) {
    const auto& first = content.samples.front();
    return fmt::format("{{\"track\":{},\"sequence\":{}}}", first.track, first.begin);
  }

  void load_all() {
    while (on_host ? load_to_device() : load_to_host()) {
    }
  }

  /// These return false when the loader stops.
  bool load_to_host() {
    const auto slot = free_host.pop();
    if (!slot || !load(host[*slot].content, host[*slot].buffer->data())) return false;
    full_host.push(*slot);
    return true;
  }
  bool load_to_device() {
    const auto slot = free_device.pop();
    if (!slot || !load(on_device[*slot].content, on_device[*slot].buffer->data())) return false;
    hand_over(*slot);
    return true;
  }

  /// Asks the source for the sequences of the next batch and for those to read ahead.
  void ask() {
    while (known < wanted) {
      const auto given = source.next(wanted - known);
      assert(given.size() > 0 && given.size() <= wanted - known);
      known += given.size();
      const auto turns = mixture_of(given.track);
      for (std::size_t set = 0; set < readers.size(); ++set)  // (empty for a stream)
        readers[set]->expect({given.track, turns->count(set, given.begin), turns->count(set, given.end)},
                             pool);
      if (!runs.empty() && runs.back().samples.track == given.track &&
          runs.back().samples.end == given.begin) {
        runs.back().samples.end = given.end;
      } else {
        runs.push_back({given, turns});
      }
    }
  }

  /// Keeps only the last one: tracks with another seed are rare.
  std::shared_ptr<const Mixture> mixture_of(std::uint64_t track) {
    const auto share = share_of(track, static_cast<std::uint64_t>(options.replicas), options.seed);
    if (!mixture || mixture_seed != share.seed) {
      mixture = std::make_shared<const Mixture>(weights, share.seed);
      mixture_seed = share.seed;
    }
    return mixture;
  }

  bool load(Content& content, std::byte* space) {
    content.begin = Clock::now();
    ask();
    note_epoch(content);
    content.samples.clear();
    for (auto rows = std::span(content.rows); !rows.empty();) {
      auto& [samples, turns] = runs.front();
      const auto stop = std::min(samples.end, samples.begin + rows.size());
      content.samples.push_back({samples.track, samples.begin, stop});
      while (samples.begin < stop) {
        const auto end = turns->end_of_turn(samples.begin, stop);
        const auto count =
            read(samples.begin, turns->at(samples.begin).set,
                 rows.first(static_cast<std::size_t>(end - samples.begin)), space, content.in_use);
        if (count == 0) return false;
        samples.begin += count;
        rows = rows.subspan(count);
        space += count * row_bytes();
      }
      if (samples.begin == samples.end) runs.pop_front();
    }
    known -= content.rows.size();
    if (content.traced)
      trace.complete(Trace::Row::disk_load, "disk_load", content.begin, Clock::now(), argument(content));
    return true;
  }

  /// Reads sequences of one data set, as many as are together in memory. Returns their number, or 0 when the
  /// loader stops.
  std::size_t read(std::uint64_t sequence, std::size_t set, std::span<const std::byte*> rows,
                   std::byte* space, InUse& in_use) {
    const auto [count, group] =
        stream ? stream->rows(sequence, rows, pool, space) : readers[set]->rows(rows, pool, space);
    if (on_host) {
      in_use.add(group);
    } else if (group != nullptr) {
      for (std::size_t i = 0; i < count; ++i, space += row_bytes()) std::memcpy(space, rows[i], row_bytes());
    }
    return count;
  }

  void note_epoch(Content& content) {
    const auto& [samples, turns] = runs.front();
    content.epoch = stream ? stream->epoch(samples.begin)
                           : readers.front()->epoch(samples.track, turns->count(0, samples.begin));
    if (!first_epoch) first_epoch = content.epoch;
    content.traced = trace.recording() && content.epoch < *first_epoch + options.traced_epochs;
  }

  void transfer_all() {
    while (true) {
      const auto from = full_host.pop();
      if (!from) return;
      const auto to = free_device.pop();
      if (!to) return;
      transfer(host[*from], on_device[*to]);
      free_host.push(*from);
      hand_over(*to);
    }
  }

  void transfer(HostSlot& from, DeviceSlot& to) {
    const auto copied = to.buffer->fill(*from.buffer, batch_bytes());
    std::swap(to.content, from.content);
    auto& content = to.content;
    for (std::size_t i = 0; i < content.rows.size(); ++i)
      content.rows[i] = to.buffer->data() + i * row_bytes();
    if (content.traced)
      trace.complete(Trace::Row::gpu_transfer, "gpu_transfer", copied.begin, copied.end, argument(content));
  }

  /// Passes a batch to the consumer.
  void hand_over(std::size_t index) {
    auto& [buffer, content, batch] = on_device[index];
    batch.rows = content.rows;
    batch.samples = content.samples;
    batch.epoch = content.epoch;
    const auto number = handed_over++;
    if (content.traced)
      trace.async(Trace::Row::disk_load, "chunk", number, content.begin, Clock::now(), argument(content));
    full_device.push(index);
  }

  const Batch& next() {
    if (current) {
      on_device[*current].buffer->release();
      on_device[*current].content.in_use.release();
      free_device.push(*current);
      current.reset();
    }
    const auto begin = Clock::now();
    current = full_device.pop();
    const auto end = Clock::now();
    waited += end - begin;
    const auto& [buffer, content, batch] = on_device[current.value()];
    if (content.traced) trace.complete(Trace::Row::train, "gpu_queue_wait", begin, end, argument(content));
    if (batch.epoch != epoch) {
      epoch = batch.epoch;
      trace.instant(Trace::Row::train, "epoch", fmt::format("{{\"epoch\":{}}}", batch.epoch));
    }
    return batch;
  }

  const LoaderOptions options;
  Trace& trace;
  const std::uint32_t width;
  const bool on_host;
  const std::vector<double> weights;

  // Used by disk_load.
  SampleSource& source;
  std::vector<std::unique_ptr<WindowReader>> readers;
  std::unique_ptr<StreamReader> stream;  ///< used instead of `readers` if the corpus is a stream
  const std::uint64_t wanted;            ///< sequences to have from the source before a batch is made
  std::uint64_t known = 0;
  std::deque<Run> runs;  ///< the known sequences
  std::shared_ptr<const Mixture> mixture;
  std::uint64_t mixture_seed = 0;
  std::optional<std::uint64_t> first_epoch;

  std::uint64_t handed_over = 0;  ///< batches; used by the last stage

  // Used by the caller.
  std::optional<std::uint64_t> epoch;
  std::optional<std::size_t> current;
  Clock::duration waited{};

  // A slot belongs to the thread that popped its index.
  std::vector<HostSlot> host;
  std::vector<DeviceSlot> on_device;
  BoundedQueue<std::size_t> free_host, full_host, free_device, full_device;
  ReaderPool pool;  // after the readers, which its threads use
  std::jthread disk_load, gpu_transfer;
  /// Runs before the threads are joined, also if one of them could not be started.
  struct Stop {
    Pipeline& pipeline;
    ~Stop() { pipeline.stop(); }
  } stop_first{*this};
};

Loader::Loader(const Corpus& corpus, const LoaderOptions& options, SampleSource& source, Device& device,
               Trace& trace)
    : pipeline_(std::make_unique<Pipeline>(corpus, options, source, device, trace)) {}

Loader::~Loader() = default;

const Batch& Loader::next() { return pipeline_->next(); }

double Loader::waited_seconds() const { return seconds(pipeline_->waited); }

}  // namespace isthmus::data
