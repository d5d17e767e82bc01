// The cost of checkpoints for training:
//   bench_checkpoint FOLDER [--dim D] [--layers L] [--sequences S] [--steps N] [--rounds R]
//
// A real replica trains on the CPU in blocks of N steps, alternately without and with a checkpoint. A
// checkpoint is taken at the first step of its block and written in the background during the block. A run
// has R blocks of each kind, so that other load on the machine affects both alike. The program prints the
// time of the copy, for which training stops; the time of a write alone; and the extra cost of the blocks
// with a checkpoint, in steps: by the clock, and by the processor time of all threads, which the background
// takes from training if no core is free.

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/outer_state.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_writer.h"
#include "isthmus/trainer/device.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {
namespace {

constexpr std::int64_t vocab = 256;
constexpr std::int64_t seq_len = 256;

struct Options {
  std::filesystem::path folder;
  std::int64_t dim = 256, layers = 4, sequences = 8, steps = 6, rounds = 100;
};

double clock_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double wall() { return clock_of(CLOCK_MONOTONIC); }
double processor() { return clock_of(CLOCK_PROCESS_CPUTIME_ID); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Mean {
  double value = 0, error = 0;  ///< `error` is the standard error
};
/// Mean without the lowest and highest tenth, which long interruptions distort.
Mean mean_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto cut = values.size() / 10;
  values = {values.begin() + static_cast<std::ptrdiff_t>(cut),
            values.end() - static_cast<std::ptrdiff_t>(cut)};
  const auto n = static_cast<double>(values.size());
  Mean mean;
  for (const auto value : values) mean.value += value / n;
  double squares = 0;
  for (const auto value : values) squares += (value - mean.value) * (value - mean.value);
  mean.error = std::sqrt(squares / n / n);
  return mean;
}

ParameterTable table_of(const Options& options) {
  ModelConfig model;
  model.dim = options.dim;
  model.layers = options.layers;
  model.resolve(seq_len);
  return {{model, vocab}, 4, 1 << 20};
}

/// Batches of one length, with random tokens.
class Batches {
 public:
  explicit Batches(std::int64_t sequences) : ids_(static_cast<std::size_t>(sequences * (seq_len + 1))) {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::uint16_t>(random_bits(1, 2, i) % vocab);
    batch_.seq_len = seq_len;
    batch_.together = true;
    for (std::int64_t i = 0; i < sequences; ++i)
      rows_.push_back(reinterpret_cast<const std::byte*>(ids_.data()) +
                      static_cast<std::size_t>(i) * batch_.row_bytes());
    batch_.rows = rows_;
  }
  [[nodiscard]] const data::Batch& get() const { return batch_; }

 private:
  std::vector<std::uint16_t> ids_;
  std::vector<const std::byte*> rows_;
  data::Batch batch_;
};

ReplicaOptions options_of_replica() {
  ReplicaOptions options;
  options.longest_sequence = seq_len;
  return options;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        replica_(table_of(options), options_of_replica()),
        outer_(replica_.table().layout(), replica_, true),
        batches_(options.sequences),
        writer_({.folder = options.folder,
                 .keep = {.newest = 2, .every = 0},
                 .say = [](const std::string& text) { fmt::print("{}\n", text); }},
                {}, trace_) {}

  void run() {
    train(4);
    const double first = checkpoint();
    const double begin = wall(), used = processor();
    if (!writer_.finish()) throw Error(ErrorKind::data, "nothing is written, so nothing is measured");
    const double alone = wall() - begin, work = processor() - used;
    const auto bytes =
        static_cast<double>(std::filesystem::file_size(checkpoint_file(options_.folder, step_, 0)));
    fmt::print("{:.2f} M parameters, a checkpoint of {:.1f} MB\n",
               1e-6 * static_cast<double>(replica_.table().parameters()), 1e-6 * bytes);
    fmt::print("first copy, including the allocation: {:.1f} ms\n", 1e3 * first);
    fmt::print("write without training: {:.0f} ms, {:.2f} GB/s; processor time {:.0f} ms, {:.2f} GB/s\n",
               1e3 * alone, 1e-9 * bytes / alone, 1e3 * work, 1e-9 * bytes / work);
    std::vector<double> copies, plain, walls, processors;
    for (std::int64_t round = 0; round < options_.rounds; ++round) {
      const bool first_with = round % 2 == 1;
      Block with, without;
      for (const bool is_with : {first_with, !first_with}) (is_with ? with : without) = block(is_with);
      copies.push_back(with.copy);
      plain.push_back(without.wall);
      walls.push_back(with.wall - without.wall);
      processors.push_back(with.processor - without.processor);
    }
    const double step = median(plain) / static_cast<double>(options_.steps);
    fmt::print("a step {:.1f} ms; the copy {:.2f} ms, {:.2f} GB/s, {:.3f} of a step\n", 1e3 * step,
               1e3 * median(copies), 1e-9 * bytes / median(copies), median(copies) / step);
    say("by the clock", mean_of(walls), step);
    say("of processor time", mean_of(processors), step);
  }

 private:
  static void say(const char* what, const Mean& more, double step) {
    fmt::print(
        "a checkpoint takes {:+.2f} +- {:.2f} steps {}: {:+.3f} % with one every 100 steps, {:+.4f} % every "
        "1000\n",
        more.value / step, more.error / step, what, more.value / step, more.value / step / 10);
  }
  struct Block {
    double wall = 0, processor = 0, copy = 0;
  };
  Block block(bool with) {
    Block out{wall(), processor(), 0};
    train(1);
    if (with) out.copy = checkpoint();
    train(options_.steps - 1);
    if (with && (writer_.steps().empty() || writer_.steps().back() != step_of_last_))
      fmt::print("the block was too short for the write, which is not all counted\n");
    out.wall = wall() - out.wall;
    out.processor = processor() - out.processor;
    if (!writer_.finish()) throw Error(ErrorKind::data, "a checkpoint could not be written");
    return out;
  }
  void train(std::int64_t steps) {
    for (std::int64_t i = 0; i < steps; ++i, ++step_) {
      static_cast<void>(replica_.forward_backward(batches_.get()));
      static_cast<void>(replica_.inner_step(1e-3));
    }
  }
  /// Copies the state for a checkpoint and starts the write; returns the seconds that the copy took.
  double checkpoint() {
    auto& snapshot = writer_.begin(step_);
    const double begin = wall();
    snapshot.model = replica_.table().fingerprint();
    replica_.copy_state(snapshot.replica);
    for (const bool agreed : {true, false}) {
      auto& section = snapshot.others[agreed ? agreed_section : "outer"];
      BinaryWriter out(std::move(section));
      agreed ? outer_.save_agreed(out) : outer_.save_own(out);
      section = out.take();
    }
    const double seconds = wall() - begin;
    writer_.write();
    writer_.all_have(step_of_last_);
    step_of_last_ = step_;
    return seconds;
  }

  Options options_;
  Trace trace_;
  Replica replica_;
  outer_sync::OuterState outer_;
  Batches batches_;
  CheckpointWriter writer_;
  std::uint64_t step_ = 0, step_of_last_ = 0;
};

Options parse(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0)
    throw Error(
        ErrorKind::config,
        "usage: bench_checkpoint FOLDER [--dim D] [--layers L] [--sequences S] [--steps N] [--rounds R]");
  Options options;
  options.folder = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string_view key = argv[i];
    const auto value = std::max(1L, std::atol(argv[i + 1]));
    if (key == "--dim") options.dim = value;
    if (key == "--layers") options.layers = value;
    if (key == "--sequences") options.sequences = value;
    if (key == "--steps") options.steps = value;
    if (key == "--rounds") options.rounds = value;
  }
  return options;
}

}  // namespace
}  // namespace isthmus::trainer

int main(int argc, char** argv) try {
  isthmus::trainer::Bench(isthmus::trainer::parse(argc, argv)).run();
  return 0;
} catch (const isthmus::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return error.exit_status();
}
