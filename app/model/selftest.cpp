#include "model/selftest.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/data/random_batch.h"
#include "model/selftest_checks.h"
#include "run/output/json_output.h"
#include "run/process/machine.h"
#include "run/process/scratch_folder.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/ranks.h"

namespace isthmus::app {
namespace {

constexpr std::int64_t steps = 8;

struct Check {
  std::string name;
  std::function<Finding()> look;
  std::string advice;
};

// ---- ranks ----

class RankChecks {
 public:
  RankChecks(std::int64_t ranks, bool gpus, std::vector<std::string> program)
      : program_(std::move(program)),
        experiment_(selftest_experiment(ranks, gpus)),
        hardware_(experiment_),
        table_({experiment_.model, selftest_vocab}, experiment_.outer.num_fragments,
               static_cast<std::uint64_t>(experiment_.outer.chunk_elements)),
        ids_(*hardware_.memory, experiment_.inner.batch, experiment_.data.seq_len, selftest_vocab,
             selftest_seed) {}

  /// Compares the gradient with that of one rank.
  Finding gradients(std::int64_t ranks_per_sequence) {
    trainer::Replica one(table_, options());
    one.forward_backward(ids_.get());
    const auto expected = std::vector<float>(one.gradients().begin(), one.gradients().end());
    double error = 0;
    with_ranks({.ranks_per_sequence = ranks_per_sequence}, [&](trainer::SiteReplica& site) {
      site.forward_backward(ids_.get());
      error = relative_distance(site.gradients(), expected);
    });
    constexpr double rounding = 1e-5;
    return {error < rounding, fmt::format("relative difference {:.1e}", error)};
  }

  /// Trains without ZeRO-1. Throws if the ranks' parameters differ.
  Finding equal_parameters() {
    plain_.reset();
    with_ranks({}, [&](trainer::SiteReplica& site) { plain_ = train(site); });  // state() compares
    return {true, fmt::format("{} steps", steps)};
  }

  Finding zero() {
    if (!plain_) return {false, "nothing to compare with"};
    std::optional<trainer::ReplicaState> sharded;
    with_ranks({.zero = true}, [&](trainer::SiteReplica& site) { sharded = train(site); });
    const bool same = sharded->parameters == plain_->parameters &&
                      sharded->first_moment == plain_->first_moment &&
                      sharded->second_moment == plain_->second_moment;
    return {same, same ? "all bits equal" : "bits differ"};
  }

 private:
  [[nodiscard]] trainer::ReplicaOptions options() const {
    return replica_options(experiment_, hardware_.device, hardware_.precision, -1);
  }

  /// `how`, with the experiment's number of ranks.
  void with_ranks(trainer::ReplicaConfig how, const std::function<void(trainer::SiteReplica&)>& work) {
    const ScratchFolder folder("selftest");
    RankSetup setup{.experiment = experiment_,
                    .folder = folder.path(),
                    .name = "the self-test",
                    .vocab = selftest_vocab,
                    .separator = -1,
                    .device = hardware_.device,
                    .precision = hardware_.precision,
                    .program = program_};
    how.ranks = experiment_.replica.ranks;
    setup.experiment.replica = how;
    RankProcesses processes(setup);
    trainer::SiteReplica site(table_, options(), processes.take_ranks());
    work(site);
  }

  trainer::ReplicaState train(trainer::SiteReplica& site) {
    for (std::int64_t step = 0; step < steps; ++step) {
      site.forward_backward(ids_.get());
      static_cast<void>(site.inner_step(1e-3));
    }
    return site.state();
  }

  std::vector<std::string> program_;
  Experiment experiment_;
  Hardware hardware_;
  trainer::ParameterTable table_;
  data::RandomBatch ids_;
  std::optional<trainer::ReplicaState> plain_;
};

// ---- the table ----

/// Prints the findings. Returns the exit status.
int report(const std::vector<Check>& checks, JsonOutput& json) {
  int status = 0;
  auto findings = nlohmann::ordered_json::array();
  for (const auto& check : checks) {
    Finding finding;
    int failed = exit_status(ErrorKind::divergence);
    try {
      finding = check.look();
    } catch (const Error& error) {
      finding = {false, error.what()};
      failed = error.exit_status();
    } catch (const std::exception& error) {  // libtorch's own
      finding = {false, error.what()};
    }
    fmt::print("{:<6} {:<52} {}\n", finding.ok ? "ok" : "FAILED", check.name, finding.figure);
    if (!finding.ok) fmt::print("       -> {}\n", check.advice);
    std::fflush(stdout);
    findings.push_back({{"check", check.name}, {"ok", finding.ok}, {"figure", finding.figure}});
    if (!finding.ok) findings.back()["advice"] = check.advice;
    if (!finding.ok) status = std::max(status, failed);
  }
  json.print({{"ok", status == 0}, {"checks", findings}});
  return status;
}

std::int64_t gpus_asked(const std::string& gpus) {
  const auto there = trainer::probe_hardware().usable_gpus();
  if (gpus == "all") return there;
  std::int64_t count = 0;
  const auto [end, bad] = std::from_chars(gpus.data(), gpus.data() + gpus.size(), count);
  if (bad != std::errc() || end != gpus.data() + gpus.size() || count < 1 || count > there)
    throw Error(ErrorKind::config,
                fmt::format("--gpus is {}, and libtorch can use {} here; expected all, or from 1 to {}", gpus,
                            there, there));
  return count;
}

}  // namespace

int run_selftest(const SelftestRequest& request) {
  JsonOutput json(request.json);
  const bool on_gpus = !request.gpus.empty();
  const auto gpus = on_gpus ? gpus_asked(request.gpus) : 0;
  if (on_gpus && gpus == 0)
    throw Error(ErrorKind::config,
                "--gpus is all, but this build can use no GPU here (isthmus --version shows what it was "
                "built for); leave --gpus out to check the CPU");
  const auto ranks = request.ranks > 0 ? request.ranks : on_gpus ? gpus : 2;
  std::vector<Check> checks = {{"codecs on the CPU: bytes of known values", check_cpu_codecs,
                                "this machine's replicas would disagree with the others: build with "
                                "scripts/setup.sh's compiler, without "
                                "-ffast-math and without -ffp-contract"}};
  for (int gpu = 0; gpu < gpus; ++gpu) {
    checks.push_back({fmt::format("codecs on GPU {}: the CPU's bytes and outer step", gpu),
                      [gpu] { return check_gpu_codecs(gpu); },
                      "do not train with others on this GPU: set device: cpu, and report the codecs named"});
    for (const std::string architecture : {"gpt2", "llama"}) {
      checks.push_back({fmt::format("a step of {} on GPU {}: the CPU's gradient", architecture, gpu),
                        [gpu, architecture] { return check_gpu_gradient(gpu, architecture); },
                        "do not train on this GPU; report the GPU's name and driver"});
    }
    checks.push_back({fmt::format("steps in bf16 on GPU {}: the same bits twice", gpu),
                      [gpu] { return check_gpu_repeats(gpu); },
                      "runs will not repeat bit for bit here; report the GPU's name and driver"});
    checks.push_back({fmt::format("steps in bf16 on GPU {}: a NaN is reported", gpu),
                      [gpu] { return check_gpu_reports_nan(gpu); },
                      "a diverging run would continue here unnoticed; report the GPU's name and driver"});
  }
  std::optional<RankChecks> with_ranks;
  if (ranks > 1) {
    with_ranks.emplace(ranks, on_gpus, request.program);
    const auto where = on_gpus ? "GPUs" : "CPU processes";
    checks.push_back({fmt::format("{} ranks on {}: gradients of one rank", ranks, where),
                      [&] { return with_ranks->gradients(1); },
                      "train with replica.ranks: 1; on GPUs, check whether NCCL's own tests pass"});
    // The model has four heads.
    if (const auto together = std::gcd(ranks, std::int64_t{4}); together > 1) {
      checks.push_back(
          {fmt::format("{} ranks share each sequence: gradients of one rank", together),
           [&, together] { return with_ranks->gradients(together); },
           "train with replica.ranks_per_sequence: 1; on GPUs, check whether NCCL's own tests pass"});
    }
    checks.push_back({fmt::format("{} ranks on {}: equal parameters on all", ranks, where),
                      [&] { return with_ranks->equal_parameters(); },
                      "train with replica.ranks: 1, and report this machine's GPUs and driver"});
    checks.push_back({fmt::format("{} ranks on {}: ZeRO-1 changes no bit", ranks, where),
                      [&] { return with_ranks->zero(); }, "train with replica.zero: false"});
  }
  return report(checks, json);
}

}  // namespace isthmus::app
