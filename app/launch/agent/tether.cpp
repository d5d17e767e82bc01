#include "launch/agent/tether.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"
#include "launch/agent/agent_messages.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"
#include "run/process/process.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

/// An agent keeps its lock until it has ended its workers.
constexpr auto patience_with_agents = 90s;

[[noreturn]] void become_agent(const std::vector<char*>& arguments, const char* log, int started_fd) {
  setsid();
  const int null = open("/dev/null", O_RDONLY);
  const int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (null < 0 || out < 0) _exit(127);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  close(null);
  close(out);
  fcntl(started_fd, F_SETFD, 0);
  execv(arguments[0], arguments.data());
  _exit(127);
}

/// Blocks until the agent listens or has ended; the agent of another launch may be running by then.
void start_agent(const TetherRequest& request) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::data, "cannot make a pipe");
  auto command = request.program;
  command.insert(command.end(),
                 {"tether", "--folder", request.folder.string(), "--run", request.run, "--site", request.site,
                  "--silence", fmt::format("{}", request.silence), "--grace",
                  fmt::format("{}", request.grace), "--started-fd", std::to_string(ends[1])});
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (auto& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const auto log = request.place().log().string();
  const auto pid = fork();
  if (pid == 0) become_agent(arguments, log.c_str(), ends[1]);
  close(ends[1]);
  std::string said;
  char bytes[64];
  for (ssize_t n = 0; (n = read(ends[0], bytes, sizeof bytes)) > 0 || (n < 0 && errno == EINTR);) {
    if (n > 0) said.append(bytes, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  if (pid < 0) throw Error(ErrorKind::data, std::string("cannot start a process: ") + std::strerror(errno));
  if (said.empty())
    throw Error(ErrorKind::data,
                "the site's agent could not be started; the end of " + log + ":\n" + tail_of(log, 3));
}

int connection_to_agent(const TetherRequest& request) {
  const auto until = Clock::now() + patience_with_agents;
  for (;;) {
    if (const int fd = connect_to_agent(request.place()); fd >= 0) return fd;
    if (const int lock = lock_agent(request.place()); lock >= 0) {
      close(lock);
      start_agent(request);
    } else if (Clock::now() > until) {
      throw Error(ErrorKind::data, fmt::format("the agent of run {} at site {} neither answers nor ends",
                                               request.run, request.site));
    }
    std::this_thread::sleep_for(50ms);
  }
}

/// Copies bytes in one direction.
class Pump {
 public:
  Pump(int from, int to) : from_(from), to_(to) {}
  [[nodiscard]] pollfd input() const { return {open_ && held_.empty() ? from_ : -1, POLLIN, 0}; }
  [[nodiscard]] pollfd output() const { return {held_.empty() ? -1 : to_, POLLOUT, 0}; }
  /// False once the last byte is written.
  [[nodiscard]] bool open() const { return open_ || !held_.empty(); }
  void take() {
    char bytes[1 << 16];
    const auto n = read(from_, bytes, sizeof bytes);
    if (n > 0) held_.assign(bytes, static_cast<std::size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) open_ = false;
  }
  void give() {
    const auto n = write(to_, held_.data(), held_.size());
    if (n >= 0) held_.erase(0, static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      held_.clear();
      open_ = false;
    }
  }

 private:
  int from_, to_;
  bool open_ = true;
  std::string held_;
};

void carry_bytes(int agent) {
  Pump there(STDIN_FILENO, agent), back(agent, STDOUT_FILENO);
  for (const int fd : {STDOUT_FILENO, agent}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  bool told = false;
  while (back.open()) {
    pollfd waiting[] = {there.input(), there.output(), back.input(), back.output()};
    if (poll(waiting, 4, -1) < 0) continue;
    if (waiting[0].revents != 0) there.take();
    if (waiting[1].revents != 0) there.give();
    if (waiting[2].revents != 0) back.take();
    if (waiting[3].revents != 0) back.give();
    if (!there.open() && !told) told = shutdown(agent, SHUT_WR) == 0 || errno == ENOTCONN;
  }
}

}  // namespace

int run_tether(TetherRequest request) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    check_name("--run", request.run);
    check_name("--site", request.site);
    fs::create_directories(request.folder);
    request.folder = fs::canonical(request.folder);
    carry_bytes(connection_to_agent(request));
    return 0;
  } catch (const std::exception& error) {
    const auto line = line_of({{"failed", error.what()}});
    static_cast<void>(!write(STDOUT_FILENO, line.data(), line.size()));
    return 3;
  }
}

}  // namespace isthmus::app
