#include "process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::app {
namespace {

/// Between fork and exec only calls that are safe after a fork of a threaded process.
[[noreturn]] void become(const std::vector<char*>& arguments, int log, const Process::Options& options,
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!options.standard_input) {
    if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  }
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
  }
  if (options.keep_fd >= 0) fcntl(options.keep_fd, F_SETFD, 0);
  execv(arguments[0], arguments.data());
  _exit(127);
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
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(arguments, log, options_, parent);
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

void Process::signal(int number) const {
  if (pid_ > 0 && !status_) kill(pid_, number);
}

std::optional<int> Process::poll() {
  int status = 0;
  if (!status_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return status_;
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
