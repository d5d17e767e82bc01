#include "model/observe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numbers>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/log/safetensors.h"
#include "model/export.h"
#include "model/model_folder.h"
#include "model/trained_model.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"
#include "worker/followers/follower.h"
#include "worker/setup/model_hello.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {
namespace {

/// Whether this machine has the run's data. A stream is only at the workers.
bool is_here(const data::DataConfig& data) {
  if (data.is_stream()) return false;
  auto parts = data.parts();
  if (!data.val_path.empty()) parts.push_back({.path = data.val_path});
  return std::ranges::all_of(parts, [](const data::MixturePart& part) {
    return !part.path.empty() && std::filesystem::exists(part.path);
  });
}

TrainedModel model_of(const Experiment& experiment) {
  auto tokenizer = data::make_tokenizer(experiment.data.tokenizer);
  trainer::ParameterTable table({experiment.model, tokenizer->vocab_size()}, experiment.outer.num_fragments,
                                static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  return {.experiment = experiment,
          .tokenizer = std::move(tokenizer),
          .table = std::move(table),
          .parameters = {},
          .origin = {}};
}

/// The tensors in flat parameters, by name.
std::vector<outer_sync::log::TensorView> tensors_of(const trainer::ParameterTable& table,
                                                    std::span<const float> parameters) {
  std::vector<outer_sync::log::TensorView> out;
  for (const auto& tensor : table.tensors())
    out.push_back({tensor.name, tensor.shape, parameters.subspan(tensor.range.begin, tensor.range.size)});
  return out;
}

/// Evaluates on held-out text of this machine.
struct HeldOutEvaluation {
  explicit HeldOutEvaluation(const Experiment& experiment)
      : setup(experiment), bytes_per_token(setup.bytes_per_token(experiment)) {}
  ModelSetup setup;
  double bytes_per_token;
};

class Observer {
 public:
  explicit Observer(ObserveRequest request)
      : request_(std::move(request)),
        config_(request_.experiment),
        folder_(config_.folder() / request_.name),
        lock_(folder_, patience_with_the_killed),
        model_(model_of(config_)),
        metrics_(folder_ / "metrics.jsonl"),
        follower_(config_, model_.table.layout(), nullptr, static_cast<std::uint64_t>(request_.every)) {
    if (!request_.out.empty()) published_.emplace(request_.out, true);
    const bool only_evaluates = request_.parameters.empty() && !published_;
    if (only_evaluates || is_here(config_.data)) {
      evaluation_.emplace(config_);
    } else {
      say(fmt::format("data.path is '{}', which is not on this machine: the model is not evaluated",
                      config_.data.path));
    }
  }

  int run() {
    follower_.join(
        model_hello(config_, model_.table, model_.tokenizer->fingerprint(), request_.name, request_.build));
    if (request_.once) return take_once();
    while (const auto moment = follower_.next()) {
      evaluate(moment->step);
      try_to_publish();
    }
    return end();
  }

 private:
  int take_once() {
    JsonOutput json(request_.json);
    if (!follower_.catch_up()) return end();
    evaluate(std::nullopt);
    write_tensors();
    publish();
    follower_.leave("it has finished observing");
    json.print(newest_);
    return 0;
  }

  int end() {
    if (!follower_.has_state()) {
      if (published_)
        throw Error(ErrorKind::network,
                    fmt::format("the run ended before its state was copied, so {} was not written; "
                                "isthmus export gets the model from a checkpoint",
                                published_->path().string()));
      say("the run ended before its state was copied");
      return 0;
    }
    evaluate(std::nullopt);
    write_tensors();
    const auto verdict = follower_.verdict();
    publish();
    say(verdict);
    return 0;
  }

  // ---- evaluation ----

  void evaluate(std::optional<std::uint64_t> step) {
    nlohmann::ordered_json line;
    if (step) line["step"] = *step;
    line["rounds"] = follower_.rounds();
    const auto hash = follower_.global_hash().hex();
    const auto [least, most] = std::ranges::minmax(follower_.rounds());
    std::string text = step ? fmt::format("step {}", *step) : fmt::format("rounds {} to {}", least, most);
    if (evaluation_ && evaluation_->setup.heldout.sequences() > 0) {
      const auto sum = evaluation_->setup.evaluate(follower_.global_parameters());
      const double loss = sum.nats / static_cast<double>(sum.tokens);
      line["eval_loss"] = loss;
      text += fmt::format(": loss {:.4f}", loss);
      if (evaluation_->bytes_per_token > 0) {
        const double bits = loss / evaluation_->bytes_per_token / std::numbers::ln2;
        line["bits_per_byte"] = bits;
        text += fmt::format(", {:.3f} bits per byte", bits);
      }
    }
    line["global_hash"] = hash;
    metrics_.write(line);
    say(text + ", hash " + hash.substr(0, 12));
    newest_ = line;
  }

  // ---- the model ----

  void write_tensors() {
    if (request_.parameters.empty()) return;
    outer_sync::log::write_safetensors(request_.parameters,
                                       tensors_of(model_.table, follower_.global_parameters()),
                                       {{"run", config_.run.name},
                                        {"model", model_.table.fingerprint().hex()},
                                        {"rounds", nlohmann::json(follower_.rounds()).dump()},
                                        {"global_hash", follower_.global_hash().hex()}});
    say("wrote " + request_.parameters.string());
  }

  void publish() {
    if (!published_) return;
    const auto global = follower_.global_parameters();
    model_.parameters.assign(global.begin(), global.end());
    published_->replace([this](const std::filesystem::path& to) { write_model_folder(model_, to); },
                        {{"run", config_.run.name},
                         {"step", follower_.step()},
                         {"rounds", follower_.rounds()},
                         {"global_hash", follower_.global_hash().hex()}});
    say(fmt::format("wrote {}, of step {}", published_->path().string(), follower_.step()));
  }

  /// A full disk must not end an observer that may write the next one.
  void try_to_publish() {
    try {
      publish();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      say(error.what());
    }
  }

  void say(const std::string& text) const { say_line(request_.name + ": " + text); }

  ObserveRequest request_;
  Experiment& config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  TrainedModel model_;
  std::optional<HeldOutEvaluation> evaluation_;
  std::optional<ModelFolder> published_;
  Metrics metrics_;
  Follower follower_;
  nlohmann::ordered_json newest_;  ///< newest evaluation
};

}  // namespace

int run_observe(ObserveRequest request) {
  take_replica_name(request.name, request.experiment);
  const SignalThread signals([](int signal, int) { _exit(128 + signal); });
  return Observer(std::move(request)).run();
}

}  // namespace isthmus::app
