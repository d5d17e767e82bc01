#include "worker/worker.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/ledger.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/trainer/outer_state.h"
#include "participant/participant.h"
#include "participant/replica_folder.h"
#include "participant/training_records.h"
#include "run/audit/audit_writer.h"
#include "run/experiment/identity.h"
#include "run/process/machine.h"
#include "run/process/run_folder.h"
#include "run/process/stopper.h"
#include "worker/setup/machine_traits.h"
#include "worker/setup/model_setup.h"
#include "worker/setup/ranks.h"
#include "worker/training/checkpoints.h"
#include "worker/training/console.h"
#include "worker/training/evaluations.h"
#include "worker/training/outer_gradient_recorder.h"
#include "worker/training/training.h"
#include "worker/training/uploads.h"

namespace isthmus::app {

namespace {

/// Joins the parts of a worker: what a Participant asks for, each part does.
class Worker final : public TrainingHooks {
 public:
  Worker(WorkerRequest request, Stopper& stopper)
      : stopper_(stopper),
        request_(std::move(request)),
        config_(request_.experiment),
        folder_(replica_folder(request_.experiment, request_.name, request_.resume)),
        lock_(folder_, patience_with_the_killed),
        console_(request_.name, request_.quiet),
        uploads_(make_uploads()),
        setup_(config_, stream()),
        trace_(trace_file(folder_), request_.name),
        timeline_(*setup_.hardware.memory, trace_),
        records_(config_, folder_, trace_, console_.records(), TrainingRecords::Pace::every_step, saying()),
        audit_(make_audit()),
        ranks_(start_ranks(config_, setup_, request_, folder_)),
        replica_(make_replica(config_, setup_, ranks_.get())),
        member_(std::make_unique<NodeMembership>(
            config_, setup_.table.layout(), trace_,
            outer_sync::MemberOptions{
                .moments = config_.join.moments(), .records = console_.records(), .receipts = audit_.get()})),
        node_(member_->node()),
        participant_({.experiment = config_,
                      .name = request_.name,
                      .layout = setup_.table.layout(),
                      .state = trainer::make_outer_state(*replica_, config_.outer),
                      .member = std::move(member_),
                      .trace = trace_,
                      .observers = {&records_, &console_},
                      .folder = folder_,
                      .records = console_.records(),
                      .stopper = &stopper_,
                      .writes_checkpoints = true},
                     *this),
        checkpoints_({.experiment = config_,
                      .name = request_.name,
                      .replica = *replica_,
                      .outer = participant_.outer(),
                      .node = node_,
                      .corpus = setup_.corpus,
                      .trace = trace_,
                      .folder = checkpoints_in(folder_),
                      .say = saying(),
                      .uploads = uploads_.get(),
                      .audit = audit_.get()}),
        training_({.experiment = config_,
                   .setup = setup_,
                   .replica = *replica_,
                   .participant = participant_,
                   .node = node_,
                   .trace = trace_,
                   .timeline = timeline_,
                   .say = saying()}),
        evaluations_({.experiment = config_,
                      .setup = setup_,
                      .replica = *replica_,
                      .participant = participant_,
                      .node = node_,
                      .timeline = timeline_,
                      .metrics = folder_ / "metrics.jsonl"}) {
    auto& outer = participant_.outer();
    outer.share_moments(*replica_);
    if (ranks_) watch_ranks();
    records_.serve(node_, request_.name, saying());
    if (!trace_.problem().empty()) say(trace_.problem());
    for (const auto& note : setup_.corpus.notes()) say(note);
    for (const auto& note : config_.outer.notes()) say(note);
    if (!config_.outer.log.empty())
      outer.keep_log(log_plan(config_, request_.name, logged_tensors(setup_.table), setup_.table.layout(),
                              setup_.table.fingerprint()));
    if (audit_) {
      outer.observe_applied(
          [this](outer_sync::FragmentId fragment, std::uint64_t round, std::span<const SampleRange> samples) {
            const auto& chain = participant_.outer().fragments()[fragment].chain;
            audit_->write(AuditApplied{
                fragment, round, !in_step_, short_digest(chain), {samples.begin(), samples.end()}});
          });
    }
    if (config_.run.record_outer_gradients > 0) {
      outer.observe_gradients(OuterGradientRecorder(
          folder_ / "outer_gradients", static_cast<std::uint64_t>(config_.run.record_outer_gradients)));
    }
  }

  int run() {
    say(setup_.table.description());
    participant_.run(hello());
    const bool copied = !uploads_ || uploads_->finish(upload_patience());
    if (participant_.drained()) return 0;
    if (!participant_.leaves().empty()) return stopper_.exit_status();
    say(participant_.last_line());
    if (!saved_) throw Error(ErrorKind::data, "the run has ended, but its last checkpoint is not on disk");
    if (!copied) throw Error(ErrorKind::data, "the run has ended, but not all is in the object store");
    return 0;
  }

  // ---- what the participant asks for ----

  void say(const std::string& text) override { console_.say(text); }

  Restored restore(std::uint64_t step) override {
    auto restored = checkpoints_.restore(step);
    training_.restore(restored.loop);
    return {std::move(restored.ledger), training_.pending_samples()};
  }

  void took_state(const Participant& participant, double) override {
    training_.took_state();
    if (participant.state() != Participant::State::joining) return write_start(AuditStart::State::others);
    // The others may have returned to a checkpoint without this replica.
    if (request_.resume) checkpoints_.leave_later_than(participant.outer().step());
    training_.count_from_start();
  }

  void joined() override {
    if (participant_.resumed()) checkpoints_.leave_later_than(participant_.first_step());
    const auto rank = node_.status().rank();
    const auto threads = config_.trainer.threads;
    say(fmt::format("member {} of {}, {}, {}{}", rank.index + 1, rank.of,
                    to_string(setup_.hardware.precision),
                    threads > 0 ? fmt::format("{} threads", threads) : "all cores",
                    ranks_ ? " in each of " + ranks_text(config_.replica) : ""));
    for (const auto& note : notes_on_ranks(config_)) say(note);
    if (config_.outer.data_parallel() && rank.of > 1) training_.join_gloo();
    if (const auto torch = trainer::torch_in_use(); !torch.empty()) say("libtorch in " + torch.string());
    say(memory_line());
    if (participant_.resumed()) evaluations_.report_again();
    using State = AuditStart::State;
    const bool copied = participant_.states_taken() > 0;
    write_start(copied ? State::others : participant_.resumed() ? State::checkpoint : State::initial);
  }

  void entered(const Participant& participant) override {
    using State = Participant::State;
    const auto now = participant.state();
    const auto before = std::exchange(newest_state_, now);
    in_step_ = false;
    if (now == State::training) return training_.begin();
    training_.end();
    // After an eviction there is no ledger that belongs to the state here.
    if (before == State::training && (now == State::finishing || now == State::leaving)) keep_ledger();
  }

  InnerStep train_step() override {
    auto step = training_.step();
    in_step_ = true;
    if (audit_) {
      const auto own = participant_.outer().step(), others = node_.agreed_step();
      audit_->write(AuditTrained{.step = own,
                                 .samples = {step.samples.begin(), step.samples.end()},
                                 .others = others > own ? others : 0});
    }
    return step;
  }
  void stepped(const Participant&, const StepRecord& record) override {
    training_.count_step();
    in_step_ = false;
    if (audit_ && config_.outer.paced_by_time())
      audit_->write(AuditSpeeds{record.own_speed, record.reference_speed});
  }

  void agreed(const Participant&) override {
    checkpoints_.exchange_news();
    if (Clock::now() - ledger_kept_ > ledger_every) keep_ledger();
  }

  void evaluate(std::uint64_t step) override { evaluations_.evaluate(step); }
  void save_checkpoint() override { checkpoints_.save(training_.state()); }

  /// `launch` starts it again, without a limit, as long as it does not find an error of its own.
  [[nodiscard]] bool comes_back_after(const Error& error) override {
    return ranks_ && error.kind() == ErrorKind::network;
  }

  void before_the_end() override {
    saved_ = checkpoints_.finish();
    checkpoints_.exchange_news();
    if (!saved_ && participant_.drained()) say("its last checkpoint is not on disk");
  }

  std::string summary(const MemberReport& known) override {
    auto report = known;
    report.sample = evaluations_.sample();
    report.warmup_wait_seconds += training_.all_reduce_seconds();
    report.data_wait_seconds = training_.data_wait_seconds();
    report.rank_average_seconds = replica_->rank_average_seconds();
    report.payload_bytes += training_.all_reduce_bytes();
    report.total_bytes += training_.all_reduce_bytes();
    report.precision = to_string(setup_.hardware.precision);
    report.device = to_string(setup_.hardware.device);
    return to_json(report).dump();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto ledger_every = std::chrono::seconds(10);

  [[nodiscard]] std::function<void(const std::string&)> saying() {
    return [this](const std::string& text) { say(text); };
  }

  /// Null without run.audit.
  std::unique_ptr<AuditWriter> make_audit() {
    if (!config_.run.audit) return nullptr;
    return std::make_unique<AuditWriter>(folder_, console_.records(), saying());
  }

  void write_start(AuditStart::State state) {
    if (!audit_) return;
    audit_->write(AuditStart{.member = request_.name,
                             .state = state,
                             .step = participant_.outer().step(),
                             .time = std::chrono::duration_cast<std::chrono::milliseconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count(),
                             .machine = machine_traits(config_, setup_, request_.build)});
  }

  /// Null if the run has no object store.
  std::unique_ptr<Uploads> make_uploads() {
    if (!config_.object_store.gets_copies()) return nullptr;
    return std::make_unique<Uploads>(Uploads::Options{
        .store = config_.object_store.options(),
        .run = config_.run.name,
        .worker = request_.name,
        .checkpoints = checkpoints_in(folder_),
        .log = config_.outer.log.empty() ? std::filesystem::path()
                                         : std::filesystem::path(config_.outer.log) / request_.name,
        .keep = keep_rule(config_.run),
        .resumed = request_.resume,
        .say = saying()});
  }

  /// How long to wait, after the last copy that succeeded, for what is left. A worker that was asked to leave
  /// is killed after run.stop_grace.
  [[nodiscard]] std::chrono::milliseconds upload_patience() const {
    using Seconds = std::chrono::duration<double>;
    const Seconds patience = stopper_.leaving() ? Seconds(config_.run.stop_grace.seconds / 2) : Seconds(300);
    return std::chrono::duration_cast<std::chrono::milliseconds>(patience);
  }

  std::optional<data::StreamOptions> stream() {
    auto options = stream_options(config_, request_.name);
    if (options) options->say = saying();
    return options;
  }

  /// Losing one rank fails the whole replica.
  void watch_ranks() {
    watch_ = std::make_unique<RankWatch>(*ranks_, [this](const Error& fate) {
      node_.fail(fate);
      abort_ranks(*replica_);
    });
  }

  outer_sync::protocol::Hello hello() {
    auto hello = setup_.hello(config_, request_.name, request_.build);
    hello.resume = request_.resume;
    if (request_.resume) hello.checkpoints = checkpoints_.offer();
    return hello;
  }

  [[nodiscard]] std::string memory_line() const {
    const auto now = node_.status();
    const auto bound = outer_sync::memory_bound(config_.outer, setup_.table.layout(), *now.view, now.self);
    const auto megabytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    return fmt::format("outer loop: {:.1f} MB of state, {:.1f} MB of chunks, never above {:.1f} MB",
                       megabytes(bound.state), megabytes(bound.usual), megabytes(bound.most));
  }

  /// Writes ledger.json for `isthmus data ledger`. It is only informative, so a full disk does not end
  /// training.
  void keep_ledger() {
    ledger_kept_ = Clock::now();
    const auto ledger = training_.ledger();
    if (ledger.empty()) return;
    try {
      write_ledger(folder_ / "ledger.json", participant_.outer().step(), ledger);
    } catch (const Error& error) {
      say(error.what());
    }
  }
  Stopper& stopper_;
  WorkerRequest request_;
  Experiment& config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  Console console_;
  std::unique_ptr<Uploads> uploads_;  ///< null: there is no object store
  ModelSetup setup_;
  Trace trace_;
  data::DeviceTimeline timeline_;
  TrainingRecords records_;
  std::unique_ptr<AuditWriter> audit_;    ///< null without run.audit
  std::unique_ptr<RankProcesses> ranks_;  ///< null for one rank
  std::unique_ptr<trainer::Replica> replica_;
  std::unique_ptr<NodeMembership> member_;  ///< moved into the participant
  outer_sync::MemberNode& node_;
  Participant participant_;
  Checkpoints checkpoints_;
  Training training_;
  Evaluations evaluations_;
  Participant::State newest_state_ = Participant::State::joining;
  Clock::time_point ledger_kept_;     ///< when it was last written
  bool in_step_ = false;              ///< an inner step was made, and the outer loop has not counted it yet
  bool saved_ = true;                 ///< the last checkpoint is on disk
  std::unique_ptr<RankWatch> watch_;  ///< last: its thread uses the members above
};

}  // namespace

int run_worker(WorkerRequest request) {
  take_replica_name(request.name, request.experiment);
  auto& experiment = request.experiment;
  if (experiment.replica.ranks > 1 && experiment.trainer.threads == 0)
    experiment.trainer.threads = threads_each(experiment.replica.ranks_per_machine());
  return run_stoppable([&](Stopper& stopper) { return Worker(std::move(request), stopper).run(); });
}

}  // namespace isthmus::app
