#include "launch/detach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "launch/processes/pipe.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
#include "run/process/machine.h"
#include "run/process/process.h"
#include "run/process/signals.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

fs::path log_in(const fs::path& folder) { return folder / "launch.log"; }
fs::path state_in(const fs::path& folder) { return folder / "launch.json"; }
fs::path seen_in(const fs::path& folder) { return folder / "launch.seen"; }

/// Start time of a process in kernel ticks, which identifies it together with its process id. Empty if there
/// is no such process, or only a zombie.
std::string begin_of(pid_t pid) {
  const auto text = text_if_there(fmt::format("/proc/{}/stat", pid));
  const auto end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream rest(text.substr(end_of_name + 1));
  constexpr int field = 20;  // the 22nd in all
  std::string word;
  for (int i = 0; i < field; ++i) {
    rest >> word;
    if (i == 0 && word == "Z") return {};
  }
  return word;
}

struct State {
  std::string host, begin;
  pid_t pid = 0;
  std::optional<int> exit_status;
  [[nodiscard]] bool alive() const { return pid > 0 && begin_of(pid) == begin; }
};

std::optional<State> find_state(const fs::path& folder) {
  const auto json = nlohmann::json::parse(text_if_there(state_in(folder)), nullptr, false);
  State state;
  try {
    json.at("host").get_to(state.host);
    json.at("begin").get_to(state.begin);
    json.at("pid").get_to(state.pid);
    if (json.contains("exit_status")) state.exit_status = json.at("exit_status").get<int>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return state;
}

State detached_state(const fs::path& folder) {
  const auto state = find_state(folder);
  if (!state)
    config_error(
        fmt::format("{} has no detached launch ({} does not describe one); "
                    "expected the folder of a run of `isthmus launch --detach`",
                    folder.string(), state_in(folder).string()));
  if (state->host != machine_name())
    config_error(
        fmt::format("the launch of {} runs on {}; attach to it there", folder.string(), state->host));
  return *state;
}

void write_state(const fs::path& folder, nlohmann::json state) {
  state["host"] = machine_name();
  state["pid"] = getpid();
  state["begin"] = begin_of(getpid());
  replace_file(state_in(folder), state.dump() + "\n");
}

[[noreturn]] void become_detached(std::vector<std::string>& command, int fd) {
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::signal(SIGHUP, SIG_IGN);  // children inherit it
  fcntl(fd, F_SETFD, 0);
  const auto arguments = exec_arguments(command);
  execv(arguments[0], arguments.data());
  _exit(127);
}

/// Reads two lines from the launch: its folder, and "started" once all processes are started. Fewer if it
/// ends before that.
std::vector<std::string> lines_from(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t n = 0;
       text.find("\nstarted\n") == std::string::npos && (n = read(fd, bytes, sizeof bytes)) != 0;) {
    if (n > 0) text.append(bytes, static_cast<std::size_t>(n));
  }
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int wait_for_status(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void print_attach_hint(const fs::path& folder) {
  fmt::print(
      "to look at it:  isthmus attach {0}    (Ctrl-C there leaves it running)\n"
      "to stop it:     isthmus attach --stop {0}\n",
      folder.string());
}

}  // namespace

void check_no_launch(const fs::path& folder, bool lost) {
  const auto state = find_state(folder);
  if (state && state->host == machine_name() && state->alive())
    config_error(
        fmt::format("the run in {0} is in progress under a detached launch (process {1}); look at it with "
                    "isthmus attach {0}, or stop it with isthmus attach --stop {0}",
                    folder.string(), state->pid));
  if (lost)
    config_error(fmt::format(
        "the run in {0} is in progress: its launch was lost, but its processes continue; take the "
        "run over with isthmus launch --resume {0}, or stop it with isthmus ctl stop {0}",
        folder.string()));
}

int run_detached(std::vector<std::string> command, bool json) {
  Pipe pipe;
  command.insert(command.end(), {"--started-fd", std::to_string(pipe.writer())});
  const auto pid = fork();
  if (pid == 0) become_detached(command, pipe.writer());
  if (pid < 0) data_error(std::string("cannot start a process: ") + std::strerror(errno));
  pipe.close_writer();
  const SignalThread signals([pid](int, int) { kill(pid, SIGINT); });  // until all is started
  const auto lines = lines_from(pipe.reader());
  if (lines.size() < 2) {
    const int status = wait_for_status(pid);
    if (!lines.empty())
      say_to(stderr,
             fmt::format("the end of {}:\n{}", log_in(lines[0]).string(), tail_of(log_in(lines[0]), 20)));
    return status;
  }
  const fs::path folder = lines[0];
  if (json) {
    JsonOutput(true).print({{"run", folder.filename().string()},
                            {"folder", folder.string()},
                            {"pid", pid},
                            {"log", log_in(folder).string()}});
    return 0;
  }
  fmt::print("{} continues in the background (process {}); its log is {}\n", folder.filename().string(), pid,
             log_in(folder).string());
  print_attach_hint(folder);
  return 0;
}

void begin_log(const fs::path& folder, int started_fd) {
  const auto full = fs::absolute(folder).lexically_normal();
  const auto file = log_in(full);
  const int log = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (log < 0 || null < 0) data_error("cannot write " + file.string() + ": " + std::strerror(errno));
  write_state(full, nlohmann::json::object());
  std::fflush(stdout);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(null);
  close(log);
  const auto line = full.string() + "\n";
  static_cast<void>(!write(started_fd, line.data(), line.size()));  // the reader may have gone
}

void report_started(int started_fd) {
  if (started_fd < 0) return;
  const std::string line = "started\n";
  static_cast<void>(!write(started_fd, line.data(), line.size()));
  close(started_fd);
}

void record_end(const fs::path& folder, int status) {
  try {
    write_state(folder, {{"exit_status", status}});
  } catch (const Error& error) {  // a full disk must not change the exit status
    say_error(error.what());
  }
}

namespace {

class Attachment {
 public:
  explicit Attachment(const AttachRequest& request)
      : request_(request), folder_(fs::absolute(request.folder).lexically_normal()) {
    if (!folder_.has_filename()) folder_ = folder_.parent_path();
    state_ = detached_state(folder_);
    const auto size = size_of_log();
    const auto seen = request.all ? std::string() : text_if_there(seen_in(folder_));
    at_ = std::min(size, static_cast<std::uintmax_t>(std::strtoull(seen.c_str(), nullptr, 10)));
  }

  int run() {
    std::atomic<bool> leave = false;
    const SignalThread signals([&](int, int) { leave = true; });
    if (request_.stop && state_.alive()) kill(state_.pid, SIGINT);
    while (!leave && state_.alive()) {
      if (!show()) return exit_status(ErrorKind::data);  // standard output is closed
      std::this_thread::sleep_for(100ms);
      state_ = detached_state(folder_);
    }
    show();
    remember();
    if (leave && state_.alive()) {
      fmt::print("\n{} continues\n", folder_.filename().string());
      print_attach_hint(folder_);
      return 0;
    }
    return ended();
  }

 private:
  [[nodiscard]] std::uintmax_t size_of_log() const {
    std::error_code none;
    const auto size = fs::file_size(log_in(folder_), none);
    return none ? 0 : size;
  }

  /// Prints what is new in the log. Returns false if it cannot be printed.
  bool show() {
    std::ifstream log(log_in(folder_), std::ios::binary);
    log.seekg(static_cast<std::streamoff>(at_));
    char bytes[1 << 14];
    while (log.read(bytes, sizeof bytes) || log.gcount() > 0) {
      const auto n = static_cast<std::size_t>(log.gcount());
      std::fwrite(bytes, 1, n, stdout);
      at_ += n;
    }
    return std::fflush(stdout) == 0;
  }

  /// Stores the position for the next attach. Ignores errors such as a full disk.
  void remember() const { std::ofstream(seen_in(folder_), std::ios::binary) << at_ << "\n"; }

  int ended() {
    if (!state_.exit_status) {
      say_error(
          fmt::format("the launch of {0} was killed, and its processes may still train; to take them over or "
                      "start them again: isthmus launch --resume {1}; to stop the run: isthmus ctl stop {1}",
                      folder_.filename().string(), folder_.string()));
      return exit_status(ErrorKind::network);
    }
    const int status = *state_.exit_status;
    fmt::print("{} has ended with exit status {}\n", folder_.filename().string(), status);
    return request_.stop && status == stopped_exit ? 0 : status;
  }

  AttachRequest request_;
  fs::path folder_;
  State state_;
  std::uintmax_t at_ = 0;
};

}  // namespace

int run_attach(const AttachRequest& request) { return Attachment(request).run(); }

}  // namespace isthmus::app
