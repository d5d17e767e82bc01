#include "compare/runs/runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <system_error>
#include <thread>

#include "compare/runs/progress_reader.h"
#include "compare/runs/run_record.h"
#include "compare/runs/run_state.h"
#include "compare/statistics/words.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/progress.h"
#include "run/output/exit_codes.h"
#include "run/output/terminal.h"
#include "run/process/process.h"
#include "run/process/signals.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto poll_every = 50ms;
const int diverged_status = exit_status(ErrorKind::divergence);

/// A run in progress.
class ActiveRun {
 public:
  ActiveRun(const RunPlan& plan, const Comparison& comparison, const RunState& state,
            const std::vector<std::string>& program)
      : plan_(plan),
        max_seconds_(comparison.keys.budget.time.seconds),
        saboteur_(comparison.arms[plan.arm].faults),
        process_({.name = plan.name(), .command = command(state, program), .log = log_file()}),
        progress_(plan) {}

  [[nodiscard]] const RunPlan& plan() const { return plan_; }
  [[nodiscard]] const ProgressReader& progress() const { return progress_; }
  [[nodiscard]] std::optional<int> poll() { return process_.poll(); }
  [[nodiscard]] fs::path log_file() const { return plan_.folder().string() + ".log"; }
  /// Fraction of its steps, or of its time if that is what ends it.
  [[nodiscard]] double part_done() const {
    const double steps =
        static_cast<double>(progress_.step()) / static_cast<double>(plan_.experiment.run.steps);
    const double time = max_seconds_ > 0 ? progress_.seconds() / max_seconds_ : 0;
    return std::min(1.0, std::max(steps, time));
  }

  /// Reads the progress and injects faults that are due. Returns the injected faults, in words.
  [[nodiscard]] std::vector<std::string> look() {
    progress_.look();
    if (progress_.step() == 0) return {};
    return saboteur_.strike(progress_.step(), process_.pid());
  }

  /// Stops the run with a checkpoint; a second call ends it at once.
  void interrupt() { process_.signal(SIGINT); }
  /// The same, but the run then counts as finished.
  void end_early(EarlyEnd end) {
    if (!end_.how.empty()) return;
    end_ = std::move(end);
    interrupt();
  }
  [[nodiscard]] const EarlyEnd& end() const { return end_; }
  [[nodiscard]] const std::vector<Fault>& faults_left() const { return saboteur_.left(); }

 private:
  /// A run with faults starts from the beginning: its checkpoint does not record which faults were injected.
  std::vector<std::string> command(const RunState& state, std::vector<std::string> program) {
    if (state.resumable && saboteur_.left().empty()) {
      program.insert(program.end(), {"launch", "--resume", plan_.folder().string()});
      return program;
    }
    const fs::path file = plan_.folder().string() + ".yaml";
    auto experiment = plan_.experiment;
    replace_file(file, to_yaml(experiment));
    program.insert(program.end(), {"launch", file.string()});
    return program;
  }

  const RunPlan& plan_;
  double max_seconds_;
  Saboteur saboteur_;
  Process process_;
  ProgressReader progress_;
  EarlyEnd end_;
};

class Runner {
 public:
  Runner(const Comparison& comparison, const RunnerOptions& options)
      : comparison_(comparison),
        options_(options),
        signals_([this](int, int count) { interrupts_ = count; }),
        progress_(options.out, is_terminal(options.out), 20s) {
    // Check every folder before anything is started: it may belong to another comparison.
    for (const auto& run : comparison.runs) states_.push_back(state_of(run));
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].stage == RunState::Stage::finished) {
        ++finished_;
        ++reused_;
        recall_baseline(comparison.runs[i]);
      } else {
        waiting_.push_back(i);
      }
    }
    std::ranges::reverse(waiting_);
  }

  int run() {
    say_plan();
    while (true) {
      start_next();
      if (active_.empty()) break;
      std::this_thread::sleep_for(poll_every);
      pass_on_interrupts();
      look();
      take_ended();
      show();
    }
    progress_.finish();
    if (failure_) throw Error(*failure_);
    return interrupts_ > 0 ? stopped_exit : 0;
  }

 private:
  void recall_baseline(const RunPlan& run) {
    if (run.arm == comparison_.baseline && comparison_.keys.hopeless.after > 0)
      baseline_curves_.push_back(read_run(run).curve);
  }

  [[nodiscard]] bool stopping() const { return interrupts_ > 0 || failure_.has_value(); }

  void say_plan() {
    const auto all = comparison_.runs.size();
    progress_.message(fmt::format("{} runs of {} arms in {}{}", all, comparison_.arms.size(),
                                  comparison_.folder.string(),
                                  reused_ > 0 ? fmt::format("; {} are finished already", reused_) : ""));
  }

  void start_next() {
    while (!stopping() && active_.size() < options_.jobs && !waiting_.empty()) {
      const auto index = waiting_.back();
      waiting_.pop_back();
      active_.push_back(std::make_unique<ActiveRun>(comparison_.runs[index], comparison_, states_[index],
                                                    options_.program));
    }
  }

  void pass_on_interrupts() {
    for (; passed_on_ < interrupts_; ++passed_on_) {
      if (passed_on_ == 0) progress_.message("stopping the runs in progress, each with a checkpoint");
      for (const auto& run : active_) run->interrupt();
    }
  }

  void look() {
    if (Clock::now() - looked_ < 250ms) return;
    looked_ = Clock::now();
    for (const auto& run : active_) {
      for (const auto& done : run->look()) progress_.message(run->plan().name() + ": " + done);
      if (!stopping()) judge(*run);
    }
  }

  void judge(ActiveRun& run) {
    const double most = comparison_.keys.budget.time.seconds;
    if (most > 0 && run.progress().seconds() >= most)
      return run.end_early({"time", fmt::format("used its {:g} s", most)});
    if (const auto words = hopeless(run); !words.empty()) {
      progress_.message(run.plan().name() + ": " + words);
      run.end_early({"hopeless", words});
    }
  }

  /// Why the run is hopeless; empty if it is not, or if there is no baseline yet.
  [[nodiscard]] std::string hopeless(const ActiveRun& run) const {
    const auto& rule = comparison_.keys.hopeless;
    const auto& evaluations = run.progress().evaluations();
    if (rule.after == 0 || run.plan().arm == comparison_.baseline || evaluations.size() < 2 ||
        run.part_done() < rule.after)
      return {};
    const double tokens = tokens_per_step(run.plan().experiment);
    double worst = INFINITY;
    for (auto i = evaluations.size() - 2; i < evaluations.size(); ++i) {
      const auto& [step, loss] = evaluations[i];
      const auto baseline = baseline_loss(static_cast<double>(step) * tokens);
      if (!baseline) return {};
      worst = std::min(worst, loss / *baseline - 1);
    }
    if (worst <= rule.margin) return {};
    return fmt::format("was stopped after {} of its training, its loss {} above the baseline's",
                       percent(run.part_done()), percent(worst));
  }

  /// Mean loss of the baseline's finished runs after this number of tokens.
  [[nodiscard]] std::optional<double> baseline_loss(double tokens) const {
    double sum = 0;
    std::size_t count = 0;
    for (const auto& curve : baseline_curves_) {
      if (const auto loss = loss_at(curve, tokens)) {
        sum += *loss;
        ++count;
      }
    }
    return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
  }

  void take_ended() {
    std::vector<std::unique_ptr<ActiveRun>> ended;
    std::erase_if(active_, [&](auto& run) {
      if (!run->poll()) return false;
      ended.push_back(std::move(run));
      return true;
    });
    for (const auto& run : ended) take(*run, *run->poll());
  }

  void take(ActiveRun& run, int status) {
    static_cast<void>(run.look());
    if (status == stopped_exit && !run.end().how.empty()) {
      mark_ended(run.plan(), run.end());
    } else if (status == diverged_status && !stopping()) {
      mark_ended(run.plan(), {"diverged", "diverged: " + reason_in(run.log_file())});
      progress_.message(run.plan().name() + " diverged: " + reason_in(run.log_file()));
      ++finished_;
      return options_.finished();
    } else if (status != 0) {
      return fail(run, status);
    }
    ++finished_;
    for (const auto& fault : run.faults_left())
      progress_.message(
          fmt::format("{}: '{}' did not happen: the run had ended", run.plan().name(), fault.text));
    tell(run);
    options_.finished();
  }

  void tell(const ActiveRun& run) {
    try {
      const auto record = read_run(run.plan());
      if (run.plan().arm == comparison_.baseline) baseline_curves_.push_back(record.curve);
      progress_.message(fmt::format("{}: loss {} after {} tokens ({} of {} runs)", run.plan().name(),
                                    loss_words(record.curve.back().loss), format_count(record.tokens()),
                                    finished_, comparison_.runs.size()));
    } catch (const Error& error) {
      if (!failure_) failure_ = error;
    }
  }

  /// Runs that were stopped because of a failure have not failed themselves.
  void fail(const ActiveRun& run, int status) {
    if (stopping()) return;
    const auto kind = status >= 2 && status <= 5 ? static_cast<ErrorKind>(status - 2) : ErrorKind::data;
    const auto what = status == stopped_exit ? std::string("was stopped by another process")
                                             : fmt::format("failed with exit status {}", status);
    failure_ = Error(
        kind, fmt::format("{} {}; the end of {}:\n{}run the same command again to continue it",
                          run.plan().name(), what, run.log_file().string(), tail_of(run.log_file(), 8)));
    for (const auto& other : active_)
      if (other) other->interrupt();
  }

  /// The last "isthmus: REASON" in the log: a worker writes it when it ends, before `launch` reports its
  /// reaction.
  static std::string reason_in(const fs::path& file) {
    constexpr std::string_view mark = "isthmus: ";
    auto text = tail_of(file, 20);
    const auto at = text.rfind(mark);
    if (at != text.npos) text.erase(0, at + mark.size());
    return text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
  }

  void show() {
    if (active_.empty()) return;
    double done = static_cast<double>(finished_);
    for (const auto& run : active_) done += run->part_done();
    const auto all = static_cast<double>(comparison_.runs.size());
    const auto& run = *active_.front();
    const std::chrono::duration<double> took = Clock::now() - begin_;
    const double fresh = done - static_cast<double>(reused_);
    const auto left = fresh > 0.02 ? format_duration(took.count() / fresh * (all - done)) : "?";
    const auto at = run.progress().step() == 0
                        ? std::string("starting")
                        : fmt::format("step {} loss {:.3f}", run.progress().step(), run.progress().loss());
    progress_.update(format_bar(
        done / all,
        fmt::format("{}/{} {} {} ETA {}", finished_, comparison_.runs.size(), run.plan().name(), at, left)));
  }

  const Comparison& comparison_;
  const RunnerOptions& options_;
  std::atomic<int> interrupts_ = 0;
  const SignalThread signals_;
  Progress progress_;
  std::vector<RunState> states_;
  std::vector<std::size_t> waiting_;  ///< the next one last
  std::vector<std::unique_ptr<ActiveRun>> active_;
  std::vector<std::vector<CurvePoint>> baseline_curves_;
  std::size_t finished_ = 0, reused_ = 0;
  int passed_on_ = 0;
  std::optional<Error> failure_;
  Clock::time_point begin_ = Clock::now(), looked_{};
};

}  // namespace

int run_missing(const Comparison& comparison, const RunnerOptions& options) {
  return Runner(comparison, options).run();
}

}  // namespace isthmus::app
