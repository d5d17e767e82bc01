#include "replica.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "coordinator/ledger.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/data/sampler.h"
#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/log/fingerprint.h"
#include "participant/replica_folder.h"
#include "run/experiment/identity.h"
#include "without_signals.h"

namespace isthmus::python {

using outer_sync::protocol::RecordKind;

namespace {

app::Experiment checked(app::Experiment experiment, const std::string& name) {
  if (experiment.outer.data_parallel())
    throw Error(
        ErrorKind::config,
        "outer.method is data_parallel, which PyTorch itself provides (DistributedDataParallel); expected "
        "another method");
  if (experiment.run.audit)
    throw Error(ErrorKind::config,
                "run.audit is true; expected false: only steps of `isthmus worker` can be run again");
  app::take_replica_name(name, experiment);
  return experiment;
}

SavedReplica saved_of(const Bytes& bytes, const Digest& model) {
  const auto refuse = [](const std::string& why) -> void {
    throw Error(ErrorKind::data, "resume: the state dict is not one of this run's: " + why);
  };
  SavedReplica saved;
  try {
    saved = from_bytes<SavedReplica>(bytes);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (saved.magic != SavedReplica::known) refuse("its bytes are not a state dict of isthmus");
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
      layout_(std::move(request.fragments), static_cast<std::uint64_t>(config_.outer.chunk_elements),
              request.averaged),
      model_(outer_sync::fingerprint_of(tensors_, layout_)),
      folder_(app::replica_folder(config_, name_, request.resume.has_value())),
      lock_(folder_, app::patience_with_the_killed),
      trace_(app::trace_file(folder_), name_),
      records_(config_, folder_, trace_, gathered_, app::TrainingRecords::Pace::when_due,
               [this](const std::string& text) { say(text); }),
      memory_(std::move(request.memory)),
      moments_(std::move(request.moments)),
      // The temporary exists until the node and its threads are created.
      member_((WithoutSignals(),
               std::make_unique<app::NodeMembership>(
                   config_, layout_, trace_,
                   outer_sync::MemberOptions{.moments = moments_ != nullptr,
                                             .records = gathered_,
                                             .while_waiting =
                                                 [this, also = std::move(request.while_waiting)] {
                                                   if (also) also();
                                                   participant_.look_up();
                                                 }}))),
      node_(member_->node()),
      participant_({.experiment = config_,
                    .name = name_,
                    .layout = layout_,
                    .state = std::make_unique<outer_sync::OuterState>(layout_, memory_,
                                                                      config_.outer.sender_feedback()),
                    .member = std::move(member_),
                    .trace = trace_,
                    .observers = {&records_},
                    .folder = folder_,
                    .records = gathered_},
                   *this) {
  if (moments_) participant_.outer().share_moments(*moments_);
  records_.serve(node_, name_, [this](const std::string& text) { say(text); });
  for (const auto& note : config_.outer.notes()) say(note);
  if (!config_.outer.log.empty())
    participant_.outer().keep_log(app::log_plan(config_, name_, tensors_, layout_, model_));
  participant_.join(hello(request.resume));
  try {
    if (!await_turn() && leaves().empty()) say("the run is over before the first step");
  } catch (const std::exception&) {
    participant_.close();
    throw;
  }
}

/// A forked child has none of the threads, and the parent still uses what they share.
Replica::~Replica() {
  if (getpid() == process_) participant_.drop(fmt::format("its program dropped it at step {}", step()));
}

// ---- joining ----

outer_sync::protocol::Hello Replica::hello(const std::optional<Bytes>& resume) {
  auto hello = app::hello_of(config_, name_, build_);
  hello.model = model_;
  hello.tokenizer = data::make_tokenizer(config_.data.tokenizer)->fingerprint();
  if (resume) {
    saved_ = saved_of(*resume, model_);
    hello.resume = true;
    hello.checkpoints = {{saved_->step, outer_sync::protocol::prefix_of(hash_of(saved_->agreed))}};
  }
  return hello;
}

app::TrainingHooks::Restored Replica::restore(std::uint64_t step) {
  if (!saved_ || step != saved_->step)
    throw Error(ErrorKind::data, fmt::format("resume: the run continues from step {}, and the state dict is "
                                             "of step {}; pass the state dict of that step",
                                             step, saved_ ? saved_->step : 0));
  auto& outer = participant_.outer();
  outer.restore(saved_->agreed, saved_->own, saved_->settings);
  tokens_before_ = saved_->tokens;
  return {std::move(saved_->ledger), outer.pending_samples()};
}

void Replica::joined() {
  if (saved_ && states_taken() > 0)
    say(fmt::format(
        "the state dict of step {} is not used: the run has another state, which this replica has "
        "copied from the others; its tokens are counted from here",
        saved_->step));
  saved_.reset();
  const auto rank = node_.status().rank();
  say(fmt::format("member {} of {}, {} parameters in {} fragments, from step {}", rank.index + 1, rank.of,
                  layout_.parameters(), layout_.fragment_count(), step()));
}

// ---- steps ----

void Replica::check_training(const char* what) const {
  if (running()) return;
  if (const auto failure = participant_.failure(); !failure.empty())
    throw Error(ErrorKind::config, fmt::format("{}: the loop has failed before: {}", what, failure));
  throw Error(
      ErrorKind::config,
      fmt::format("{}: the run is over for this replica since step {}; leave the loop when after_step() "
                  "returns False",
                  what, step()));
}

bool Replica::after_step(std::optional<double> loss, std::uint64_t tokens,
                         std::optional<std::uint64_t> samples) {
  check_training("after_step");
  if (synchronous() && !averaged_)
    throw Error(ErrorKind::config,
                fmt::format("step {} is one of the synchronous warm-up (outer.warmup_steps: {}), in which "
                            "gradients are averaged before the inner step: call "
                            "isthmus.synchronous_step(loop, optimizer) instead of optimizer.step()",
                            step() + 1, config_.outer.warmup_steps));
  averaged_ = false;
  trace_.complete(Trace::Row::train, "train", began_, Clock::now());
  const auto trained = oldest(samples);
  for (const auto& range : trained) {
    given_.front().begin = range.end;
    if (given_.front().size() == 0) given_.pop_front();
  }
  participant_.made({.tokens = tokens, .samples = trained, .loss = loss});
  return await_turn();
}

bool Replica::await_turn() {
  const bool goes_on = participant_.next();
  began_ = Clock::now();
  return goes_on;
}

void Replica::average_gradients(std::span<float> gradients, std::uint64_t tokens,
                                std::optional<std::uint64_t> samples) {
  check_training("synchronous_step");
  if (!synchronous()) return;
  participant_.average_gradients(gradients, tokens, oldest(samples));
  averaged_ = true;
}

// ---- data ----

std::vector<std::uint64_t> Replica::next_samples(std::uint64_t count, std::uint64_t size) {
  check_training("next_samples");
  if (count == 0 || size == 0)
    throw Error(ErrorKind::config,
                fmt::format("next_samples: {} of a data set of {} samples; expected at least one of each",
                            count, size));
  uses_ledger_ = true;
  const data::WindowOrder order{.windows = size,
                                .replicas = static_cast<std::uint64_t>(config_.replicas),
                                .seed = static_cast<std::uint64_t>(config_.run.seed)};
  std::vector<std::uint64_t> indices;
  while (indices.size() < count) {
    const auto range = node_.next_samples(count - indices.size());
    const auto sampler = order.of_track(range.track);
    for (auto i = range.begin; i < range.end; ++i) indices.push_back(sampler.at(i).window);
    given_.push_back(range);
  }
  return indices;
}

std::vector<SampleRange> Replica::oldest(std::optional<std::uint64_t> count) const {
  std::vector<SampleRange> out;
  auto left = count.value_or(SampleRange::max_sequences);
  for (auto range : given_) {
    if (left == 0) break;
    range.end = std::min(range.end, range.begin + left);
    left -= range.size();
    out.push_back(range);
  }
  return out;
}

void Replica::write_ledger() {
  if (uses_ledger_) app::write_ledger(folder_ / "ledger.json", step(), node_.ledger());
}

// ---- the global parameters ----

std::string Replica::global_hash() {
  const auto& final_hash = participant_.final_hash();
  return (final_hash ? *final_hash : participant_.outer().global_hash()).hex();
}

bool Replica::wants_evaluation() const {
  if (participant_.state() == State::leaving) return false;
  return participant_.state() == State::finishing || participant_.wants_evaluation();
}

bool Replica::wants_checkpoint() const {
  const bool over = participant_.state() == State::finishing || !leaves().empty();
  return over || participant_.wants_checkpoint();
}

Bytes Replica::save() {
  SavedReplica saved;
  saved.model = model_;
  saved.step = step();
  saved.tokens = tokens_before_ + participant_.tokens();
  saved.ledger = node_.ledger();
  saved.settings.changes = participant_.outer().settings().changes;
  auto outer = participant_.save();
  if (!outer)
    throw Error(ErrorKind::network, "state_dict: rounds do not commit at present; try again after a step");
  saved.agreed = std::move(outer->agreed);
  saved.own = std::move(outer->own);
  write_ledger();
  return to_bytes(saved);
}

void Replica::report_evaluation(double sum_nats, std::uint64_t tokens) {
  const auto rank = node_.status().rank();
  participant_.report_evaluation(
      {.step = step(), .sum_nats = sum_nats, .tokens = tokens, .share = rank.index, .shares = rank.of});
}

// ---- the end ----

void Replica::close(const std::string& why) {
  if (getpid() != process_) return;
  const bool reports = participant_.state() == State::finishing;
  participant_.close(why);
  if (reports) say(participant_.last_line());
}

std::string Replica::summary(const app::MemberReport& known) {
  auto report = known;
  report.tokens += tokens_before_;
  report.precision = precision_;
  report.device = device_;
  return app::to_json(report).dump();
}

void Replica::say(const std::string& text) {
  gathered_->add(RecordKind::log, text);
  if (quiet_) return;
  say_line(name_ + ": " + text);
}

}  // namespace isthmus::python
