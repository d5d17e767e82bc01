#include "observe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>

#include "certs.h"
#include "isthmus/base/error.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/outer_loop.h"
#include "isthmus/outer_sync/transport/member_node.h"
#include "json_output.h"
#include "model_setup.h"
#include "run_folder.h"
#include "signals.h"

namespace isthmus::app {
namespace {

using outer_sync::protocol::Round;
using Rounds = std::vector<Round>;

/// The loop's, which trains on nothing.
class PlainParameters final : public outer_sync::LocalParameters {
 public:
  explicit PlainParameters(std::uint64_t size) : values_(size, 0.0F) {}
  std::span<const float> read(outer_sync::Range range) override { return part(range); }
  std::span<float> modify(outer_sync::Range range) override { return part(range); }
  void modified(outer_sync::Range) override {}

 private:
  std::span<float> part(outer_sync::Range range) {
    return std::span(values_).subspan(range.begin, range.size);
  }
  std::vector<float> values_;
};

/// It accepts nobody, so it needs no port.
outer_sync::NetworkConfig unknown_to_others(outer_sync::NetworkConfig network) {
  network.listen = outer_sync::NetworkConfig::no_port;
  network.advertise.clear();
  return network;
}

class Observer {
 public:
  explicit Observer(ObserveRequest request)
      : request_(std::move(request)),
        config_(request_.experiment),
        folder_(config_.folder() / request_.name),
        lock_(folder_),
        setup_(config_),
        bytes_per_token_(setup_.bytes_per_token(config_)),
        metrics_(folder_ / "metrics.jsonl"),
        local_(setup_.table.layout().buffer_size()),
        node_(unknown_to_others(config_.network), setup_.table.layout(),
              outer_sync::codec_plan(config_.outer, static_cast<std::uint64_t>(config_.run.seed)),
              closing_rule(config_), trace_, config_.outer.lossless_stage()),
        loop_(config_.outer, setup_.table.layout(), local_, node_, trace_) {}

  int run() {
    auto hello = setup_.hello(config_, request_.name, request_.build);
    hello.member.kind = outer_sync::protocol::MemberKind::observer;
    static_cast<void>(node_.join(std::move(hello)));
    if (request_.once) return take_once();
    while (node_.follow(loop_, limits())) advance();
    return end();
  }

 private:
  [[nodiscard]] Rounds all() const { return Rounds(schedule_fragments(), std::numeric_limits<Round>::max()); }
  [[nodiscard]] outer_sync::FragmentId schedule_fragments() const {
    return setup_.table.layout().fragment_count();
  }
  [[nodiscard]] Rounds rounds() const {
    Rounds out;
    for (const auto& fragment : loop_.fragments()) out.push_back(fragment.round);
    return out;
  }

  // ---- following ----

  /// Rounds wait where their fragment is ahead of the others, so that there is a moment at which the global
  /// parameters are those of one step.
  [[nodiscard]] Rounds limits() const {
    if (!target_ || is_over()) return all();
    Rounds out;
    for (outer_sync::FragmentId p = 0; p < schedule_fragments(); ++p)
      out.push_back(loop_.schedule().rounds_due(p, *target_));
    return out;
  }

  /// The run evaluates its last step after the final sync, which is of no step.
  [[nodiscard]] bool is_over() const {
    const auto last = static_cast<std::uint64_t>(config_.run.steps);
    return *target_ > last || (*target_ == last && config_.outer.final_sync);
  }

  /// Steps between two that the run evaluates; its last one is always such.
  [[nodiscard]] std::uint64_t every() const {
    return static_cast<std::uint64_t>(config_.run.eval_every > 0 ? config_.run.eval_every
                                                                 : config_.run.steps);
  }

  /// Whether a fragment is past what the target needs: it was fetched anew.
  [[nodiscard]] bool is_past() const {
    const auto at = rounds();
    const auto due = limits();
    return !std::ranges::equal(at, due, std::less_equal<>());
  }

  /// Something was taken: evaluates where the global parameters are those of a step that the run evaluates.
  void advance() {
    if (!node_.has_state()) return target_.reset();
    const bool begins = !target_;
    if (begins || is_past()) target_ = loop_.schedule().step_with(rounds(), every());
    if (begins && rounds() != limits()) evaluate(std::nullopt);
    for (; !is_over() && rounds() == limits(); target_ = *target_ + every()) evaluate(target_);
  }

  int take_once() {
    JsonOutput json(request_.json);
    while (node_.follow(loop_, all())) {
      if (!node_.has_state() || !node_.is_current()) continue;
      evaluate(std::nullopt);
      write_model();
      node_.leave("it has what it came for");
      json.print(newest_);
      return 0;
    }
    return end();
  }

  int end() {
    while (node_.follow(loop_, all())) {
    }
    if (!node_.has_state()) {
      say("the run ended before its state was here");
      return 0;
    }
    evaluate(std::nullopt);
    write_model();
    const auto hash = loop_.global_hash();
    const auto finished = node_.finished().value_or(outer_sync::protocol::Finished{});
    if (!finished.problem.empty()) throw Error(ErrorKind::divergence, finished.problem);
    if (hash == finished.global_hash) {
      say(fmt::format("the run has ended: global hash {}", hash.hex()));
    } else if (node_.is_current()) {
      throw Error(ErrorKind::divergence,
                  fmt::format("the run has ended with global hash {}, and what followed "
                              "from its rounds here is {}",
                              finished.global_hash.hex(), hash.hex()));
    } else {
      say(
          fmt::format("the run has ended with global hash {}; its last rounds did not come here any more, "
                      "where it is {}",
                      finished.global_hash.hex(), hash.hex()));
    }
    return 0;
  }

  // ---- what it is for ----

  void evaluate(std::optional<std::uint64_t> step) {
    nlohmann::ordered_json line;
    if (step) line["step"] = *step;
    line["rounds"] = rounds();
    const auto hash = loop_.global_hash().hex();
    std::string text = step ? fmt::format("step {}", *step) : "rounds";
    if (!step) {
      for (const auto round : rounds()) text += " " + std::to_string(round);
    }
    if (setup_.heldout.sequences() > 0) {
      const auto sum = setup_.evaluate(loop_.global_parameters());
      const double loss = sum.nats / static_cast<double>(sum.tokens);
      line["eval_loss"] = loss;
      text += fmt::format(": loss {:.4f}", loss);
      if (bytes_per_token_ > 0) {
        const double bits = loss / bytes_per_token_ / std::numbers::ln2;
        line["bits_per_byte"] = bits;
        text += fmt::format(", {:.3f} bits per byte", bits);
      }
    }
    line["global_hash"] = hash;
    metrics_.write(line);
    say(text + ", hash " + hash.substr(0, 16));
    newest_ = line;
  }

  void write_model() {
    if (request_.out.empty()) return;
    outer_sync::log::write_safetensors(request_.out, setup_.tensors(loop_.global_parameters()),
                                       {{"run", config_.run.name},
                                        {"model", setup_.table.fingerprint().hex()},
                                        {"rounds", nlohmann::json(rounds()).dump()},
                                        {"global_hash", loop_.global_hash().hex()}});
    say("wrote " + request_.out.string());
  }

  void say(const std::string& text) const {
    fmt::print("{}: {}\n", request_.name, text);
    std::fflush(stdout);
  }

  ObserveRequest request_;
  Experiment& config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  ModelSetup setup_;
  double bytes_per_token_;
  Trace trace_;
  Metrics metrics_;
  PlainParameters local_;
  outer_sync::MemberNode node_;
  outer_sync::OuterLoop loop_;
  nlohmann::ordered_json newest_;        ///< evaluation
  std::optional<std::uint64_t> target_;  ///< step that is evaluated next; none before the state is here
};

}  // namespace

int run_observe(ObserveRequest request) {
  take_replica_name(request.name, request.experiment.network.certs);
  const SignalThread signals([](int signal, int) { _exit(128 + signal); });
  return Observer(std::move(request)).run();
}

}  // namespace isthmus::app
