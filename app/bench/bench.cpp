#include "bench/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>

#include "bench/replica.h"
#include "bench/report.h"
#include "coordinator/coordinator.h"
#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/processes/local_run.h"
#include "plan/model_size.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/process/signals.h"

namespace isthmus::app {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Ended;
using Clock = std::chrono::steady_clock;

namespace {

/// Memory available without swapping; nullopt if the system does not report it.
std::optional<std::uint64_t> available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  for (std::string rest; in >> key >> kibibytes; std::getline(in, rest)) {
    if (key == "MemAvailable:") return kibibytes << 10;
  }
  return std::nullopt;
}

void check_bench_memory(const OuterBenchRequest& request, std::uint64_t replicas) {
  const auto available = available_memory();
  const auto bytes = [](std::uint64_t n) { return format_bytes(static_cast<double>(n)); };
  const auto check = [&](std::uint64_t need) {
    if (!available || need <= *available) return;
    throw Error(
        ErrorKind::config,
        fmt::format("--params is {}, which needs {} for {} replicas on this machine, and {} are available; "
                    "expected fewer parameters, or run each replica on its own machine (--role)",
                    request.parameters, bytes(need), replicas, bytes(*available)));
  };
  // First check only the local and global parameters and the momentum: the rest is known once there is a
  // layout.
  check(replicas * request.parameters * 3 * sizeof(float));
  const auto need = replicas * bench_memory(request);
  check(need);
  if (request.quiet || request.json) return;
  say_line(fmt::format("memory: {} for {} replica{} on this machine{}", bytes(need), replicas,
                       replicas == 1 ? "" : "s", available ? ", " + bytes(*available) + " available" : ""));
}

// ---- the coordinator ----

class Observer final : public outer_sync::CoordinatorObserver {
 public:
  explicit Observer(std::int64_t steps) : steps_(steps) {}
  void message(const std::string& text) override { say_line(text); }
  /// Prints a progress line every 10 s.
  void members_changed(const Coordinator& coordinator) override {
    constexpr auto every = std::chrono::seconds(10);
    if (Clock::now() < said_ + every) return;
    std::uint64_t slowest = ~std::uint64_t{0};
    double utilization = 0;
    for (const auto& [name, member] : coordinator.members()) {
      slowest = std::min(slowest, member.heartbeat.step);
      utilization += member.heartbeat.utilization / static_cast<double>(coordinator.members().size());
    }
    if (coordinator.members().empty() || slowest == 0) return;
    said_ = Clock::now();
    say_line(fmt::format("step {} of {}, computing {:.1f} % of the time so far", slowest, steps_,
                         100 * utilization));
  }
  void evaluated(std::uint64_t /*step*/, double /*loss*/) override {}
  void round_judged(const outer_sync::protocol::RoundJudged& /*round*/) override {}
  /// Stores nothing: a benchmark cannot be resumed.
  void store(const outer_sync::protocol::LastView& /*view*/) override {}

 private:
  std::int64_t steps_;
  Clock::time_point said_ = Clock::now();
};

void write_bench_report(const OuterBenchRequest& request, const Coordinator& coordinator, JsonOutput& json) {
  std::vector<OuterBenchMember> members;
  for (const auto& [name, member] : coordinator.members())
    members.push_back(report_of<OuterBenchMember>(member.result.summary));
  if (members.empty() || members.front().measured_steps == 0)
    return say_line("stopped before the first measured step");
  const auto& outer = request.experiment.outer;
  const auto report = outer_bench_json({.codec = outer.codec,
                                        .sync_every = outer.sync_every.parts.back().value,
                                        .num_fragments = outer.num_fragments,
                                        .sync_delay = outer.sync_delay},
                                       members);
  std::fputs(outer_bench_table(report).c_str(), stdout);
  json.print(report);
  if (request.out.empty()) return;
  std::ofstream out(request.out);
  out << report.dump(2) << "\n";
  out.close();
  if (!out) throw Error(ErrorKind::data, "cannot write " + request.out.string());
}

int run_bench_coordinator(OuterBenchRequest request) {
  JsonOutput json(request.json);
  auto& experiment = request.experiment;
  Observer observer(experiment.run.steps);
  auto options = coordinator_options(experiment);
  options.config = bench_items(request);
  options.elastic = false;  // with fewer replicas the figures would mean something else
  auto network = experiment.network;
  network.certs = own_certificates(network.certs, outer_sync::tls::coordinator_name);
  std::atomic<bool> interrupted = false;
  outer_sync::CoordinatorNode node(network, std::move(options), observer);
  const SignalThread signals([&](int, int count) {
    if (count > 1) _exit(130);
    interrupted = true;
    node.request_stop("asked to by a signal");
  });
  announce_port(request.announce_fd, node.port());
  say_line(fmt::format("coordinator listens at port {}, waiting for {} replicas", node.port(),
                       experiment.replicas));
  const auto ended = node.run();
  if (ended.how == Ended::How::finished) write_bench_report(request, node.coordinator(), json);
  if (interrupted || ended.how == Ended::How::stopped) return 130;
  if (ended.how == Ended::How::finished) return 0;
  throw Error(ended.how == Ended::How::diverged ? ErrorKind::divergence : ErrorKind::network, ended.reason);
}

// ---- all on this machine ----

class OuterBench final : public LocalRun {
 public:
  explicit OuterBench(const OuterBenchRequest& request) : request_(request) {}

  int run() {
    const auto& experiment = request_.experiment;
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    auto coordinator = with_role("coordinator");
    // Only the coordinator prints the JSON document.
    if (request_.json) coordinator.emplace_back("--json");
    if (!request_.out.empty()) coordinator.insert(coordinator.end(), {"--out", request_.out.string()});
    if (start_coordinator(std::move(coordinator), experiment.network.coordinator)) {
      for (const auto& name : worker_names(experiment)) {
        auto replica = with_role("replica");
        replica.insert(replica.end(), {"--name", name, "--coordinator", address(), "--quiet"});
        processes_.push_back(std::make_unique<Process>(
            Process::Options{.name = name, .command = std::move(replica), .log = {}, .keep_fd = -1}));
      }
    }
    return watch(interrupts, std::chrono::duration<double>(experiment.run.stop_grace.seconds));
  }

 private:
  std::vector<std::string> with_role(const std::string& role) const {
    auto command = request_.command;
    command.insert(command.end(), {"--role", role});
    return command;
  }

  const OuterBenchRequest& request_;
};

}  // namespace

std::uint64_t filling_steps(const Experiment& experiment) {
  const auto& phase = experiment.outer.sync_every.parts.back();
  return static_cast<std::uint64_t>(phase.after + phase.value);
}

void make_measurable(Experiment& experiment, std::int64_t steps) {
  if (experiment.outer.data_parallel())
    throw Error(ErrorKind::config, "outer.method is data_parallel, which has no outer loop to measure");
  if (experiment.reducers > 0) {
    throw Error(ErrorKind::config, fmt::format("reducers is {}; expected 0: bench outer starts only replicas",
                                               experiment.reducers));
  }
  experiment.network.secret.clear();  // a benchmark has no run folder to keep it in
  experiment.outer.warmup_steps = 0;
  experiment.outer.final_sync = false;
  const auto filling = static_cast<std::int64_t>(filling_steps(experiment));
  experiment.run.steps = steps > 0 ? steps : filling + 2 * experiment.outer.sync_every.parts.back().value;
  experiment.outer.steps = experiment.run.steps;
  experiment.run.stop_after = 0;
  experiment.run.eval_every = experiment.run.checkpoint_every = 0;
  if (experiment.run.steps > filling) return;
  throw Error(ErrorKind::config,
              fmt::format("--steps is {}; expected more than {}, the steps that fill the pipeline and "
                          "are not measured",
                          steps, filling));
}

int run_outer_bench(OuterBenchRequest request) {
  using Role = OuterBenchRequest::Role;
  (void)even_layout(request.experiment.outer,
                    request.parameters);  // before anything starts: it throws if a fragment is too small
  if (request.role == Role::coordinator) return run_bench_coordinator(std::move(request));
  check_bench_memory(request,
                     request.role == Role::all ? static_cast<std::uint64_t>(request.experiment.replicas) : 1);
  if (request.role == Role::replica) return run_bench_replica(std::move(request));
  return OuterBench(request).run();
}

}  // namespace isthmus::app
