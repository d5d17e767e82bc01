#include "launch/site_link.h"

#include <fcntl.h>
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

namespace isthmus::app {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto alive_every = 3s;
constexpr int ssh_failed = 255;
/// After its standard input has ended, ssh and the tether get this long.
constexpr auto farewell = 15s;

struct Ends {
  Ends() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::data, "cannot make a pipe");
  }
  ~Ends() {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
  }
  [[nodiscard]] int take(int which) {
    const int end = std::exchange(ends[which], -1);
    fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
    return end;
  }
  int ends[2] = {-1, -1};
};

/// "~/x" is the home's; anything else stands for itself.
std::string path_word(const std::string& path) {
  return path.starts_with("~/") ? "\"$HOME\"/" + shell_word(path.substr(2)) : shell_word(path);
}

}  // namespace

std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::vector<std::string> ssh_command(const LauncherConfig& launcher) {
  // ssh takes the first of several values: the first three are nobody's to change.
  std::vector<std::string> command = {"ssh", "-T", "-a", "-x"};
  const auto option = [&](const std::string& text) { command.insert(command.end(), {"-o", text}); };
  for (const auto* fixed : {"BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=no"}) option(fixed);
  for (const auto& text : launcher.options) option(text);
  for (const auto* usual :
       {"ConnectTimeout=20", "ServerAliveInterval=5", "ServerAliveCountMax=4", "ClearAllForwardings=yes"})
    option(usual);
  if (launcher.port > 0) command.insert(command.end(), {"-p", std::to_string(launcher.port)});
  if (!launcher.identity.empty()) {
    option("IdentitiesOnly=yes");
    command.insert(command.end(), {"-i", launcher.identity});
  }
  command.insert(command.end(),
                 {"--", launcher.ssh, "exec /bin/sh -c " + shell_word(tether_script(launcher))});
  return command;
}

std::string tether_script(const LauncherConfig& launcher) {
  std::string script;
  for (const auto& [name, value] : launcher.environment)
    script += fmt::format("export {}={}\n", name, shell_word(value));
  for (const auto& line : launcher.setup) {
    script += fmt::format("{{ {}\n}} || {{ echo {} >&2; exit 3; }}\n", line,
                          shell_word("this set-up line failed: " + line));
  }
  script += fmt::format("program={}\n", path_word(launcher.program));
  script +=
      "command -v \"$program\" >/dev/null 2>&1 || { echo \"there is no program $program\" >&2; exit 3; }\n";
  script += fmt::format("exec \"$program\" tether --folder {}", path_word(launcher.folder));
  return script;
}

/// A process there, as the launch sees it.
class SiteProcess final : public RunProcess {
 public:
  SiteProcess(std::shared_ptr<SiteLink> link, std::string name, std::filesystem::path log)
      : link_(std::move(link)), name_(std::move(name)), log_(std::move(log)) {}
  ~SiteProcess() override {
    if (running()) SiteProcess::signal(SIGKILL);
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] const std::filesystem::path& log() const override { return log_; }
  void signal(int number) override { link_->signal(name_, number); }
  [[nodiscard]] std::optional<int> poll() override { return link_->status_of(name_); }

 private:
  std::shared_ptr<SiteLink> link_;
  std::string name_;
  std::filesystem::path log_;
};

SiteLink::SiteLink(Options options)
    : options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Ends in, out, err;
  ssh_ = std::make_unique<Process>(Process::Options{.name = "ssh",
                                                    .command = ssh_command(options_.launcher),
                                                    .log = {},
                                                    .input = in.ends[0],
                                                    .output = out.ends[1],
                                                    .errors = err.ends[1]});
  input_ = in.take(1);
  output_ = out.take(0);
  errors_ = err.take(0);
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
  for (const int end : {input_, output_, errors_, wake_}) {
    if (end >= 0) close(end);
  }
}

SiteLink::State SiteLink::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}
std::string SiteLink::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}
int SiteLink::problem_status() const {
  const std::lock_guard lock(mutex_);
  return problem_status_;
}
SiteFacts SiteLink::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}
std::optional<std::uint16_t> SiteLink::port() const {
  const std::lock_guard lock(mutex_);
  return port_;
}
std::optional<std::uint16_t> SiteLink::await_port(RunProcess& coordinator,
                                                  const std::atomic<int>& interrupts) const {
  while (!port() && coordinator.running() && interrupts == 0) std::this_thread::sleep_for(20ms);
  return port();
}
std::string SiteLink::summary() const {
  const std::lock_guard lock(mutex_);
  return summary_;
}
bool SiteLink::begun() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

std::unique_ptr<RunProcess> SiteLink::start(const SiteStart& start) {
  {
    const std::lock_guard lock(mutex_);
    auto& remote = processes_[start.name];
    remote = {start.log, std::nullopt};
    if (state_ == State::failed) remote.status = problem_status_;
  }
  say({{"do", "start"},
       {"name", start.name},
       {"folder", start.folder},
       {"arguments", start.arguments},
       {"environment", start.environment},
       {"coordinator", start.coordinates}});
  return std::make_unique<SiteProcess>(shared_from_this(), start.name, start.log);
}

void SiteLink::say(const Message& message) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::connecting) return starts_.push_back(message);
    if (state_ == State::failed) return;
    unsent_ += line_of(message);
  }
  const std::uint64_t one = 1;
  static_cast<void>(write(wake_, &one, sizeof one));
}

void SiteLink::signal(const std::string& name, int number) {
  say({{"do", "signal"}, {"name", name}, {"number", number}});
}

std::optional<int> SiteLink::status_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = processes_.find(name);
  return found == processes_.end() ? std::optional(exit_status(ErrorKind::data)) : found->second.status;
}

// ---- the thread ----

void SiteLink::follow() {
  sigset_t pipe;  // ssh that has ended is noticed by what a write returns
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  auto alive_at = Clock::now();
  std::optional<Clock::time_point> kill_at;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_ && !kill_at) kill_at = Clock::now() + farewell;
      if (state_ == State::ready && Clock::now() >= alive_at) {
        unsent_ += line_of({{"do", "alive"}});
        alive_at = Clock::now() + alive_every;
      }
    }
    wait_for_bytes();
    take_errors();
    take_output();
    if (closing_ && input_ >= 0 && all_sent()) close(std::exchange(input_, -1));
    if (kill_at && Clock::now() > *kill_at) ssh_->signal(SIGKILL);
    if (!ssh_->running()) break;
    if (state() == State::failed) {  // nothing of it is of use any more
      if (input_ >= 0) close(std::exchange(input_, -1));
      if (!kill_at) kill_at = Clock::now() + farewell;
    }
  }
  take_errors();
  take_output();
  const int status = *ssh_->poll();
  // The shell there and the program have a reason of their own; whatever ends it later is a lost connection.
  const bool lost = status == ssh_failed || status > 128 || state() == State::ready;
  const auto how = lost ? std::string("the connection ended") : fmt::format("ended with status {}", status);
  lose(last_error_.empty() ? how : last_error_,
       lost ? exit_status(ErrorKind::network) : exit_status(ErrorKind::data));
}

bool SiteLink::all_sent() const {
  const std::lock_guard lock(mutex_);
  return unsent_.empty();
}

void SiteLink::wait_for_bytes() {
  const bool sending = input_ >= 0 && !all_sent();
  pollfd waiting[] = {{wake_, POLLIN, 0},
                      {output_, POLLIN, 0},
                      {errors_, POLLIN, 0},
                      {input_, static_cast<short>(sending ? POLLOUT : 0), 0}};
  poll(waiting, input_ >= 0 ? 4 : 3, 200);
  std::uint64_t count = 0;
  static_cast<void>(read(wake_, &count, sizeof count));
  const std::lock_guard lock(mutex_);
  while (!unsent_.empty() && input_ >= 0) {
    const auto n = write(input_, unsent_.data(), unsent_.size());
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {  // ssh has ended
      unsent_.clear();
      close(std::exchange(input_, -1));
      break;
    }
    unsent_.erase(0, static_cast<std::size_t>(n));
  }
}

/// ssh's own words, the shell's and the set-up lines'.
void SiteLink::take_errors() {
  char bytes[4096];
  while (errors_ >= 0) {
    const auto n = read(errors_, bytes, sizeof bytes);
    if (n == 0) close(std::exchange(errors_, -1));
    if (n <= 0) break;
    error_lines_.add({bytes, static_cast<std::size_t>(n)});
  }
  while (const auto line = error_lines_.next()) {
    if (line->empty()) continue;
    options_.show(options_.site, *line);
    last_error_ = printable(*line);
  }
  if (error_lines_.pending() > sizeof bytes) static_cast<void>(error_lines_.rest());
}

void SiteLink::take_output() {
  char bytes[1 << 14];
  bool open = false;
  while (output_ >= 0) {
    const auto n = read(output_, bytes, sizeof bytes);
    if (n > 0) {
      said_.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = said_.next()) hear(*line);
      if (said_.pending() <= longest_message) continue;
      lose("it said a line of more than 4 MiB", exit_status(ErrorKind::network));
      ssh_->signal(SIGKILL);
    }
    open = n < 0 && (errno == EAGAIN || errno == EINTR);
    break;
  }
  // Nothing more will come; ssh that lingers would make this loop spin.
  if (!open && output_ >= 0) close(std::exchange(output_, -1));
}

void SiteLink::hear(const std::string& line) {
  const auto message = message_of(line);
  if (!message) {  // a login's greeting
    if (!line.empty()) options_.show(options_.site, line);
    return;
  }
  if (message->contains("tether")) welcome(*message);
  if (flag_in(*message, "ready")) became_ready();
  if (message->contains("failed")) lose(printable(text_in(*message, "failed")), exit_status(ErrorKind::data));
  if (const auto name = text_in(*message, "output"); !name.empty()) output(name, text_in(*message, "text"));
  const std::lock_guard lock(mutex_);
  if (message->contains("begun")) begun_ = true;
  if (message->contains("summary")) summary_ = text_in(*message, "summary");
  if (const auto port = number_in(*message, "port", 0); port > 0 && port < 65536)
    port_ = static_cast<std::uint16_t>(port);
  const auto ended = processes_.find(text_in(*message, "ended"));
  const auto status = number_in(*message, "status", exit_status(ErrorKind::data));
  if (ended != processes_.end() && status >= 0 && status < 256)
    ended->second.status = static_cast<int>(status);
}

void SiteLink::welcome(const Message& hello) {
  const auto version = number_in(hello, "tether", 0);
  if (version != tether_protocol)
    return lose(
        fmt::format("its isthmus ({}) speaks version {} of the launch's protocol; expected {}: the same "
                    "build at all sites",
                    printable(text_in(hello, "build")), version, tether_protocol),
        exit_status(ErrorKind::data));
  SiteFacts facts{.folder = text_in(hello, "folder"),
                  .cores = std::max<std::int64_t>(1, number_in(hello, "cores", 1)),
                  .gpus = texts_in(hello, "gpus"),
                  .build = text_in(hello, "build")};
  std::string text;
  try {
    if (!facts.folder.is_absolute()) throw Error(ErrorKind::network, "it names no folder");
    for (const auto& file : options_.files(facts))
      text += line_of({{"do", "write"}, {"path", file.path}, {"text", file.text}, {"secret", file.secret}});
  } catch (const Error& error) {
    return lose(error.what(), error.exit_status());
  }
  const std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
  unsent_ += text + line_of({{"do", "ready"}});
}

void SiteLink::became_ready() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::connecting) return;
  state_ = State::ready;
  for (const auto& message : std::exchange(starts_, {})) unsent_ += line_of(message);
}

void SiteLink::output(const std::string& name, const std::string& text) {
  std::filesystem::path log;
  {
    const std::lock_guard lock(mutex_);
    const auto found = processes_.find(name);
    if (found == processes_.end()) return;
    log = found->second.log;
  }
  if (!log.empty()) std::ofstream(log, std::ios::app) << text << "\n";
  options_.show(name, text);
}

/// For good: whoever wants that site again makes another link.
void SiteLink::lose(std::string why, int status) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::failed) return;
  state_ = State::failed;
  problem_ = fmt::format("{} ({}): {}", options_.site, options_.launcher.ssh, why);
  problem_status_ = status;
  for (auto& [name, remote] : processes_) {
    if (!remote.status) remote.status = status;
  }
}

}  // namespace isthmus::app
