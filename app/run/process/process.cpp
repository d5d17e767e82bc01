#include "run/process/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <string_view>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {
namespace {

/// Between fork and exec, makes only calls that are safe after a threaded process has forked.
[[noreturn]] void become(const std::vector<char*>& arguments, char* const* environment, int log,
                         const Process::Options& options, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);  // a SignalThread ignores it
  if (!options.standard_input) {
    if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  }
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  if (options.input >= 0) dup2(options.input, STDIN_FILENO);
  if (options.output >= 0) dup2(options.output, STDOUT_FILENO);
  if (options.errors >= 0) dup2(options.errors, STDERR_FILENO);
  if (options.keep_fd >= 0) fcntl(options.keep_fd, F_SETFD, 0);
  execvpe(arguments[0], arguments.data(), environment);
  _exit(127);
}

/// The environment of this process, with the variables in `own` replaced; `own` must outlive the result.
std::vector<char*> environment_with(std::vector<std::string>& own) {
  std::vector<char*> all;
  for (auto& variable : own) all.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const auto name = text.substr(0, text.find('=') + 1);
    if (!std::ranges::any_of(own, [&](const auto& other) { return other.starts_with(name); }))
      all.push_back(*variable);
  }
  all.push_back(nullptr);
  return all;
}

}  // namespace

Process::Process(Options options) : options_(std::move(options)) {
  int log = -1;
  if (!options_.log.empty()) {
    log = open(options_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0)
      throw Error(ErrorKind::data, "cannot write " + options_.log.string() + ": " + std::strerror(errno));
  }
  std::vector<char*> arguments;
  for (auto& word : options_.command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  auto environment = environment_with(options_.environment);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(arguments, environment.data(), log, options_, parent);
  if (log >= 0) close(log);
  if (pid_ < 0) throw Error(ErrorKind::data, "cannot start " + options_.name + ": " + std::strerror(errno));
}

Process::Process(Process&& other) noexcept
    : options_(std::move(other.options_)), pid_(std::exchange(other.pid_, -1)), status_(other.status_) {}

Process::~Process() {
  if (pid_ <= 0 || status_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::signal(int number) {
  if (pid_ > 0 && !status_) kill(pid_, number);
}

std::optional<int> Process::poll() {
  int status = 0;
  if (!status_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
}

void become_program(std::vector<std::string> command, const std::string& key) {
  std::vector<char*> arguments;
  for (auto& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  execvp(arguments.front(), arguments.data());
  throw Error(ErrorKind::config, key + " begins with '" + command.front() +
                                     "', which cannot be started: " + std::strerror(errno));
}

std::string tail_of(const std::filesystem::path& file, std::size_t lines) {
  std::ifstream in(file);
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back(line);
    if (last.size() > lines) last.pop_front();
  }
  std::string text;
  for (const auto& line : last) text += "    " + line + "\n";
  return text;
}

}  // namespace isthmus::app
