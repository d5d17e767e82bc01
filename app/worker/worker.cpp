#include "worker/worker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include "coordinator/ledger.h"
#include "isthmus/base/error.h"
#include "isthmus/base/event_file.h"
#include "isthmus/base/metrics.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "isthmus/data/device_timeline.h"
#include "isthmus/data/loader.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/engine/memory.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/trainer/evaluate.h"
#include "isthmus/trainer/gloo.h"
#include "isthmus/trainer/loss_watch.h"
#include "isthmus/trainer/outer_state.h"
#include "isthmus/trainer/replica.h"
#include "isthmus/trainer/sample.h"
#include "isthmus/trainer/schedule.h"
#include "run/experiment/identity.h"
#include "run/experiment/live_settings.h"
#include "run/metrics/metrics_server.h"
#include "run/metrics/run_readings.h"
#include "run/metrics/summary.h"
#include "run/process/free_port.h"
#include "run/process/machine.h"
#include "run/process/run_folder.h"
#include "run/process/stopper.h"
#include "worker/checkpoints.h"
#include "worker/model_setup.h"
#include "worker/outer_gradient_recorder.h"
#include "worker/ranks.h"
#include "worker/replica_run.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using outer_sync::protocol::RecordKind;

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Samples that the run gives this replica to train on.
class LeasedSamples final : public data::SampleSource {
 public:
  explicit LeasedSamples(outer_sync::MemberNode& node) : node_(node) {}
  [[nodiscard]] SampleRange next(std::uint64_t most) override { return node_.next_samples(most); }

 private:
  outer_sync::MemberNode& node_;
};

class Worker {
 public:
  Worker(WorkerRequest request, Stopper& stopper)
      : stopper_(stopper),
        request_(std::move(request)),
        config_(request_.experiment),
        folder_(replica_folder(request_.experiment, request_.name, request_.resume)),
        lock_(folder_, patience_with_the_killed),
        progress_(request_.quiet ? nullptr : std::make_unique<Progress>(stdout, isatty(STDOUT_FILENO) == 1)),
        setup_(config_, stream()),
        trace_(trace_file(folder_), request_.name),
        timeline_(*setup_.hardware.memory, trace_),
        metrics_(folder_ / "metrics.jsonl", [this](const std::string& text) { say(text); }),
        events_(folder_, [this](const std::string& text) { say(text); }),
        ranks_(start_ranks(config_, setup_, request_, folder_)),
        made_(make_replica(config_, setup_, ranks_.get())),
        replica_(*made_),
        node_(config_.network, setup_.table.layout(), outer_sync::codec_plan(config_.outer, seed()),
              closing_rule(config_), trace_,
              {.lossless = config_.outer.lossless_stage(),
               .moments = config_.join.moments(),
               .records = config_.run.gathers() ? records_ : nullptr}),
        outer_(config_.outer, setup_.table.layout(), trainer::make_outer_state(replica_, config_.outer),
               node_, trace_, noise_seed(config_, request_.name)),
        checkpoints_({.experiment = config_,
                      .replica = replica_,
                      .outer = outer_,
                      .node = node_,
                      .corpus = setup_.corpus,
                      .trace = trace_,
                      .folder = checkpoints_in(folder_),
                      .say = [this](const std::string& text) { say(text); }}),
        samples_(node_) {
    metrics_.copy_to([this](std::string line) { records_->add(RecordKind::metrics, std::move(line)); });
    outer_.share_moments(replica_);
    if (ranks_) watch_ranks();
    server_ = serve_metrics(
        config_.metrics, {config_.run.name, request_.name}, [this] { return *readings_.get(); },
        [this](const std::string& text) { say(text); });
    if (!trace_.problem().empty()) say(trace_.problem());
    for (const auto& note : setup_.corpus.notes()) say(note);
    for (const auto& note : config_.outer.notes()) say(note);
    if (!config_.outer.log.empty())
      outer_.keep_log(log_plan(config_, request_.name, logged_tensors(setup_.table), setup_.table.layout(),
                               setup_.table.fingerprint()));
    if (config_.run.record_outer_gradients > 0) {
      outer_.observe_gradients(OuterGradientRecorder(
          folder_ / "outer_gradients", static_cast<std::uint64_t>(config_.run.record_outer_gradients)));
    }
  }
  ~Worker() { stopper_.ending(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int run() {
    try {
      join();
      train();
      if (left_) return leave();
      const bool saved = checkpoints_.finish();
      checkpoints_.exchange_news();
      const int status = report();
      if (!saved) throw Error(ErrorKind::data, "the run has ended, but its last checkpoint is not on disk");
      return status;
    } catch (const std::exception& error) {
      stopper_.ending();
      records_->add(RecordKind::log, error.what());
      if (joined_) node_.leave(error.what());
      throw;
    }
  }

 private:
  [[nodiscard]] std::uint64_t seed() const { return static_cast<std::uint64_t>(config_.run.seed); }
  [[nodiscard]] std::uint64_t batch() const { return static_cast<std::uint64_t>(config_.inner.batch); }

  /// Losing one rank fails the whole replica.
  void watch_ranks() {
    watch_ = std::make_unique<RankWatch>(*ranks_, [this](const std::string& fate) {
      node_.fail({ErrorKind::network, fate});
      abort_ranks(*made_);
    });
  }

  // ---- joining ----

  void join() {
    using How = outer_sync::Admission::How;
    say(setup_.table.description());
    const auto admission = node_.join(hello());
    joined_ = true;
    if (admission.how == How::joins) {
      begin_with_others_state();
    } else {
      if (admission.how == How::resumes) restore(admission.step);
      try {
        node_.activate(outer_.fragments(), outer_.global_hash(), ledger_, trained_before(),
                       outer_.settings());
        resumed_ = admission.how == How::resumes;
        if (resumed_) checkpoints_.leave_later_than(admission.step);
      } catch (const outer_sync::Evicted& why) {  // the first view has begun without this replica
        say(why.what());
        begin_with_others_state();
      }
    }
    stopper_.in_run(node_);
    first_step_ = outer_.step();
    const auto rank = node_.status().rank();
    say(fmt::format("member {} of {}, {}, {} threads{}", rank.index + 1, rank.of,
                    to_string(setup_.hardware.precision), config_.trainer.threads,
                    ranks_ ? fmt::format(" in each of {} ranks", config_.replica.ranks) : ""));
    if (config_.outer.data_parallel() && rank.of > 1) join_gloo();
    if (const auto torch = trainer::torch_in_use(); !torch.empty()) say("libtorch in " + torch.string());
    say(memory_line());
  }

  /// Samples that a resumed replica has trained on and that are not in its ledger. In a data-parallel run all
  /// replicas are equally far.
  [[nodiscard]] SampleSet trained_before() const {
    return config_.outer.data_parallel() ? first_of_all_tracks() : outer_.pending_samples();
  }
  [[nodiscard]] SampleSet first_of_all_tracks() const {
    SampleSet out;
    for (std::int64_t track = 0; track < config_.replicas; ++track)
      out.add({static_cast<std::uint64_t>(track), 0, sequences_});
    return out;
  }

  std::string memory_line() const {
    const auto now = node_.status();
    const auto bound = outer_sync::memory_bound(config_.outer, setup_.table.layout(), *now.view, now.self);
    const auto megabytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    return fmt::format("outer loop: {:.1f} MB of state, {:.1f} MB of chunks, never above {:.1f} MB",
                       megabytes(bound.state), megabytes(bound.usual), megabytes(bound.most));
  }

  /// Copies the state and counts sequences as if this replica had trained from the start. For a stream,
  /// everything in its store counts as trained on.
  void begin_with_others_state() {
    take_state();
    // The others may have returned to a checkpoint without this replica.
    if (request_.resume) checkpoints_.leave_later_than(outer_.step());
    if (const auto stored = setup_.corpus.stored_sequences(config_.data.seq_len))
      sequences_ = std::max(sequences_, *stored);
    else
      sequences_ = std::max(sequences_, outer_.step() * batch());
  }

  /// Copies the state from other members. Without their moments, the inner optimizer is reset and the
  /// learning rate rises from a small value.
  void take_state() {
    const auto begin = Clock::now();
    node_.catch_up(outer_);
    took_state_ = true;
    if (!config_.join.moments()) {
      replica_.forget_moments();
      ramp_steps_ = 0;
    }
    say(fmt::format("takes part from step {}, {:.1f} s after it was admitted", outer_.step(),
                    seconds_since(begin)));
    metrics_.write({{"event", "joined"}, {"step", outer_.step()}, {"seconds", seconds_since(begin)}});
  }

  outer_sync::protocol::Hello hello() {
    auto hello = setup_.hello(config_, request_.name, request_.build);
    hello.resume = request_.resume;
    if (request_.resume) hello.checkpoints = checkpoints_.offer();
    return hello;
  }

  /// The first member serves the Gloo store and announces its address to the others.
  void join_gloo() {
    const auto own_host = outer_sync::parse_address(node_.advertised(), "network.advertise").host;
    const auto now = node_.status();
    std::optional<std::string> own;
    if (now.self == 0) own = outer_sync::Address{own_host, free_port()}.to_string();
    const auto store = outer_sync::parse_address(node_.announced(own), "the address of the Gloo store");
    gloo_.emplace(trainer::GlooOptions{.store_host = store.host,
                                       .store_port = store.port,
                                       .listen_host = own_host,
                                       .rank = now.self,
                                       .world = static_cast<int>(now.view->members.size())});
  }

  // ---- training ----

  void train() {
    std::optional<data::OneTrack> own;  // no other member could take over a stream
    std::optional<data::Loader> loader;
    const auto steps = static_cast<std::uint64_t>(config_.run.steps);
    const auto last = config_.run.stop_after > 0
                          ? std::min(steps, static_cast<std::uint64_t>(config_.run.stop_after))
                          : steps;
    if (config_.run.trace_steps == 0) trace_.close();
    if (first_step_ == 0) evaluate(0);
    if (resumed_) report_again();
    for (bool done = false; !done;) {
      try {
        const auto now = node_.status();
        own.emplace(now.view->members.at(now.self).slot, sequences_);
        auto& source = config_.data.is_stream() ? static_cast<data::SampleSource&>(*own) : samples_;
        loader.emplace(setup_.corpus, loader_options(config_), source, *setup_.hardware.memory, trace_);
        train_to(last, *loader);
        stopped_ = outer_.step() < steps;
        if (!stopped_ && !left_ && has_gone_on()) finish();
        if (!left_) outer_.complete_step();
        done = true;
      } catch (const outer_sync::Evicted& why) {
        say(why.what());
        data_wait_seconds_ += loader->waited_seconds();
        loader.reset();  // its samples are void
        left_ = stopper_.leaving();
        if (left_) return;
        stopper_.joining();
        take_state();
        stopper_.in_run(node_);
      }
    }
    data_wait_seconds_ += loader->waited_seconds();
    keep_ledger();
    if (left_) return;
    if (has_gone_on()) save();
    evaluate(outer_.step());
  }

  void train_to(std::uint64_t last, data::Loader& loader) {
    outer_.end_at(last);
    // Agreed steps that remained when the checkpoint was taken.
    while (next_agreed_step()) at_agreed_step(last);
    while (outer_.step() < last && !may_leave()) {
      const auto turn = next_turn(outer_, node_, last);
      paused_ = turn == Turn::paused;
      if (paused_) continue;
      if (turn == Turn::over) break;
      const auto before = outer_.step();
      train_sound_step(loader);
      if (outer_.step() != before) at_agreed_step(last);
      while (next_agreed_step()) at_agreed_step(last);
    }
  }

  bool next_agreed_step() {
    const auto begin = Clock::now();
    const bool made = outer_.next_step();
    train_seconds_ += seconds_since(begin);
    return made;
  }

  /// Work between two agreed steps.
  void at_agreed_step(std::uint64_t last) {
    const auto step = outer_.step();
    checkpoints_.exchange_news();
    // The agreed step leaps if this replica was away.
    if (step - first_step_ >= static_cast<std::uint64_t>(config_.run.trace_steps)) trace_.close();
    if (step >= last) return;
    const auto run = run_config_at(config_.run, outer_.settings(), step);
    if (due(run.eval_every, step)) {
      outer_.complete_step();
      evaluate(step);
    }
    const bool all_write = node_.checkpoint_due(step);
    if (all_write || due(run.checkpoint_every, step)) save();
    if (Clock::now() - ledger_kept_ > ledger_every) keep_ledger();
  }

  /// False for a replica that was resumed at the run's end. True for a member that joined at the last step:
  /// the others wait for its last rounds.
  [[nodiscard]] bool has_gone_on() const { return outer_.step() > first_step_ || took_state_; }

  /// Completes the last rounds. Not for a run that was interrupted, or resumed at its end.
  void finish() {
    const auto begin = Clock::now();
    outer_.finish();
    train_seconds_ += seconds_since(begin);
  }

  /// A replica that is asked to leave does so when none of its rounds is in flight, and soon in any case.
  bool may_leave() {
    constexpr std::uint64_t max_steps_to_leave = 100;
    const auto now = node_.status();
    drained_ = now.drains;
    if (!stopper_.leaving() && !drained_) return false;
    if (!drained_ && awaits_checkpoint_of_all(now)) return false;
    if (!leave_by_) leave_by_ = outer_.step() + max_steps_to_leave;
    left_ = outer_.quiet() || outer_.step() >= *leave_by_ || outer_.frozen() || paused_;
    return left_;
  }

  /// Before leaving after a signal, requests a checkpoint of all replicas, once, so that little is lost if
  /// all leave or none returns. Does not wait for it if the coordinator cannot be reached or rounds do not
  /// commit.
  bool awaits_checkpoint_of_all(const outer_sync::NodeStatus& now) {
    constexpr auto longest = std::chrono::seconds(15);
    if (!has_gone_on()) return false;
    if (!leaving_since_) {
      leaving_since_ = Clock::now();
      leaves_at_ = outer_.step();
      say("asked to leave by a signal; first all write a checkpoint");
      node_.request_checkpoint("it is about to leave");
    }
    return Clock::now() - *leaving_since_ < longest && now.reaches_coordinator && !outer_.frozen() &&
           !paused_ && now.common_checkpoint <= leaves_at_;
  }

  /// A drained member saves a checkpoint and exits with 0.
  int leave() {
    if (drained_ && has_gone_on()) {
      save();
      if (!checkpoints_.finish()) say("its last checkpoint is not on disk");
    }
    node_.leave(drained_.value_or("asked to by a signal"));
    say(fmt::format("left the run at step {}", outer_.step()));
    return drained_ ? 0 : stopper_.exit_status();
  }

  static bool due(std::int64_t every, std::uint64_t step) {
    return every > 0 && step % static_cast<std::uint64_t>(every) == 0;
  }

  /// The learning rate and evaluations follow the agreed step, which stands still while rounds do not commit.
  void train_step(data::Loader& loader) {
    const auto begin = Clock::now();
    const auto step = outer_.step() + 1;
    const double waited = waited_seconds();
    const auto& batch = loader.next();
    const auto lr = join_ramp() * trainer::learning_rate(config_.inner, step,
                                                         static_cast<std::uint64_t>(config_.run.steps));
    double norm = 0;
    float loss = 0;
    {
      const data::DeviceTimeline::Scope scope(timeline_, "train", "{\"step\":" + std::to_string(step) + "}");
      const auto compute = Clock::now();
      loss = replica_.forward_backward(batch);
      compute_seconds_ += seconds_since(compute);
    }
    const auto batch_size = static_cast<std::uint64_t>(batch.sequences());
    const auto tokens = batch_size * static_cast<std::uint64_t>(batch.seq_len);
    if (outer_.synchronous()) average_gradients(tokens, batch.samples);
    {
      const data::DeviceTimeline::Scope scope(timeline_, "inner_step");
      const auto compute = Clock::now();
      norm = replica_.inner_step(lr);
      compute_seconds_ += seconds_since(compute);
    }
    outer_.after_step(tokens, batch.samples);
    sequences_ += batch_size;
    ++ramp_steps_;
    tokens_ += tokens;
    const auto took = seconds_since(begin);
    train_seconds_ += took;
    measure_speed(took - (waited_seconds() - waited));
    if (const auto spike = loss_watch_.add(loss)) {
      ++loss_spikes_;
      say(fmt::format("the loss of step {} is {:.4g}; it was {:.4g} recently ({:.0f} standard deviations)",
                      step, spike->loss, spike->usual, spike->deviations));
    }
    record(step, loss, lr, norm, took, tokens);
    publish(loss, lr, norm, took, tokens, loader);
  }

  /// Reports a divergence with the last heartbeat before this replica leaves.
  void train_sound_step(data::Loader& loader) {
    try {
      train_step(loader);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::divergence)
        node_.report({.step = outer_.step(), .loss = std::numeric_limits<double>::quiet_NaN()});
      throw;
    }
  }

  /// Updates the readings for Prometheus.
  void publish(double loss, double lr, double norm, double took, std::uint64_t tokens,
               const data::Loader& loader) {
    if (!server_) return;
    ++figures_.steps;
    figures_.step_durations.add(took);
    figures_.tokens = tokens_;
    figures_.loss_spikes = loss_spikes_;
    figures_.loss = loss;
    figures_.learning_rate = lr;
    figures_.gradient_norm = norm;
    figures_.tokens_per_second = static_cast<double>(tokens) / took;
    figures_.utilization = compute_seconds_ / train_seconds_;
    figures_.data_wait_seconds = data_wait_seconds_ + loader.waited_seconds();
    figures_.all_reduce_seconds = gloo_seconds_;
    figures_.all_reduce_bytes = gloo_ ? gloo_->sent_bytes() : 0;
    readings_.put(readings_of(outer_, node_, figures_));
  }

  /// Seconds that steps have waited for other members so far.
  double waited_seconds() const {
    const auto& stats = outer_.stats();
    return stats.stall_seconds + stats.warmup_wait_seconds + gloo_seconds_;
  }

  /// A mean over the last steps, without waits: otherwise a fast replica would seem as slow as the one it
  /// waits for.
  void measure_speed(double busy_seconds) {
    constexpr double weight = 1.0 / 16;
    busy_step_seconds_ =
        busy_step_seconds_ > 0 ? (1 - weight) * busy_step_seconds_ + weight * busy_seconds : busy_seconds;
    outer_.set_speeds(speed(), node_.status().reference_speed);
  }
  double speed() const { return busy_step_seconds_ > 0 ? 1 / busy_step_seconds_ : 0; }

  /// Factor of the learning rate after joining: moments that start from zero are unreliable at first.
  double join_ramp() const {
    if (ramp_steps_ >= join_ramp_steps) return 1;
    return static_cast<double>(ramp_steps_ + 1) / join_ramp_steps;
  }

  void average_gradients(std::uint64_t tokens, std::span<const SampleRange> samples) {
    const auto gradients = replica_.gradients();
    if (!gloo_) {
      if (!config_.outer.data_parallel()) outer_.average_gradients(gradients, tokens, samples);
      return;
    }
    const auto begin = Clock::now();
    const Trace::Scope scope(trace_, Trace::Row::train, "all_reduce");
    gloo_->mean(gradients);
    gloo_seconds_ += seconds_since(begin);
  }

  void record(std::uint64_t step, double loss, double lr, double norm, double took, std::uint64_t tokens) {
    const double utilization = compute_seconds_ / train_seconds_;
    const double rate = static_cast<double>(tokens) / took;
    const auto outer_steps = newest_outer_steps(outer_);
    node_.report({outer_.step(), loss, rate, utilization, gloo_ ? gloo_->sent_bytes() : 0, speed(),
                  disk_free(), outer_steps.gain, outer_steps.correlation});
    auto line = record_of(outer_, node_);
    line.data_step = sequences_ / batch();
    line.loss = loss;
    line.lr = lr;
    line.grad_norm = norm;
    line.loss_spikes = loss_spikes_;
    line.step_seconds = took;
    line.tokens_per_second = rate;
    line.utilization = utilization;
    line.bytes_sent = wire().total;
    line.outer_steps = new_figures_.take(outer_);
    metrics_.write(line_of(line));
    events_.write(outer_.step(), {{"train/loss", loss},
                                  {"train/lr", lr},
                                  {"train/grad_norm", norm},
                                  {"train/tokens_per_second", rate},
                                  {"outer/stall_seconds", outer_.stats().stall_seconds},
                                  {"outer/rounds", static_cast<double>(outer_.stats().rounds)}});
    if (progress_) {
      ProgressState state;
      state.step = outer_.step();
      state.steps = static_cast<std::uint64_t>(config_.run.steps);
      state.loss = loss;
      state.tokens_per_second = rate;
      state.utilization = utilization;
      state.eta_seconds =
          train_seconds_ / static_cast<double>(step - first_step_) * static_cast<double>(state.steps - step);
      state.note = outer_.frozen() ? "NOT COMMITTING" : request_.name;
      if (config_.outer.paced_by_time() && !outer_.frozen())
        state.note += fmt::format(", H {}", outer_.inner_steps());
      const std::lock_guard lock(output_);
      progress_->update(state);
    }
  }

  /// Free bytes on the disk of the checkpoints, updated every few seconds.
  std::uint64_t disk_free() {
    constexpr auto every = std::chrono::seconds(10);
    if (disk_free_ == 0 || Clock::now() - disk_seen_ > every) {
      std::error_code none;
      const auto space = std::filesystem::space(folder_, none);
      disk_free_ = none ? 0 : space.available;
      disk_seen_ = Clock::now();
    }
    return disk_free_;
  }

  // ---- global parameters ----

  /// Once per step, even if a stop falls on a step that is due anyway: the coordinator counts the reports.
  void evaluate(std::uint64_t step) {
    if (evaluated_ == step || setup_.heldout.sequences() == 0) return;
    evaluated_ = step;
    const data::DeviceTimeline::Scope scope(timeline_, "evaluate");
    const auto rank = node_.status().rank();
    const auto sum = setup_.evaluate(outer_.global_parameters(), rank.index, rank.of);
    node_.report_evaluation(step, sum.nats, sum.tokens);
    const double apart = drift();
    figures_.drift = apart;
    metrics_.write({{"step", step},
                    {"eval_nats", sum.nats},
                    {"eval_tokens", sum.tokens},
                    {"eval_share", {rank.index, rank.of}},
                    {"drift", apart}});
    events_.write(step, {{"outer/drift", apart}});
    if (sum.tokens > 0)
      events_.write(step, {{"eval/loss_of_share", sum.nats / static_cast<double>(sum.tokens)}});
  }

  /// Repeats the newest evaluation reports: those of a killed run may not have arrived, and their steps are
  /// not trained again.
  void report_again() {
    constexpr std::size_t newest = 8;
    const auto rank = node_.status().rank();
    const nlohmann::json share{rank.index, rank.of};
    std::map<std::uint64_t, std::pair<double, std::uint64_t>> sums;
    each_line(folder_ / "metrics.jsonl", [&](std::string_view line) {
      if (line.find("\"eval_share\"") == std::string_view::npos)
        return;  // most lines are of steps and need no parsing
      const auto json = nlohmann::json::parse(line, nullptr, false);
      const auto field = [&](const char* name) {
        return json.is_object() && json.contains(name) ? json[name] : nlohmann::json();
      };
      const auto step = field("step"), nats = field("eval_nats"), tokens = field("eval_tokens");
      if (field("eval_share") != share || !step.is_number_unsigned() || !nats.is_number() ||
          !tokens.is_number_unsigned() || step > first_step_)
        return;
      sums[step] = {nats, tokens};
    });
    while (sums.size() > newest) sums.erase(sums.begin());
    for (const auto& [step, sum] : sums) node_.report_evaluation(step, sum.first, sum.second);
  }

  /// Distance of the local from the global parameters: norm of the difference over the norm of the global
  /// ones.
  double drift() {
    const auto global = outer_.global_parameters(), local = replica_.parameters();
    double apart = 0, all = 0;
    for (std::size_t i = 0; i < global.size(); ++i) {
      const double difference = static_cast<double>(local[i]) - static_cast<double>(global[i]);
      apart += difference * difference;
      all += static_cast<double>(global[i]) * static_cast<double>(global[i]);
    }
    return all > 0 ? std::sqrt(apart / all) : 0;
  }

  std::string sample() {
    const auto wanted = static_cast<std::uint64_t>(config_.run.sample_tokens);
    const auto prompt_size = std::min<std::uint64_t>(32, setup_.corpus.tokens(data::Split::heldout));
    if (wanted == 0 || stopped_ || node_.status().rank().index != 0 || prompt_size == 0) return {};
    std::vector<std::int64_t> ids(prompt_size);
    setup_.corpus.read(data::Split::heldout, 0, ids);
    setup_.inference.load(outer_.global_parameters());
    const auto more = trainer::sample(
        setup_.inference, ids,
        {.tokens = wanted, .temperature = 0.7, .seed = static_cast<std::uint64_t>(config_.run.seed)});
    ids.insert(ids.end(), more.begin(), more.end());
    auto text = setup_.corpus.tokenizer().decode(std::vector<std::uint32_t>(ids.begin(), ids.end()));
    for (auto& c : text) {
      const auto code = static_cast<unsigned char>(c);
      if ((code < 32 && c != '\n') || code > 126) c = c == '\t' ? ' ' : '?';
    }
    return text;
  }

  // ---- checkpoints ----

  /// A data-parallel run has no rounds, so its ledger follows from the count of sequences.
  outer_sync::protocol::Ledger ledger_now() {
    if (!config_.outer.data_parallel()) return node_.ledger();
    outer_sync::protocol::Ledger ledger(1);
    ledger.front().add(first_of_all_tracks().ranges());
    return ledger;
  }
  /// Writes ledger.json for `isthmus data ledger`.
  void keep_ledger() {
    ledger_kept_ = Clock::now();
    const auto ledger = ledger_now();
    if (ledger.empty()) return;
    try {
      write_ledger(folder_ / "ledger.json", outer_.step(), ledger);
    } catch (const Error& error) {  // it is only informative, so a full disk must not end training
      say(error.what());
    }
  }

  void save() { checkpoints_.save({.sequences = sequences_, .ramp_steps = ramp_steps_}); }

  void restore(std::uint64_t step) {
    auto restored = checkpoints_.restore(step);
    sequences_ = restored.loop.sequences;
    ramp_steps_ = restored.loop.ramp_steps;
    ledger_ = std::move(restored.ledger);
    check_stored(restored.file);
  }

  /// A stream continues at its old position, so its store must hold everything that was trained on.
  void check_stored(const std::filesystem::path& checkpoint) const {
    const auto stored = setup_.corpus.stored_sequences(config_.data.seq_len);
    if (!stored || *stored >= sequences_) return;
    throw Error(ErrorKind::data,
                fmt::format("{} was written after {} sequences of data.path {}, but its store {} has {}",
                            checkpoint.string(), sequences_, config_.data.path,
                            stream_options(config_, request_.name)->store.string(), *stored));
  }

  // ---- the end ----

  outer_sync::SentBytes wire() const {
    auto wire = node_.status().sent;
    if (gloo_) wire.payload += gloo_->sent_bytes();
    if (gloo_) wire.total += gloo_->sent_bytes();
    return wire;
  }

  int report() {
    const auto hash = outer_.global_hash();
    auto report = member_report(outer_, node_, hash);
    report.name = request_.name;
    report.sample = sample();
    report.stopped = stopped_;
    report.parameters = setup_.table.parameters();
    report.first_step = first_step_;
    report.tokens = tokens_;
    report.train_seconds = train_seconds_;
    report.compute_seconds = compute_seconds_;
    report.warmup_wait_seconds += gloo_seconds_;
    report.data_wait_seconds = data_wait_seconds_;
    report.payload_bytes = wire().payload;
    report.total_bytes = wire().total;
    report.precision = to_string(setup_.hardware.precision);
    report.device = to_string(setup_.hardware.device);
    const auto problem = node_.done(to_json(report).dump(), hash);
    if (progress_) {
      const std::lock_guard lock(output_);
      progress_->finish();
    }
    if (!problem.empty()) throw Error(ErrorKind::divergence, problem);
    say(fmt::format("done: global hash {}", hash.hex()));
    return 0;
  }

  std::optional<data::StreamOptions> stream() {
    auto options = stream_options(config_, request_.name);
    if (options) options->say = [this](const std::string& text) { say(text); };
    return options;
  }

  void say(const std::string& text) {
    records_->add(RecordKind::log, text);
    const std::lock_guard lock(output_);
    if (progress_) return progress_->message(request_.name + ": " + text);
    say_line(text);
  }

  Stopper& stopper_;
  WorkerRequest request_;
  Experiment& config_;
  std::filesystem::path folder_;
  FolderLock lock_;
  std::shared_ptr<outer_sync::RecordQueue> records_ = std::make_shared<outer_sync::RecordQueue>();
  std::mutex output_;  ///< a stream's threads log too
  std::unique_ptr<Progress> progress_;
  ModelSetup setup_;
  Trace trace_;
  data::DeviceTimeline timeline_;
  Metrics metrics_;
  EventFile events_;
  std::unique_ptr<RankProcesses> ranks_;  ///< null for one rank
  std::unique_ptr<trainer::Replica> made_;
  trainer::Replica& replica_;
  outer_sync::MemberNode node_;
  outer_sync::OuterLoop outer_;
  NewFigures new_figures_;
  Checkpoints checkpoints_;
  LeasedSamples samples_;
  std::optional<trainer::GlooAllReduce> gloo_;

  std::uint64_t first_step_ = 0;
  bool resumed_ = false;  ///< from a checkpoint of its own
  std::uint64_t tokens_ = 0;
  std::uint64_t sequences_ = 0;          ///< trained on
  outer_sync::protocol::Ledger ledger_;  ///< of the checkpoint that this replica was resumed from
  static constexpr auto ledger_every = std::chrono::seconds(10);
  Clock::time_point ledger_kept_;  ///< when it was last written
  /// Steps over which the learning rate rises after the inner optimizer was reset.
  static constexpr std::uint64_t join_ramp_steps = 20;
  std::uint64_t ramp_steps_ = join_ramp_steps;
  std::uint64_t disk_free_ = 0;
  Clock::time_point disk_seen_;
  std::optional<std::uint64_t> leave_by_;           ///< agreed step
  std::optional<Clock::time_point> leaving_since_;  ///< when a signal asked to leave
  std::uint64_t leaves_at_ = 0;                     ///< agreed step at that time
  bool left_ = false, paused_ = false;
  std::optional<std::string> drained_;      ///< reason to leave
  std::optional<std::uint64_t> evaluated_;  ///< newest step
  bool joined_ = false, took_state_ = false, stopped_ = false;
  trainer::LossWatch loss_watch_;
  std::uint64_t loss_spikes_ = 0;
  double busy_step_seconds_ = 0;  ///< mean over the last inner steps; 0 before the first
  double train_seconds_ = 0, compute_seconds_ = 0, data_wait_seconds_ = 0, gloo_seconds_ = 0;
  ReplicaFigures figures_;
  LatestReadings readings_;
  std::unique_ptr<MetricsServer> server_;
  std::unique_ptr<RankWatch> watch_;  ///< last: its thread uses the members above
};

}  // namespace

int run_worker(WorkerRequest request) {
  take_replica_name(request.name, request.experiment);
  auto& experiment = request.experiment;
  if (experiment.replica.ranks > 1 && experiment.trainer.threads == 0)
    experiment.trainer.threads = threads_each(experiment.replica.ranks);
  return run_stoppable([&](Stopper& stopper) { return Worker(std::move(request), stopper).run(); });
}

}  // namespace isthmus::app
