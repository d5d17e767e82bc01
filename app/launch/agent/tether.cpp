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
#include "launch/processes/pipe.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"
#include "run/process/process.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

/// An agent keeps its lock until it has ended its workers.
constexpr auto agent_timeout = 90s;

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
  Pipe started;
  auto command = request.program;
  add_tether_words(command, request.folder.string(), request.agent);
  command.insert(command.end(), {"--started-fd", std::to_string(started.writer())});
  const auto arguments = exec_arguments(command);
  const auto log = request.place().log().string();
  const auto pid = fork();
  if (pid == 0) become_agent(arguments, log.c_str(), started.writer());
  started.close_writer();
  if (pid < 0) data_error(std::string("cannot start a process: ") + std::strerror(errno));
  if (started.read_all().empty())
    data_error("the site's agent could not be started; the end of " + log + ":\n" + tail_of(log, 3));
}

int connection_to_agent(const TetherRequest& request) {
  const auto until = Clock::now() + agent_timeout;
  for (;;) {
    if (const int fd = connect_to_agent(request.place()); fd >= 0) return fd;
    if (const int lock = lock_agent(request.place()); lock >= 0) {
      close(lock);
      start_agent(request);
    } else if (Clock::now() > until) {
      data_error(fmt::format("the agent of run {} at site {} neither answers nor ends", request.agent.run,
                             request.agent.site));
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
  for (const int fd : {STDOUT_FILENO, agent}) make_nonblocking(fd);
  bool is_shut = false;
  while (back.open()) {
    pollfd waiting[] = {there.input(), there.output(), back.input(), back.output()};
    if (poll(waiting, 4, -1) < 0) continue;
    if (waiting[0].revents != 0) there.take();
    if (waiting[1].revents != 0) there.give();
    if (waiting[2].revents != 0) back.take();
    if (waiting[3].revents != 0) back.give();
    if (!there.open() && !is_shut) is_shut = shutdown(agent, SHUT_WR) == 0 || errno == ENOTCONN;
  }
}

}  // namespace

void add_tether_words(std::vector<std::string>& command, const std::string& folder,
                      const AgentOptions& agent) {
  command.insert(command.end(),
                 {"tether", "--folder", folder, "--run", agent.run, "--site", agent.site, "--silence",
                  fmt::format("{}", agent.silence), "--grace", fmt::format("{}", agent.grace)});
}

int run_tether(TetherRequest request) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    check_name("--run", request.agent.run);
    check_name("--site", request.agent.site);
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
