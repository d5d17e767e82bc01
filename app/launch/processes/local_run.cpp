#include "launch/processes/local_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "launch/processes/pipe.h"
#include "run/output/exit_codes.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto children_polled_every = 20ms;
/// After one process has failed, the others get this long to notice and end by themselves.
constexpr auto time_to_end = 3s;
/// Kills are repeated: a signal to a site is lost if its connection breaks.
constexpr auto killed_again_after = 1s;

}  // namespace

bool LocalRun::start_coordinator(std::vector<std::string> command, const std::string& listen,
                                 const std::filesystem::path& log) {
  Pipe pipe;
  for (const auto& word :
       {std::string("--listen"), listen, std::string("--announce-fd"), std::to_string(pipe.writer())})
    command.push_back(word);
  Process::Options options{
      .name = "coordinator", .command = std::move(command), .log = log, .keep_fd = pipe.writer()};
  if (processes_.empty()) processes_.emplace_back();
  processes_.front() = std::make_unique<Process>(std::move(options));
  pipe.close_writer();
  const auto port = pipe.read_all();
  if (port.empty()) return false;
  address_ = listen.substr(0, listen.rfind(':')) + ":" + port.substr(0, port.find('\n'));
  return true;
}

void LocalRun::set_address(const std::string& listen, std::uint16_t port) {
  address_ = fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port);
}

int LocalRun::watch(const std::atomic<int>& interrupts, std::chrono::duration<double> grace) {
  int seen = 0;
  bool ending = false;
  std::optional<Clock::time_point> kill_at;
  const auto running = [](const auto& process) { return process->running(); };
  while (std::ranges::any_of(processes_, running) || (seen == 0 && !ending && coordinator_returns())) {
    if (seen == 0 && !ending) keep_going();
    if (interrupts > seen) {
      seen = interrupts;
      if (seen == 1 && elastic()) excuse_ended();
      processes_.front()->signal(SIGINT);
      const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace - 500ms);
      kill_at = seen > 1 ? Clock::now() : limit;
    }
    const bool alone = seen > 0 && !processes_.front()->running();  // the coordinator has ended
    if (!ending && (alone || (seen == 0 && any_failed()))) {
      ending = true;
      if (!alone) report_causes();
      for (const auto& process : processes_) process->signal(SIGTERM);
      if (!kill_at) kill_at = Clock::now() + time_to_end;
    }
    // A process that was suspended or cut off when the run ended would wait for the coordinator forever.
    if (!kill_at && !processes_.front()->running() && !coordinator_returns())
      kill_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
    if (kill_at && Clock::now() >= *kill_at) {
      kill_rest();
      kill_at = Clock::now() + killed_again_after;
    }
    std::this_thread::sleep_for(children_polled_every);
  }
  return verdict(seen > 0);
}

bool LocalRun::any_failed() {
  const auto ended_badly = [](const auto& process) {
    const int status = process->poll().value_or(0);
    return status != 0 && status != stopped_exit;
  };
  if (!elastic()) return std::ranges::any_of(processes_, ended_badly);
  if (coordinator_returns()) {
    no_trainer_since_.reset();
    return false;
  }
  return ended_badly(processes_.front()) || no_trainer_left();
}

/// Whether all trainers have ended for good. If one of them ended well, the coordinator ends a moment later.
/// Otherwise they were asked to leave, and the coordinator would wait for others without limit.
bool LocalRun::no_trainer_left() {
  bool well = false, will = others_will_train();
  for (const auto& process : processes_) {
    if (process == processes_.front() || !trains(*process)) continue;
    will = will || process->running() || will_restart(*process);
    well = well || process->poll() == 0;
  }
  if (will)
    no_trainer_since_.reset();
  else if (!no_trainer_since_)
    no_trainer_since_ = Clock::now();
  return !will && (!well || Clock::now() - *no_trainer_since_ > coordinator_ends_within_);
}

/// Reports the failures that end the run, before the others say that they stop. As in `verdict`, only the
/// worst kind is a cause.
void LocalRun::report_causes() {
  std::fflush(stdout);
  auto worst = Failure::died;
  for (auto& process : processes_) worst = std::max(worst, failure_of(*process));
  for (auto& process : processes_) {
    const bool caused = !process->running() && failure_of(*process) == worst;
    if (caused && !is_reported(*process)) report_end(*process, *process->poll());
  }
}

void LocalRun::kill_rest() {
  for (auto& process : processes_) {
    if (!process->running()) continue;
    if (killed_.insert(process->name()).second)
      say_error(fmt::format("killing {}, which did not end by itself", process->name()));
    process->signal(SIGKILL);
  }
}

void LocalRun::excuse_ended() {
  for (std::size_t i = coordinator_returns() ? 0 : 1; i < processes_.size(); ++i) {
    if (!processes_[i]->running()) ended_before_.insert(processes_[i]->name());
  }
}

LocalRun::Failure LocalRun::failure_of(RunProcess& process) const {
  const int status = process.poll().value_or(0);
  const bool asked_to_end = status == 128 + SIGINT || status == 128 + SIGTERM;
  if (status == 0 || asked_to_end || killed_.contains(process.name())) return Failure::none;
  if (ended_before_.contains(process.name())) return Failure::none;
  if (status == exit_status(ErrorKind::network)) return Failure::lost_a_peer;
  return status == 1 || status > 126 ? Failure::died : Failure::has_a_reason;
}

int LocalRun::verdict(bool interrupted) {
  std::fflush(stdout);
  // The ends of the others were reported when they happened.
  if (elastic() && !interrupted && processes_.front()->poll() == 0) {
    for (auto& process : processes_) {
      const bool failed = failure_of(*process) == Failure::has_a_reason;
      if (failed && !is_reported(*process)) report_end(*process, *process->poll());
    }
    return 0;
  }
  auto worst = Failure::none;
  for (auto& process : processes_) worst = std::max(worst, failure_of(*process));
  if (interrupted && worst <= Failure::lost_a_peer) return killed_.empty() ? 130 : 1;
  if (worst == Failure::none) return exit_status_of_successful();
  int status = 0;
  for (auto& process : processes_) {
    if (failure_of(*process) != worst) continue;
    const int own = *process->poll();
    if (status == 0) status = own > 128 ? exit_status(ErrorKind::network) : own;
    if (!is_reported(*process)) report_end(*process, own);
  }
  return status;
}

/// 130 if the run was stopped from elsewhere, for example by `isthmus ctl stop`.
int LocalRun::exit_status_of_successful() {
  return std::ranges::all_of(processes_, [](const auto& process) { return process->poll() == 0; }) ? 0 : 130;
}

void LocalRun::report_end(const RunProcess& process, int status) {
  reported_.insert(process.name());
  const auto how = status > 128 ? fmt::format("was killed by signal {}", status - 128)
                                : fmt::format("failed with exit status {}", status);
  if (process.log().empty()) {
    say_error(fmt::format("{} {}", process.name(), how));
  } else {
    say_to(stderr, fmt::format("{} {}; the end of {}:\n{}", process.name(), how, process.log().string(),
                               tail_of(process.log(), 6)));
  }
}

}  // namespace isthmus::app
