#include "replica.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/log/fingerprint.h"
#include "run/experiment/identity.h"
#include "run/experiment/live_settings.h"
#include "without_signals.h"

namespace isthmus::python {

using outer_sync::Admission;
using outer_sync::protocol::Ledger;
using outer_sync::protocol::RecordKind;
using outer_sync::protocol::Settings;

namespace {

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

bool due(std::int64_t every, std::uint64_t step) {
  return every > 0 && step % static_cast<std::uint64_t>(every) == 0;
}

app::Experiment checked(app::Experiment experiment, const std::string& name) {
  if (experiment.outer.data_parallel())
    throw Error(
        ErrorKind::config,
        "outer.method is data_parallel, which PyTorch itself provides (DistributedDataParallel); expected "
        "another method");
  app::take_replica_name(name, experiment);
  return experiment;
}

/// The part of a state dict that belongs to the replica.
struct Saved {
  static constexpr std::uint64_t known = 0x32305950'48545349;  // "ISTHPY02", little-endian
  std::uint64_t magic = known;
  Digest model;
  std::uint64_t step = 0, tokens = 0;
  Bytes agreed, own;  ///< of the outer loop
  Ledger ledger;
  Settings settings;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(magic, model, step, tokens, agreed, own, ledger, settings);
  }
};

Saved saved_of(const Bytes& bytes, const Digest& model) {
  const auto refuse = [](const std::string& why) -> void {
    throw Error(ErrorKind::data, "resume: the state dict is not one of this run's: " + why);
  };
  Saved saved;
  try {
    saved = from_bytes<Saved>(bytes);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (saved.magic != Saved::known) refuse("its bytes are not a state dict of isthmus");
  if (saved.model != model) refuse("it is of a model with other names, shapes or fragments");
  if (!saved.settings.sound()) refuse("its settings are invalid");
  return saved;
}

}  // namespace

Replica::Replica(ReplicaRequest request)
    : config_(checked(std::move(request.experiment), request.name)),
      name_(std::move(request.name)),
      build_(std::move(request.build)),
      precision_(std::move(request.precision)),
      device_(std::move(request.device)),
      quiet_(request.quiet),
      process_(getpid()),
      tensors_(std::move(request.tensors)),
      layout_(std::move(request.fragments), static_cast<std::uint64_t>(config_.outer.chunk_elements)),
      model_(outer_sync::fingerprint_of(tensors_, layout_)),
      folder_(app::replica_folder(config_, name_, request.resume.has_value())),
      lock_(folder_, app::patience_with_the_killed),
      trace_(app::trace_file(folder_), name_),
      metrics_(folder_ / "metrics.jsonl", [this](const std::string& text) { say(text); }),
      events_(folder_, [this](const std::string& text) { say(text); }),
      memory_(std::move(request.memory)),
      // The temporary exists until the node and its threads are created.
      node_((WithoutSignals(), config_.network), layout_,
            outer_sync::codec_plan(config_.outer, static_cast<std::uint64_t>(config_.run.seed)),
            app::closing_rule(config_), trace_,
            {.lossless = config_.outer.lossless_stage(),
             .records = config_.run.gathers() ? gathered_ : nullptr,
             .while_waiting = std::move(request.while_waiting)}),
      outer_(config_.outer, layout_, memory_, node_, trace_, app::noise_seed(config_, name_)),
      last_(static_cast<std::uint64_t>(config_.run.stop_after > 0
                                           ? std::min(config_.run.steps, config_.run.stop_after)
                                           : config_.run.steps)) {
  metrics_.copy_to([this](std::string line) { gathered_->add(RecordKind::metrics, std::move(line)); });
  server_ = app::serve_metrics(
      config_.metrics, {config_.run.name, name_}, [this] { return *readings_.get(); },
      [this](const std::string& text) { say(text); });
  for (const auto& note : config_.outer.notes()) say(note);
  if (!config_.outer.log.empty()) outer_.keep_log(app::log_plan(config_, name_, tensors_, layout_, model_));
  join(request.resume);
  phase_ = Phase::training;
  if (!await_turn()) say("the run is over before the first step");
}

/// A forked child has none of the threads, and the parent still uses what they share.
Replica::~Replica() {
  if (phase_ != Phase::closed && phase_ != Phase::joining && getpid() == process_)
    node_.leave(fmt::format("its program dropped it at step {}", outer_.step()));
}

// ---- joining ----

void Replica::join(const std::optional<Bytes>& resume) {
  auto hello = app::hello_of(config_, name_, build_);
  hello.model = model_;
  hello.tokenizer = data::make_tokenizer(config_.data.tokenizer)->fingerprint();
  std::optional<Saved> saved;
  if (resume) {
    saved = saved_of(*resume, model_);
    hello.resume = true;
    hello.checkpoints = {{saved->step, outer_sync::protocol::prefix_of(hash_of(saved->agreed))}};
  }
  try {
    const auto admission = node_.join(std::move(hello));
    if (admission.how == Admission::How::joins) {
      begin_with_others_state();
    } else {
      Ledger ledger;
      if (admission.how == Admission::How::resumes) {
        if (!saved || admission.step != saved->step)
          throw Error(ErrorKind::data, fmt::format("resume: the run continues from step {}, and the state "
                                                   "dict is of step {}; pass the state dict of that step",
                                                   admission.step, saved ? saved->step : 0));
        outer_.restore(saved->agreed, saved->own, saved->settings);
        ledger = std::move(saved->ledger);
        tokens_ = saved->tokens;
      }
      try {
        node_.activate(outer_.fragments(), outer_.global_hash(), ledger, outer_.pending_samples(),
                       outer_.settings());
      } catch (const outer_sync::Evicted& why) {  // the first view has begun without this replica
        say(why.what());
        begin_with_others_state();
      }
    }
  } catch (const std::exception& error) {
    node_.leave(error.what());
    throw;
  }
  first_step_ = outer_.step();
  if (config_.run.trace_steps == 0) trace_.close();
  const auto rank = node_.status().rank();
  say(fmt::format("member {} of {}, {} parameters in {} fragments, from step {}", rank.index + 1, rank.of,
                  layout_.parameters(), layout_.fragment_count(), first_step_));
  began_ = Clock::now();
}

/// Copies the state from others, without moments: the optimizer is not known here.
void Replica::begin_with_others_state() {
  const auto begin = Clock::now();
  node_.catch_up(outer_);
  ++states_taken_;
  const auto took = seconds(Clock::now() - begin);
  say(fmt::format("takes part from step {}, {:.1f} s after it was admitted", outer_.step(), took));
  metrics_.write({{"event", "joined"}, {"step", outer_.step()}, {"seconds", took}});
}

// ---- steps ----

void Replica::check_training(const char* what) const {
  if (phase_ == Phase::training) return;
  if (phase_ == Phase::failed)
    throw Error(ErrorKind::config, fmt::format("{}: the loop has failed before: {}", what, failure_));
  throw Error(
      ErrorKind::config,
      fmt::format("{}: the run is over for this replica since step {}; leave the loop when after_step() "
                  "returns False",
                  what, outer_.step()));
}

/// Stores the error for `close`, which reports it to the others.
template <class Work>
auto Replica::guarded(Work work) {
  try {
    return work();
  } catch (const outer_sync::Evicted&) {
    throw;
  } catch (const std::exception& error) {
    phase_ = Phase::failed;
    failure_ = error.what();
    throw;
  }
}

bool Replica::after_step(std::optional<double> loss, std::uint64_t tokens) {
  check_training("after_step");
  if (outer_.synchronous() && !averaged_)
    throw Error(ErrorKind::config,
                fmt::format("step {} is one of the synchronous warm-up (outer.warmup_steps: {}), in which "
                            "gradients are averaged before the inner step: call "
                            "isthmus.synchronous_step(loop, optimizer) instead of optimizer.step()",
                            outer_.step() + 1, config_.outer.warmup_steps));
  averaged_ = false;
  return guarded([&] {
    bool made = false;
    for (;;) {
      try {
        if (!std::exchange(made, true)) make_step(loss, tokens);
        return await_turn();
      } catch (const outer_sync::Evicted& why) {
        say(why.what());
        begin_with_others_state();
      }
    }
  });
}

bool Replica::is_due() const {
  const auto& schedule = outer_.schedule();
  const auto next = outer_.step() + 1;
  if (outer_.frozen() || next <= schedule.warmup_steps() || config_.outer.paced_by_time()) return true;
  for (outer_sync::FragmentId p = 0; p < layout_.fragment_count(); ++p) {
    if (schedule.sends(p, next)) return true;
    if (outer_.fragments()[p].round < schedule.rounds_due(p, next)) return true;
  }
  return false;
}

void Replica::make_step(std::optional<double> loss, std::uint64_t tokens) {
  const bool busy = is_due();
  const auto handed = Clock::now();
  trace_.complete(Trace::Row::train, "train", began_, handed);
  const auto before = outer_.step();
  const auto waited_before = waited();
  outer_.after_step(tokens);
  tokens_ += tokens;
  const auto took = seconds(Clock::now() - began_);
  compute_seconds_ += seconds(handed - began_);
  train_seconds_ += took;
  constexpr double weight = 1.0 / 16;
  const auto own = took - (waited() - waited_before);
  busy_step_seconds_ = busy_step_seconds_ > 0 ? (1 - weight) * busy_step_seconds_ + weight * own : own;
  if (config_.outer.paced_by_time())
    outer_.set_speeds(1 / busy_step_seconds_, node_.status().reference_speed);
  record(loss, tokens, took);
  if (outer_.step() != before) at_agreed_step();
  while (outer_.next_step()) at_agreed_step();
  if (busy || Clock::now() - written_ > std::chrono::seconds(1)) write_records();
}

double Replica::waited() const { return outer_.stats().stall_seconds + outer_.stats().warmup_wait_seconds; }

void Replica::at_agreed_step() {
  if (wants_evaluation()) outer_.complete_step();
  if (outer_.step() - first_step_ >= static_cast<std::uint64_t>(config_.run.trace_steps)) trace_.close();
}

/// A replica that is asked to leave does so when none of its rounds is in flight, and soon in any case.
bool Replica::may_leave() {
  constexpr std::uint64_t max_steps_to_leave = 100;
  const auto why = node_.status().drains;
  if (!why) return false;
  if (!leave_by_) leave_by_ = outer_.step() + max_steps_to_leave;
  if (!outer_.quiet() && outer_.step() < *leave_by_ && !outer_.frozen()) return false;
  drained_ = why;
  return true;
}

bool Replica::await_turn() {
  while (outer_.step() < last_ && !may_leave() && !stopped_) {
    const auto turn = app::next_turn(outer_, node_, last_);
    if (turn == app::Turn::step) {
      began_ = Clock::now();
      return true;
    }
    stopped_ = turn == app::Turn::over;
  }
  // Complete the last rounds, but not of a run that was interrupted, or resumed at its end.
  stopped_ = stopped_ || outer_.step() < static_cast<std::uint64_t>(config_.run.steps);
  const bool has_gone_on = outer_.step() > first_step_ || states_taken_ > 0;
  if (!drained_ && !stopped_ && has_gone_on) outer_.finish();
  if (drained_) stopped_ = false;
  // Now, while the caller can still fetch values from elsewhere.
  if (!drained_) {
    outer_.complete_step();
    final_hash_ = outer_.global_hash();
  }
  write_records();
  phase_ = Phase::over;
  return false;
}

void Replica::average_gradients(std::span<float> gradients, std::uint64_t tokens) {
  check_training("synchronous_step");
  if (!outer_.synchronous()) return;
  guarded([&] { outer_.average_gradients(gradients, tokens); });
  averaged_ = true;
}

// ---- records ----

void Replica::record(std::optional<double> loss, std::uint64_t tokens, double took) {
  auto& record = records_.emplace_back(app::record_of(outer_, node_));
  record.loss = loss;
  record.outer_steps = new_figures_.take(outer_);
  record.step_seconds = took;
  record.tokens_per_second = static_cast<double>(tokens) / took;
  record.utilization = compute_seconds_ / train_seconds_;
  const auto outer_steps = app::newest_outer_steps(outer_);
  node_.report({outer_.step(), loss.value_or(0), record.tokens_per_second, record.utilization, 0,
                1 / busy_step_seconds_, disk_free_, outer_steps.gain, outer_steps.correlation});
  if (!server_) return;
  ++figures_.steps;
  figures_.step_durations.add(took);
}

/// Called when something is sent or applied, or once a second: other steps make no system call.
void Replica::write_records() {
  for (const auto& record : records_) {
    metrics_.write(app::line_of(record));
    if (record.loss) events_.write(record.step, {{"train/loss", *record.loss}});
    events_.write(record.step, {{"train/tokens_per_second", record.tokens_per_second},
                                {"outer/stall_seconds", record.stats.stall_seconds},
                                {"outer/rounds", static_cast<double>(record.stats.rounds)}});
  }
  if (server_ && !records_.empty()) {
    const auto& newest = records_.back();
    figures_.tokens = tokens_;
    figures_.loss = newest.loss.value_or(0);
    figures_.tokens_per_second = newest.tokens_per_second;
    figures_.utilization = newest.utilization;
    readings_.put(app::readings_of(outer_, node_, figures_));
  }
  records_.clear();
  written_ = Clock::now();
  std::error_code none;
  const auto space = std::filesystem::space(folder_, none);
  disk_free_ = none ? 0 : space.available;
}

bool Replica::wants_evaluation() const {
  const auto run = app::run_config_at(config_.run, outer_.settings(), outer_.step());
  return phase_ == Phase::over ? !drained_ : due(run.eval_every, outer_.step());
}

bool Replica::wants_checkpoint() {
  const auto run = app::run_config_at(config_.run, outer_.settings(), outer_.step());
  const bool all_write = node_.checkpoint_due(outer_.step());
  return phase_ == Phase::over || all_write || due(run.checkpoint_every, outer_.step());
}

Bytes Replica::save() {
  Saved saved;
  saved.model = model_;
  saved.step = outer_.step();
  saved.tokens = tokens_;
  saved.ledger = node_.ledger();
  saved.settings.changes = outer_.settings().changes;
  auto outer = guarded([&] { return outer_.save(); });
  if (!outer)
    throw Error(ErrorKind::network, "state_dict: rounds do not commit at present; try again after a step");
  saved.agreed = std::move(outer->agreed);
  saved.own = std::move(outer->own);
  return to_bytes(saved);
}

void Replica::report_evaluation(double sum_nats, std::uint64_t tokens) {
  node_.report_evaluation(outer_.step(), sum_nats, tokens);
  metrics_.write({{"step", outer_.step()}, {"eval_nats", sum_nats}, {"eval_tokens", tokens}});
}

void Replica::close(const std::string& why) {
  const auto before = std::exchange(phase_, Phase::closed);
  if (before == Phase::closed || getpid() != process_) return;
  if (before == Phase::over && !drained_) return report();
  write_records();
  trace_.close();
  if (before == Phase::failed) return node_.leave(failure_);
  node_.leave(drained_ ? *drained_
              : why.empty()
                  ? fmt::format("its program ended at step {}, and the run has {}", outer_.step(), last_)
                  : why);
  say(fmt::format("left the run at step {}", outer_.step()));
}

void Replica::report() {
  const auto& hash = final_hash_.value();
  auto report = app::member_report(outer_, node_, hash);
  report.name = name_;
  report.stopped = stopped_;
  report.parameters = layout_.parameters();
  report.first_step = first_step_;
  report.tokens = tokens_;
  report.train_seconds = train_seconds_;
  report.compute_seconds = compute_seconds_;
  report.precision = precision_;
  report.device = device_;
  try {
    const auto problem = node_.done(app::to_json(report).dump(), hash);
    if (!problem.empty()) throw Error(ErrorKind::divergence, problem);
  } catch (const std::exception& error) {
    node_.leave(error.what());
    throw;
  }
  trace_.close();
  say("done: global hash " + hash.hex());
}

void Replica::say(const std::string& text) const {
  gathered_->add(RecordKind::log, text);
  if (quiet_) return;
  say_line(name_ + ": " + text);
}

}  // namespace isthmus::python
