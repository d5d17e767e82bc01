#include "bench/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "bench/measured_exchange.h"
#include "bench/report.h"
#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/base/say.h"
#include "isthmus/base/time.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "participant/participant.h"
#include "plan/model_size.h"
#include "run/experiment/identity.h"
#include "run/process/names.h"
#include "run/process/stopper.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using outer_sync::ChunkId;
using outer_sync::FragmentId;
using outer_sync::Range;

namespace {

/// One flat buffer in host memory that only the outer loop reads. Initially zero on every replica.
class FlatParameters final : public outer_sync::LocalParameters {
 public:
  explicit FlatParameters(std::uint64_t size) : values_(size, 0.0F) {}
  std::span<const float> read(Range range) override { return modify(range); }
  std::span<float> modify(Range range) override {
    return std::span(values_).subspan(range.begin, range.size);
  }
  void modified(Range /*range*/) override {}

 private:
  AlignedVector<float> values_;
};

/// Simulates training: adds values of roughly normal distribution that do not repeat within a chunk.
class Drift {
 public:
  explicit Drift(std::uint64_t seed) : values_(period), state_(seed) {
    for (std::uint64_t i = 0; i < period; ++i) {
      float sum = -2;
      for (std::uint64_t part = 0; part < 4; ++part) sum += random_unit(seed, part, i);
      values_[i] = scale * sum;
    }
  }
  void move(std::span<float> parameters) {
    auto at = (state_ = mix64(state_)) % period;
    while (!parameters.empty()) {
      const auto n = std::min<std::uint64_t>(parameters.size(), period - at);
      for (std::uint64_t i = 0; i < n; ++i) parameters[i] += values_[at + i];
      parameters = parameters.subspan(n);
      at = 0;
    }
  }

 private:
  static constexpr std::uint64_t period = 1 << 20;
  static constexpr float scale = 1e-3F;
  std::vector<float> values_;
  std::uint64_t state_;
};

class BenchReplica final : public TrainingHooks {
 public:
  BenchReplica(OuterBenchRequest request, Stopper& stopper)
      : stopper_(stopper),
        request_(std::move(request)),
        config_(request_.experiment),
        step_time_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(request_.step_time.seconds))),
        layout_(even_layout(request_.experiment.outer, request_.parameters)),
        parameters_(layout_.buffer_size()),
        drift_(noise_seed(config_, request_.name)),
        schedule_(layout_.fragment_count(), config_.outer.sync_phases(),
                  static_cast<std::uint64_t>(config_.outer.sync_delay), 0),
        member_(std::make_unique<BenchMember>(config_, layout_, trace_)),
        exchange_(member_->measured),
        participant_({.experiment = config_,
                      .name = request_.name,
                      .layout = layout_,
                      .state = std::make_unique<outer_sync::OuterState>(layout_, parameters_,
                                                                        config_.outer.sender_feedback()),
                      .member = std::move(member_),
                      .trace = trace_,
                      .stopper = &stopper_},
                     *this) {}

  int run() {
    auto hello = hello_of(config_, request_.name, request_.build);
    hello.config = bench_items(request_);
    participant_.join(std::move(hello));
    try {
      make_steps();
    } catch (const std::exception&) {
      participant_.close();
      throw;
    }
    participant_.close(stopper_.leaving() ? "asked to by a signal" : "");
    if (!participant_.final_hash()) return stopper_.exit_status();
    if (!request_.quiet) {
      say_line(fmt::format("{}: computed {:.2f} % of {} steps, global hash {}", request_.name,
                           100 * measured_.compute / std::max(measured_.wall, 1e-9), measured_.steps,
                           participant_.final_hash()->hex()));
    }
    return 0;
  }

 private:
  void make_steps() {
    const auto filled = filling_steps(config_);
    begun_ = Clock::now();
    while (!stopper_.leaving() && participant_.next()) {  // no round is worth waiting for
      make_step();
      if (participant_.outer().step() <= filled) begin_ = now();
      measured_ = now() - begin_;
    }
  }

  /// Changes the parameters, sleeps until the step time is over, and then runs the outer loop.
  void make_step() {
    const auto end = Clock::now() + step_time_;
    drift();
    if (Clock::now() < end) {
      std::this_thread::sleep_until(end);
      so_far_.late_wake += seconds_since(end);
    }
    so_far_.compute += request_.step_time.seconds;
    ++so_far_.steps;
    const auto outer = Clock::now();
    const double elsewhere = exchange_.waiting + exchange_.applying;
    participant_.made({.tokens = 1,
                       .compute_seconds = request_.step_time.seconds,
                       .busy_seconds = request_.step_time.seconds});
    so_far_.encoding += seconds_since(outer) - (exchange_.waiting + exchange_.applying - elsewhere);
  }

  /// Changes the fragments that the next step sends.
  void drift() {
    const auto begin = Clock::now();
    auto& outer = participant_.outer();
    for (auto step = outer.step() + 1; step <= outer.step_after_next(); ++step) {
      for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
        if (schedule_.sends(p, step)) drift_.move(parameters_.modify(layout_.fragment(p)));
      }
    }
    so_far_.noise += seconds_since(begin);
  }

  void say(const std::string& text) override {
    if (!request_.quiet) say_line(request_.name + ": " + text);
  }
  /// A benchmark has no checkpoints.
  [[nodiscard]] Restored restore(std::uint64_t /*step*/) override { return {}; }

  [[nodiscard]] std::string summary(const MemberReport& report) override {
    const auto& network = config_.network;
    const auto took = std::span(exchange_.fragment_seconds).subspan(begin_.taken, measured_.taken);
    OuterBenchMember member;
    member.name = report.name;
    member.global_hash = report.global_hash;
    member.parameters = report.parameters;
    member.step_time = request_.step_time.seconds;
    member.steps = report.last_step;
    member.measured_steps = measured_.steps;
    member.measured_seconds = measured_.wall;
    member.compute_seconds = measured_.compute;
    member.waiting_seconds = measured_.waiting;
    member.encoding_seconds = measured_.encoding;
    member.applying_seconds = measured_.applying;
    member.late_wake_seconds = measured_.late_wake;
    member.noise_seconds = measured_.noise;
    member.rounds = report.rounds;
    member.measured_rounds = measured_.taken;
    member.late_rounds = measured_.late;
    member.fragment_seconds_median = quantile({took.begin(), took.end()}, 0.5);
    member.fragment_seconds_p99 = quantile({took.begin(), took.end()}, 0.99);
    member.payload_bytes = report.payload_bytes;
    member.total_bytes = report.total_bytes;
    const double emulated = network.emulate.rate.bits_per_second;
    member.link_bits_per_second = emulated > 0 ? emulated : network.rate.bits_per_second;
    member.stopped = report.stopped;
    return to_json(member).dump();
  }

  /// Sums since the start.
  struct Totals {
    double wall = 0, compute = 0, waiting = 0, encoding = 0, applying = 0, late_wake = 0, noise = 0;
    std::uint64_t steps = 0, taken = 0, late = 0;
    friend Totals operator-(const Totals& a, const Totals& b) {
      return {a.wall - b.wall,         a.compute - b.compute,   a.waiting - b.waiting,
              a.encoding - b.encoding, a.applying - b.applying, a.late_wake - b.late_wake,
              a.noise - b.noise,       a.steps - b.steps,       a.taken - b.taken,
              a.late - b.late};
    }
  };

  [[nodiscard]] Totals now() const {
    auto totals = so_far_;
    totals.wall = seconds_since(begun_);
    totals.waiting = exchange_.waiting;
    totals.applying = exchange_.applying;
    totals.taken = exchange_.fragment_seconds.size();
    totals.late = exchange_.late;
    return totals;
  }

  Stopper& stopper_;
  OuterBenchRequest request_;
  Experiment& config_;
  const Clock::duration step_time_;
  const outer_sync::FragmentLayout layout_;
  FlatParameters parameters_;
  Drift drift_;
  const outer_sync::Schedule schedule_;
  Trace trace_;                          // writes no file
  std::unique_ptr<BenchMember> member_;  ///< moved into the participant
  MeasuredExchange& exchange_;
  Participant participant_;
  Clock::time_point begun_ = Clock::now();  ///< start of the first step
  Totals so_far_;                           ///< without the figures of `exchange_`
  Totals begin_;                            ///< at the start of the measured steps
  Totals measured_;
};

outer_sync::protocol::View bench_mesh(const OuterBenchRequest& request, ChunkId chunks) {
  const auto replicas = static_cast<std::uint16_t>(request.experiment.replicas);
  outer_sync::protocol::View view;
  view.members.resize(replicas);
  for (ChunkId k = 0; k < chunks; ++k)
    view.owners.push_back(static_cast<outer_sync::protocol::MemberIndex>(k % replicas));
  return view;
}

}  // namespace

std::uint64_t bench_memory(const OuterBenchRequest& request) {
  const auto layout = even_layout(request.experiment.outer, request.parameters);
  const auto bound = outer_sync::memory_bound(request.experiment.outer, layout,
                                              bench_mesh(request, layout.chunk_count()), 0);
  return request.parameters * sizeof(float) + bound.state + bound.usual;
}

config::SharedItems bench_items(OuterBenchRequest& request) {
  auto items = shared_items(request.experiment);
  items.emplace_back("bench.params", std::to_string(request.parameters));
  items.emplace_back("bench.step_time", fmt::format("{}s", request.step_time.seconds));
  return items;
}

int run_bench_replica(OuterBenchRequest request) {
  check_member_name("--name", request.name);
  auto& network = request.experiment.network;
  network.certs = own_certificates(network.certs, request.name);
  return run_stoppable([&](Stopper& stopper) { return BenchReplica(std::move(request), stopper).run(); });
}

}  // namespace isthmus::app
