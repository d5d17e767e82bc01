#include "worker/followers/observe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <numbers>
#include <optional>

#include "isthmus/base/metrics.h"
#include "isthmus/base/say.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"
#include "worker/followers/follower.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {
namespace {

class Observer {
 public:
  explicit Observer(ObserveRequest request)
      : request_(std::move(request)),
        config_(request_.experiment),
        folder_(config_.folder() / request_.name),
        lock_(folder_, patience_with_the_killed),
        setup_(config_),
        bytes_per_token_(setup_.bytes_per_token(config_)),
        metrics_(folder_ / "metrics.jsonl"),
        follower_(config_, setup_.table.layout(), nullptr) {}

  int run() {
    follower_.join(setup_.hello(config_, request_.name, request_.build));
    if (request_.once) return take_once();
    while (const auto moment = follower_.next()) evaluate(moment->step);
    return end();
  }

 private:
  int take_once() {
    JsonOutput json(request_.json);
    if (!follower_.catch_up()) return end();
    evaluate(std::nullopt);
    write_model();
    follower_.leave("it has finished observing");
    json.print(newest_);
    return 0;
  }

  int end() {
    if (!follower_.has_state()) {
      say("the run ended before its state was copied");
      return 0;
    }
    evaluate(std::nullopt);
    write_model();
    say(follower_.verdict());
    return 0;
  }

  // ---- evaluation ----

  void evaluate(std::optional<std::uint64_t> step) {
    nlohmann::ordered_json line;
    if (step) line["step"] = *step;
    line["rounds"] = follower_.rounds();
    const auto hash = follower_.global_hash().hex();
    std::string text = step ? fmt::format("step {}", *step) : "rounds";
    if (!step) {
      for (const auto round : follower_.rounds()) text += fmt::format(" {}", round);
    }
    if (setup_.heldout.sequences() > 0) {
      const auto sum = setup_.evaluate(follower_.global_parameters());
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
    outer_sync::log::write_safetensors(request_.out, setup_.tensors(follower_.global_parameters()),
                                       {{"run", config_.run.name},
                                        {"model", setup_.table.fingerprint().hex()},
                                        {"rounds", nlohmann::json(follower_.rounds()).dump()},
                                        {"global_hash", follower_.global_hash().hex()}});
    say("wrote " + request_.out.string());
  }

  void say(const std::string& text) const { say_line(request_.name + ": " + text); }

  ObserveRequest request_;
  Experiment& config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  ModelSetup setup_;
  double bytes_per_token_;
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
