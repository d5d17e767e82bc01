#include "experiment.h"

#include "isthmus/base/error.h"

namespace isthmus::app {

using config::Scope;

void RunConfig::serialize(config::Archive& ar) {
  ar({"name", &name, Scope::agreed, "name of the run and of its folder"});
  ar({"out", &out, Scope::per_site, "folder that run folders are made in"});
  ar({"steps", &steps, Scope::agreed, "inner steps", 1, 1e12});
  ar({"seed", &seed, Scope::agreed, "of initial parameters and the order of the data", 0, 9e15});
  ar({"stop_after", &stop_after, Scope::live, "stop with a checkpoint after this step; 0 never", 0, 1e12});
  ar({"eval_every", &eval_every, Scope::live,
      "steps between evaluations of the global parameters; 0 only first and last", 0, 1e12});
  ar({"eval_sequences", &eval_sequences, Scope::agreed,
      "held-out sequences in one evaluation, shared among the replicas", 1, 1e9});
  ar({"checkpoint_every", &checkpoint_every, Scope::live, "steps between checkpoints; 0 only at the end", 0,
      1e12});
  ar({"sample_tokens", &sample_tokens, Scope::agreed, "tokens of text generated at the end; 0 none", 0,
      100000});
  ar({"trace_steps", &trace_steps, Scope::per_site, "steps, from the first, that trace.json shows", 0, 1e6});
  ar({"record_outer_gradients", &record_outer_gradients, Scope::per_site,
      "write every Nth outer gradient of each fragment to the replica's folder, for comparing codecs; 0 none",
      0, 1e9});
  ar({"restarts", &restarts, Scope::per_site,
      "times that `launch` starts a worker again that was killed while the others went on", 0, 1e6});
  ar({"stop_grace", &stop_grace, Scope::per_site, "time from Ctrl-C until `launch` kills what still runs",
      0.5, 86400});
}

void Experiment::serialize(config::Archive& ar) {
  ar.section("run", run);
  ar({"replicas", &replicas, Scope::agreed, "replicas that train together", 1, 1024});
  device.serialize(ar);
  ar.section("model", model);
  ar.section("data", data);
  ar.section("inner", inner);
  ar.section("trainer", trainer);
  ar.section("outer", outer);
  ar.section("network", network);
}

namespace {

/// A relative path means: from the folder of the file that says it (from the working directory after --set).
void anchor(std::string& path, const config::Source& source, std::string_view key) {
  if (path.empty()) return;
  for (const auto& entry : source.entries()) {
    if (entry.key == key) path = std::filesystem::absolute(entry.base / path).lexically_normal().string();
  }
}

}  // namespace

void check_name(const std::string& what, const std::string& name) {
  const bool plain =
      !name.empty() && name.size() <= 64 && name.front() != '.' &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
          std::string::npos;
  if (!plain) {
    throw Error(ErrorKind::config,
                what + " is '" + name +
                    "'; expected up to 64 letters, digits, '.', '_' and '-', not beginning "
                    "with '.': it names a folder");
  }
}

outer_sync::protocol::ClosingRule closing_rule(const Experiment& experiment) {
  const auto& outer = experiment.outer;
  const auto quorum = static_cast<std::size_t>(outer.quorum);
  const auto grace = std::chrono::duration<double>(outer.grace.seconds);
  return {.least = std::max(static_cast<std::size_t>(outer.least_replicas()), quorum),
          .quorum = quorum,
          .grace = std::chrono::duration_cast<outer_sync::protocol::Time>(grace),
          .reject = outer.reject};
}

Experiment load_experiment(const std::filesystem::path& file, const std::vector<std::string>& assignments) {
  auto source = config::Source::from_file(file);
  for (const auto& assignment : assignments) source.set(assignment);
  auto experiment = config::read<Experiment>(source);
  anchor(experiment.data.path, source, "data.path");
  anchor(experiment.outer.log, source, "outer.log");
  const auto& tokenizer = experiment.data.tokenizer;
  if (tokenizer != "bytes" && !tokenizer.starts_with("vocab:"))
    anchor(experiment.data.tokenizer, source, "data.tokenizer");
  check_name("run.name", experiment.run.name);
  if (experiment.data.path.empty())
    throw Error(ErrorKind::config, "data.path is empty; expected a text file, a folder or a .bin file");
  experiment.model.resolve();
  experiment.outer.resolve();
  experiment.outer.take_replicas(experiment.replicas);
  experiment.network.check();
  // The data-parallel baseline averages gradients at every step: all of it is what others call warm-up.
  if (experiment.outer.data_parallel()) experiment.outer.warmup_steps = experiment.run.steps;
  return experiment;
}

}  // namespace isthmus::app
