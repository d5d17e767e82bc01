#include "launch/sites/site_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "launch/processes/pipe.h"
#include "launch/processes/restarts.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto alive_every = 3s;
constexpr int ssh_failed = 255;
/// Time for ssh, the tether and the agent to end after standard input has closed.
constexpr auto close_timeout = 15s;

}  // namespace

/// A process at the site, as the launch sees it.
class SiteProcess final : public RunProcess {
 public:
  SiteProcess(std::shared_ptr<SiteLink> link, std::string name, std::filesystem::path log)
      : link_(std::move(link)), name_(std::move(name)), log_(std::move(log)) {}
  ~SiteProcess() override {
    if (!link_->leaves_running() && running()) SiteProcess::signal(SIGKILL);
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::filesystem::path& log() const override { return log_; }
  void signal(int number) override { link_->signal(name_, number); }
  /// The status is kept, because another process may get this name later.
  [[nodiscard]] std::optional<int> poll() override {
    if (!status_) status_ = link_->status_of(name_);
    return status_;
  }

 private:
  std::shared_ptr<SiteLink> link_;
  std::string name_;
  std::optional<int> status_;
  std::filesystem::path log_;
};

SiteLink::SiteLink(Options options)
    : options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { follow(); });
}

void SiteLink::close_soon() {
  closing_ = true;
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof one));
}

SiteLink::~SiteLink() {
  close_soon();
  thread_.join();
  close(wake_);
}

std::optional<std::uint16_t> SiteLink::await_port(RunProcess& coordinator,
                                                  const std::atomic<int>& interrupts) const {
  while (!port() && coordinator.running() && interrupts == 0 && state() != State::away)
    std::this_thread::sleep_for(20ms);
  return port();
}

std::unique_ptr<RunProcess> SiteLink::adopt(const std::string& name, const std::filesystem::path& log) {
  const std::lock_guard lock(mutex_);
  const auto& one = found_.at(name);
  processes_[name] = {log, one.life, one.status};
  return std::make_unique<SiteProcess>(shared_from_this(), name, log);
}

std::unique_ptr<RunProcess> SiteLink::start(const SiteStart& start) {
  std::int64_t life = 0;
  {
    const std::lock_guard lock(mutex_);
    life = ++lives_;
    auto& remote = processes_[start.name];
    remote = {start.log, life, std::nullopt};
    if (state_ == State::failed) remote.status = problem_.status;
    if (start.coordinates) port_.reset();
  }
  say({{"do", "start"},
       {"name", start.name},
       {"life", life},
       {"folder", start.folder},
       {"arguments", start.arguments},
       {"environment", start.environment},
       {"again", start.again},
       {"coordinator", start.coordinates}});
  return std::make_unique<SiteProcess>(shared_from_this(), start.name, start.log);
}

void SiteLink::say(const Message& message) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::connecting || state_ == State::away) return waiting_.push_back(message);
    if (state_ == State::failed) return;
    unsent_ += line_of(message);
  }
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof one));
}

/// While the site is away, a killed process counts as ended; it is killed when the site returns.
void SiteLink::signal(const std::string& name, int number) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = processes_.find(name);
    if (number == SIGKILL && state_ == State::away && found != processes_.end() && !found->second.status)
      found->second.status = exit_status(ErrorKind::network);
  }
  say({{"do", "signal"}, {"name", name}, {"number", number}});
}

std::optional<int> SiteLink::status_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = processes_.find(name);
  return found == processes_.end() ? std::optional(exit_status(ErrorKind::data)) : found->second.status;
}

// ---- the thread ----

void SiteLink::follow() {
  sigset_t pipe;  // the result of write shows when ssh has ended
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  for (std::int64_t failures = 0;;) {
    try {
      dial();
      exchange_messages();
    } catch (const Error& error) {  // for example no free descriptors or processes on this machine
      ssh_.last_error = error.what();
    }
    failures = ssh_.is_ready ? 0 : failures + 1;
    close_ends();
    if (!will_redial()) return;
    pause_before(failures + 1);
    if (closing_ && leaves_running_) return;
  }
}

void SiteLink::dial() {
  ssh_.said = {};
  ssh_.error_lines = {};
  ssh_.is_ready = ssh_.left = false;
  ssh_.kill_at.reset();
  ssh_.last_error.clear();
  ++connections_;
  Pipe in, out, err;
  ssh_.process = std::make_unique<Process>(Process::Options{.name = "ssh",
                                                            .command = options_.command,
                                                            .log = {},
                                                            .input = in.reader(),
                                                            .output = out.writer(),
                                                            .errors = err.writer()});
  ssh_.input = in.take_writer();
  ssh_.output = out.take_reader();
  ssh_.errors = err.take_reader();
}

/// Exchanges messages until ssh has ended.
void SiteLink::exchange_messages() {
  do {
    queue_due_messages();
    wait_for_bytes();
    take_errors();
    take_output();
    const bool no_use = state() == State::failed;  // the site was given up
    // A site that is away is dialled once more, so that its agent receives the order to end.
    const bool done = no_use || (closing_ && (ssh_.left || leaves_running_ || state() == State::connecting));
    if (done && ssh_.input >= 0 && all_sent()) close(std::exchange(ssh_.input, -1));
    if ((closing_ || no_use) && !ssh_.kill_at) ssh_.kill_at = Clock::now() + close_timeout;
    if (ssh_.kill_at && Clock::now() > *ssh_.kill_at) ssh_.process->signal(SIGKILL);
  } while (ssh_.process->running());
  take_errors();
  take_output();
}

void SiteLink::queue_due_messages() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::ready) return;
  if (Clock::now() >= ssh_.alive_at) {
    unsent_ += line_of({{"do", "alive"}});
    ssh_.alive_at = Clock::now() + alive_every;
  }
  if (closing_ && !leaves_running_ && !std::exchange(ssh_.left, true)) unsent_ += line_of({{"do", "leave"}});
}

void SiteLink::close_ends() {
  for (int* end : {&ssh_.input, &ssh_.output, &ssh_.errors}) {
    if (*end >= 0) close(std::exchange(*end, -1));
  }
  const std::lock_guard lock(mutex_);
  unsent_.clear();
}

/// Whether to dial again after the connection has ended.
bool SiteLink::will_redial() {
  const int status = ssh_.process ? ssh_.process->poll().value_or(ssh_failed) : ssh_failed;
  const auto state = SiteLink::state();
  if (state == State::failed) return false;
  if (state == State::connecting) {
    // The remote shell and the program print a reason of their own.
    const bool lost = status > 128;  // 255 is ssh's own
    const auto how = lost ? std::string("the connection ended") : fmt::format("ended with status {}", status);
    give_up(ssh_.last_error.empty() ? how : ssh_.last_error,
            lost ? exit_status(ErrorKind::network) : exit_status(ErrorKind::data));
    return false;
  }
  if (closing_ || ssh_.left) return false;
  const auto why = ssh_.last_error.empty() ? std::string("the connection ended") : ssh_.last_error;
  if (!options_.dials_again) {
    give_up(why, exit_status(ErrorKind::network));
    return false;
  }
  if (state == State::ready)
    show(fmt::format("is away ({}): {}; its processes continue, and it is dialled again", options_.place,
                     why));
  const std::lock_guard lock(mutex_);
  state_ = State::away;
  return true;
}

void SiteLink::pause_before(std::int64_t dial) {
  const auto until = Clock::now() + Restarts::pause(dial);
  while (!closing_ && Clock::now() < until) {
    pollfd woken{wake_, POLLIN, 0};
    poll(&woken, 1, 200);
    std::uint64_t count = 0;
    static_cast<void>(read(wake_, &count, sizeof count));
  }
}

bool SiteLink::all_sent() const {
  const std::lock_guard lock(mutex_);
  return unsent_.empty();
}

void SiteLink::wait_for_bytes() {
  const bool sending = ssh_.input >= 0 && !all_sent();
  pollfd waiting[] = {{wake_, POLLIN, 0},
                      {ssh_.output, POLLIN, 0},
                      {ssh_.errors, POLLIN, 0},
                      {ssh_.input, static_cast<short>(sending ? POLLOUT : 0), 0}};
  poll(waiting, ssh_.input >= 0 ? 4 : 3, 200);
  std::uint64_t count = 0;
  static_cast<void>(read(wake_, &count, sizeof count));
  const std::lock_guard lock(mutex_);
  while (!unsent_.empty() && ssh_.input >= 0) {
    const auto n = write(ssh_.input, unsent_.data(), unsent_.size());
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {  // ssh has ended
      unsent_.clear();
      close(std::exchange(ssh_.input, -1));
      break;
    }
    unsent_.erase(0, static_cast<std::size_t>(n));
  }
}

/// Reads standard error: from ssh, the remote shell and the set-up lines.
void SiteLink::take_errors() {
  char bytes[4096];
  while (ssh_.errors >= 0) {
    const auto n = read(ssh_.errors, bytes, sizeof bytes);
    if (n == 0) close(std::exchange(ssh_.errors, -1));
    if (n <= 0) break;
    ssh_.error_lines.add({bytes, static_cast<std::size_t>(n)});
  }
  while (const auto line = ssh_.error_lines.next()) {
    if (line->empty()) continue;
    if (state() == State::connecting) show(*line);  // later only the last line is reported
    ssh_.last_error = printable(*line);
  }
  if (ssh_.error_lines.pending() > sizeof bytes) static_cast<void>(ssh_.error_lines.rest());
}

void SiteLink::take_output() {
  char bytes[1 << 14];
  bool open = false;
  while (ssh_.output >= 0) {
    const auto n = read(ssh_.output, bytes, sizeof bytes);
    if (n > 0) {
      ssh_.said.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = ssh_.said.next()) handle(*line);
      if (ssh_.said.pending() <= max_message_bytes) continue;
      give_up("it sent a line of more than 4 MiB", exit_status(ErrorKind::network));
      ssh_.process->signal(SIGKILL);
    }
    open = n < 0 && (errno == EAGAIN || errno == EINTR);
    break;
  }
  // The stream has ended; while ssh lingers, polling it would spin.
  if (!open && ssh_.output >= 0) close(std::exchange(ssh_.output, -1));
}

void SiteLink::handle(const std::string& line) {
  const auto message = message_of(line);
  if (!message) {  // for example a login greeting
    if (!line.empty() && connections_ == 1) show(line);
    return;
  }
  if (message->contains("tether")) on_hello(*message);
  if (flag_in(*message, "ready")) on_ready();
  if (flag_in(*message, "replaced"))
    give_up("another launch has taken over its processes", exit_status(ErrorKind::network));
  if (const auto why = text_in(*message, "failed"); !why.empty()) {
    if (state() == State::connecting) {
      give_up(printable(why), exit_status(ErrorKind::data));
    } else {
      show(why);
    }
  }
  if (const auto name = text_in(*message, "output"); !name.empty()) output(name, text_in(*message, "text"));
  if (message->contains("ended")) handle_of_end(*message);
  const std::lock_guard lock(mutex_);
  if (message->contains("begun")) begun_ = true;
  if (message->contains("summary")) summary_ = text_in(*message, "summary");
  if (const auto port = number_in(*message, "port", 0); port > 0 && port < 65536)
    port_ = static_cast<std::uint16_t>(port);
}

void SiteLink::handle_of_end(const Message& message) {
  const std::lock_guard lock(mutex_);
  const auto ended = processes_.find(text_in(message, "ended"));
  const auto status = number_in(message, "status", exit_status(ErrorKind::data));
  if (ended == processes_.end() || status < 0 || status > 255) return;
  if (number_in(message, "life", 0) != ended->second.life) return;  // of an earlier start
  ended->second.status = static_cast<int>(status);
  if (message.contains("run_goes_on")) run_is_unfinished_ = flag_in(message, "run_goes_on");
}

void SiteLink::on_hello(const Message& hello) {
  const auto version = number_in(hello, "tether", 0);
  if (version != tether_protocol)
    return give_up(
        fmt::format("its isthmus ({}) uses version {} of the launch protocol; expected {}: use the "
                    "same build at all sites",
                    printable(text_in(hello, "build")), version, tether_protocol),
        exit_status(ErrorKind::data));
  auto agent = read_hello(hello);
  if (agent.any_runs && connections_ == 1 && !options_.take_over)
    return give_up(
        "the run is in progress there; take it over with `isthmus launch --resume RUN`, where Ctrl-C ends it",
        exit_status(ErrorKind::data));
  std::string text;
  try {
    if (!agent.facts.folder.is_absolute()) throw Error(ErrorKind::network, "it reports no folder");
    if (connections_ == 1 || !agent.any_runs) {  // otherwise the files are there already
      for (const auto& file : options_.files(agent.facts))
        text += line_of({{"do", "write"}, {"path", file.path}, {"text", file.text}, {"secret", file.secret}});
    }
  } catch (const Error& error) {
    if (state() == State::connecting) return give_up(error.what(), error.exit_status());
    show(error.what());
  }
  const std::lock_guard lock(mutex_);
  facts_ = std::move(agent.facts);
  run_is_unfinished_ = flag_in(hello, "run_goes_on");
  found_ = std::move(agent.found);
  lives_ = std::max(lives_, agent.lives);
  unsent_ += text + line_of({{"do", "ready"}});
}

void SiteLink::on_ready() {
  ssh_.is_ready = true;
  if (state() == State::away) show("is back (" + options_.place + ")");
  const std::lock_guard lock(mutex_);
  if (state_ == State::failed) return;
  if (state_ == State::away) end_lost_processes();
  state_ = State::ready;
  for (const auto& message : std::exchange(waiting_, {})) unsent_ += line_of(message);
}

/// Processes that the agent does not know were lost with an earlier agent, or never started because the
/// connection was lost with the message.
void SiteLink::end_lost_processes() {
  for (auto& process : processes_) {
    const auto& name = process.first;
    auto& remote = process.second;
    const auto there = found_.find(name);
    if (remote.status || (there != found_.end() && there->second.life == remote.life)) continue;
    const bool to_be_started = std::ranges::any_of(waiting_, [&](const Message& message) {
      return text_in(message, "do") == "start" && text_in(message, "name") == name;
    });
    if (!to_be_started) remote.status = exit_status(ErrorKind::network);
  }
}

void SiteLink::output(const std::string& name, const std::string& text) {
  std::filesystem::path log;
  {
    const std::lock_guard lock(mutex_);
    const auto found = processes_.find(name);
    if (found == processes_.end()) return;
    log = found->second.log;
  }
  if (!log.empty() && !options_.same_disk) std::ofstream(log, std::ios::app) << text << "\n";
  options_.show(name, text);
}

/// Gives the site up for good.
void SiteLink::give_up(std::string why, int status) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::failed) return;
  state_ = State::failed;
  problem_.text = fmt::format("{} ({}): {}", options_.site, options_.place, why);
  problem_.status = status;
  for (auto& [name, remote] : processes_) {
    if (!remote.status) remote.status = status;
  }
}

}  // namespace isthmus::app
