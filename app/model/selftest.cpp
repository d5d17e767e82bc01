#include "model/selftest.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/random.h"
#include "isthmus/quant/passes.h"
#include "isthmus/trainer/outer_state.h"
#include "run/json_output.h"
#include "run/machine.h"
#include "worker/model_setup.h"
#include "worker/random_batch.h"
#include "worker/ranks.h"

namespace isthmus::app {
namespace {

constexpr std::int64_t vocab = 256, steps = 8;
constexpr std::uint64_t seed = 1;

// ---- what is compared ----

struct Finding {
  bool ok = true;
  std::string figure;
};

struct Check {
  std::string name;
  std::function<Finding()> look;
  std::string advice;
};

// ---- codecs ----

/// Values of all magnitudes that gradients have, exact on every machine.
std::vector<float> known_values() {
  std::vector<float> values(50'000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(random_unit(seed, 1, i) - 0.5F, -static_cast<int>(random_bits(seed, 2, i) % 12));
  return values;
}

quant::CodecSpec spec_of(quant::CodecKind kind, bool stochastic) {
  auto spec = quant::default_spec(kind);
  if (stochastic) spec.rounding = quant::Rounding::stochastic;
  return spec;
}
bool exists(const quant::CodecSpec& spec) { return quant::problem_of(spec).empty(); }

std::vector<std::byte> encoded(const quant::CodecSpec& spec, std::span<const float> values) {
  std::vector<std::byte> bytes(quant::encoded_size(spec, values.size()));
  if (quant::encode(spec, values, {}, {.key = seed, .first_element = 0}, bytes))
    throw Error(ErrorKind::divergence,
                std::string(to_string(spec.kind)) + " refuses a value that is none too large");
  return bytes;
}

/// Of the bytes of every codec, and of the parameters that an outer step makes of them.
Digest codec_digest() {
  const auto values = known_values();
  Hasher hasher;
  for (const auto name : quant::codec_names) {
    for (const bool stochastic : {false, true}) {
      const auto spec = spec_of(quant::codec_kind(name), stochastic);
      if (!exists(spec)) continue;
      const auto bytes = encoded(spec, values);
      std::vector<float> theta = values, velocity(values.size()), local(values.size());
      if (!quant::decode_apply(spec, bytes, {}, theta, velocity, local))
        throw Error(ErrorKind::divergence, std::string(name) + " does not decode what it has encoded");
      hasher.update(bytes).update(std::as_bytes(std::span(theta)));
    }
  }
  return hasher.finish();
}

/// What every CPU so far has given.
constexpr std::string_view known_digest = "92140f3b00726cbfafe3be307d8e28d50ae393e130a8f6b3bcb71719fe790c61";

Finding check_cpu_codecs() {
  const auto digest = codec_digest().hex();
  return {digest == known_digest, "SHA-256 " + digest.substr(0, 12)};
}

Finding check_gpu_codecs(int gpu) {
  const auto values = known_values();
  const auto passes = trainer::make_gpu_passes(gpu);
  const auto bytes_of_values = values.size() * sizeof(float);
  const auto floats = [&] {
    auto memory = passes->device_memory(bytes_of_values);
    return std::pair{memory, std::span(reinterpret_cast<float*>(memory.get()), values.size())};
  };
  const auto [minuend_memory, minuend] = floats();
  const auto [zero_memory, zero] = floats();
  passes->copy(values.data(), minuend.data(), bytes_of_values);
  passes->clear(zero);
  std::string wrong;
  for (const auto name : quant::codec_names) {
    for (const bool stochastic : {false, true}) {
      const auto spec = spec_of(quant::codec_kind(name), stochastic);
      if (!exists(spec)) continue;
      const auto expected = encoded(spec, values);
      const auto room = passes->device_memory(expected.size());
      std::vector<std::byte> actual(expected.size());
      const auto mark = passes->encode_difference(spec, minuend, zero, {}, {.key = seed, .first_element = 0},
                                                  {room.get(), expected.size()});
      passes->copy(room.get(), actual.data(), actual.size());
      mark->wait();
      passes->mark()->wait();
      if (actual != expected) wrong += std::string(wrong.empty() ? "" : ", ") + std::string(name);
    }
  }
  return {wrong.empty(), wrong.empty() ? "as the CPU's" : "other bytes: " + wrong};
}

// ---- ranks ----

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "isthmus-selftest-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw Error(ErrorKind::data, "cannot make the folder " + pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

Experiment small_experiment(std::int64_t ranks, bool gpus) {
  const auto text = fmt::format(
      "device: {}\nmodel: {{layers: 2, dim: 64, heads: 4}}\ndata: {{seq_len: 64}}\n"
      "inner: {{batch: {}, precision: fp32, clip: 0.1}}\nreplica: {{ranks: {}}}\n"
      "trainer: {{threads: {}, deterministic: true}}\n",
      gpus ? "cuda" : "cpu", 4 * ranks, ranks, threads_each(ranks));
  return load_experiment(config::Source::from_text(text, "the self-test's"), {}, {}, Purpose::inference);
}

class RankChecks {
 public:
  RankChecks(std::int64_t ranks, bool gpus, std::vector<std::string> program)
      : program_(std::move(program)),
        experiment_(small_experiment(ranks, gpus)),
        hardware_(experiment_),
        table_({experiment_.model, vocab}, experiment_.outer.num_fragments,
               static_cast<std::uint64_t>(experiment_.outer.chunk_elements)),
        ids_(*hardware_.memory, experiment_.inner.batch, experiment_.data.seq_len, vocab, seed) {}

  Finding gradients() {
    trainer::Replica one(table_, options());
    one.forward_backward(ids_.get());
    const auto expected = std::vector<float>(one.gradients().begin(), one.gradients().end());
    double error = 0;
    with_ranks(false, [&](trainer::SiteReplica& site) {
      site.forward_backward(ids_.get());
      error = distance(site.gradients(), expected);
    });
    constexpr double rounding = 1e-5;
    return {error < rounding, fmt::format("{:.1e} apart, of their length", error)};
  }

  /// After steps without ZeRO-1.
  Finding equal_parameters() {
    plain_.reset();
    with_ranks(false, [&](trainer::SiteReplica& site) { plain_ = train(site); });  // copy_state() compares
    return {true, fmt::format("{} steps", steps)};
  }

  Finding zero() {
    if (!plain_) return {false, "nothing to compare with"};
    std::optional<trainer::ReplicaState> sharded;
    with_ranks(true, [&](trainer::SiteReplica& site) { sharded = train(site); });
    const bool same = sharded->parameters == plain_->parameters &&
                      sharded->first_moment == plain_->first_moment &&
                      sharded->second_moment == plain_->second_moment;
    return {same, same ? "every bit" : "other bits"};
  }

 private:
  [[nodiscard]] trainer::ReplicaOptions options() const {
    return replica_options(experiment_, hardware_.device, hardware_.precision, -1);
  }

  void with_ranks(bool zero, const std::function<void(trainer::SiteReplica&)>& work) {
    const Folder folder;
    RankSetup setup{.experiment = experiment_,
                    .folder = folder.path(),
                    .name = "the self-test",
                    .vocab = vocab,
                    .separator = -1,
                    .device = hardware_.device,
                    .precision = hardware_.precision,
                    .program = program_};
    setup.experiment.replica.zero = zero;
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

  static double distance(std::span<const float> a, std::span<const float> b) {
    double square = 0, scale = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      square += std::pow(double{a[i]} - b[i], 2);
      scale += std::pow(double{b[i]}, 2);
    }
    return std::sqrt(square / scale);
  }

  std::vector<std::string> program_;
  Experiment experiment_;
  Hardware hardware_;
  trainer::ParameterTable table_;
  RandomBatch ids_;
  std::optional<trainer::ReplicaState> plain_;
};

// ---- the table ----

/// Exit status.
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
                "--gpus is all, and there is none that this build can use (isthmus --version "
                "says what it was built for); leave --gpus out to check the CPU");
  const auto ranks = request.ranks > 0 ? request.ranks : on_gpus ? gpus : 2;
  std::vector<Check> checks = {
      {"codecs on the CPU: bytes of known values", check_cpu_codecs,
       "this machine's replicas would disagree with others: build with scripts/setup.sh's compiler, without "
       "-ffast-math and without -ffp-contract"}};
  for (int gpu = 0; gpu < gpus; ++gpu) {
    checks.push_back({fmt::format("codecs on GPU {}: the CPU's bytes", gpu),
                      [gpu] { return check_gpu_codecs(gpu); },
                      "do not train on this GPU with others: say device: cpu, and report the codecs named"});
  }
  std::optional<RankChecks> with_ranks;
  if (ranks > 1) {
    with_ranks.emplace(ranks, on_gpus, request.program);
    const auto where = on_gpus ? "GPUs" : "CPU processes";
    checks.push_back({fmt::format("{} ranks on {}: gradients of one rank", ranks, where),
                      [&] { return with_ranks->gradients(); },
                      "train with replica.ranks: 1; on GPUs see whether NCCL's own tests pass"});
    checks.push_back({fmt::format("{} ranks on {}: equal parameters on all", ranks, where),
                      [&] { return with_ranks->equal_parameters(); },
                      "train with replica.ranks: 1, and report this machine's GPUs and driver"});
    checks.push_back({fmt::format("{} ranks on {}: ZeRO-1 changes no bit", ranks, where),
                      [&] { return with_ranks->zero(); }, "train with replica.zero: false"});
  }
  return report(checks, json);
}

}  // namespace isthmus::app
