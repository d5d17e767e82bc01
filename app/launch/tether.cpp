#include "launch/tether.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "launch/tether_messages.h"
#include "run/machine.h"
#include "run/process.h"
#include "run/run_folder.h"
#include "run/signals.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto tick = 100ms;
/// Another life of a worker, whose launch was lost and which has not noticed yet, holds its folder.
constexpr auto patience = 60s;
constexpr std::size_t most_unsent = std::size_t{1} << 20;
constexpr std::size_t longest_line = 4096;

/// To the launch. A connection that stands still must hold up neither workers nor the watch over it: what
/// does not fit is left out.
class Speaker {
 public:
  Speaker() { fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK); }
  void say(const Message& message) {
    unsent_ += line_of(message);
    flush();
  }
  void output(const std::string& name, const std::string& text) {
    if (unsent_.size() > most_unsent) {
      ++left_out_;
      return;
    }
    if (left_out_ > 0)
      say({{"output", name},
           {"text", fmt::format("({} lines are left out here)", std::exchange(left_out_, 0))}});
    say({{"output", name}, {"text", text}});
  }
  void flush() {
    while (!unsent_.empty()) {
      const auto n = write(STDOUT_FILENO, unsent_.data(), unsent_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      unsent_.erase(0, static_cast<std::size_t>(n));
    }
  }
  /// At the end: for as long as somebody may still read.
  void finish() {
    for (int tries = 0; tries < 20 && !unsent_.empty(); ++tries) {
      pollfd writable{STDOUT_FILENO, POLLOUT, 0};
      poll(&writable, 1, 100);
      flush();
    }
  }

 private:
  std::string unsent_;
  std::uint64_t left_out_ = 0;
};

/// A worker or the coordinator. Its output goes to a file, which nothing can hold up, and is read there.
struct Child {
  Process::Options options;
  fs::path metrics;
  std::uintmax_t metrics_before = 0;
  Clock::time_point wait_until;
  bool coordinates = false;
  int port = -1;  ///< where a coordinator says its port
  bool begun = false;
  std::unique_ptr<Process> process;
  int log = -1;
  LineBuffer unread;

  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (log >= 0) close(log);
    if (port >= 0) close(port);
  }
};

std::uintmax_t size_of(const fs::path& file) {
  std::error_code no_file;
  const auto size = fs::file_size(file, no_file);
  return no_file ? 0 : size;
}

/// Below the folder, and nowhere else.
fs::path inside(const fs::path& folder, const std::string& path) {
  const auto relative = fs::path(path).lexically_normal();
  if (path.empty() || relative.is_absolute() || relative.begin()->string() == "..")
    throw Error(ErrorKind::data, "'" + path + "' is not in the folder of runs");
  return folder / relative;
}

class Tether {
 public:
  explicit Tether(const TetherRequest& request) : request_(request) {}

  int run() {
    std::signal(SIGHUP, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    std::atomic<bool> told_to_end = false;
    const SignalThread signals([&](int, int) { told_to_end = true; });
    try {
      fs::create_directories(request_.folder);
      request_.folder = fs::canonical(request_.folder);
      speaker_.say({{"tether", tether_protocol},
                    {"folder", request_.folder.string()},
                    {"cores", cores_here()},
                    {"gpus", gpus_here()},
                    {"build", request_.build}});
      while (!gone_ && !told_to_end &&
             Clock::now() - heard_ < std::chrono::duration<double>(request_.silence)) {
        listen();
        attend();
      }
    } catch (const std::exception& error) {
      speaker_.say({{"failed", error.what()}});
      end_all();
      return 3;
    }
    end_all();
    return 0;
  }

 private:
  void listen() {
    pollfd readable{STDIN_FILENO, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(tick.count())) <= 0) return;
    char bytes[1 << 16];
    const auto n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n <= 0) {
      gone_ = n == 0 || errno != EINTR;
      return;
    }
    heard_ = Clock::now();
    input_.add({bytes, static_cast<std::size_t>(n)});
    while (const auto line = input_.next()) {
      if (const auto message = message_of(*line)) obey(*message);
    }
    if (input_.pending() > longest_message) throw Error(ErrorKind::network, "a message of more than 4 MiB");
  }

  void obey(const Message& message) {
    const auto what = text_in(message, "do");
    if (what == "write") write_file(message);
    if (what == "ready") speaker_.say({{"ready", true}});
    if (what == "start") start(message);
    if (what == "signal") pass_on(message);
  }

  /// A certificate is readable to nobody else, not even for a moment.
  void write_file(const Message& message) {
    const auto file = inside(request_.folder, text_in(message, "path"));
    fs::create_directories(file.parent_path());
    const bool secret = flag_in(message, "secret");
    if (secret) fs::permissions(file.parent_path(), fs::perms::owner_all);
    const auto mask = umask(secret ? 0177 : 0022);
    try {
      replace_file(file, text_in(message, "text"));
    } catch (...) {
      umask(mask);
      throw;
    }
    umask(mask);
  }

  void start(const Message& message) {
    const auto name = text_in(message, "name");
    const auto folder = inside(request_.folder, text_in(message, "folder"));
    auto child = std::make_unique<Child>();
    const bool coordinates = child->coordinates = flag_in(message, "coordinator");
    child->options = {.name = name,
                      .command = texts_in(message, "arguments"),
                      .log = folder / (coordinates ? "coordinator.log" : "worker.log"),
                      .environment = texts_in(message, "environment")};
    child->options.command.insert(child->options.command.begin(), request_.program.begin(),
                                  request_.program.end());
    if (coordinates) announce(*child);
    child->metrics = folder / "metrics.jsonl";
    child->wait_until = Clock::now() + (coordinates ? 0s : patience);
    fs::create_directories(folder);
    children_[name] = std::move(child);
  }

  void announce(Child& child) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw Error(ErrorKind::data, "cannot make a pipe");
    child.port = ends[0];
    child.options.keep_fd = ends[1];
    child.options.command.insert(child.options.command.end(), {"--announce-fd", std::to_string(ends[1])});
  }

  void pass_on(const Message& message) {
    const auto found = children_.find(text_in(message, "name"));
    const auto number = number_in(message, "number", 0);
    if (found == children_.end() || number < 1 || number > 64) return;
    if (found->second->process) {
      found->second->process->signal(static_cast<int>(number));
    } else {  // it never was
      end_of(*found->second, 128 + static_cast<int>(number));
      children_.erase(found);
    }
  }

  void attend() {
    for (auto child = children_.begin(); child != children_.end();) {
      const bool over = attend(*child->second);
      child = over ? children_.erase(child) : std::next(child);
    }
    speaker_.flush();
  }

  /// True when it has ended and all was said.
  bool attend(Child& child) {
    if (!child.process) return !begin(child);
    const auto status = child.process->poll();  // before its output is read: what is there then is all
    if (child.port >= 0) read_port(child);
    read_log(child);
    const auto size = size_of(child.metrics);
    if (!child.begun && size > 0 && size != child.metrics_before) {
      child.begun = true;
      speaker_.say({{"begun", child.options.name}});
    }
    if (!status) return false;
    if (auto rest = child.unread.rest(); !rest.empty()) speaker_.output(child.options.name, rest);
    if (child.coordinates && *status == 0) say_summary(child.metrics.parent_path() / "summary.json");
    end_of(child, *status);
    return true;
  }

  /// False where it could not be started, and its end is said.
  bool begin(Child& child) {
    if (!is_free(child.options.log.parent_path()) && Clock::now() < child.wait_until) return true;
    try {
      child.metrics_before = size_of(child.metrics);
      const auto read_from = size_of(child.options.log);
      child.process = std::make_unique<Process>(child.options);
      child.log = open(child.options.log.c_str(), O_RDONLY | O_CLOEXEC);
      if (child.log >= 0) lseek(child.log, static_cast<off_t>(read_from), SEEK_SET);
    } catch (const Error& error) {
      speaker_.output(child.options.name, error.what());
      end_of(child, error.exit_status());
    }
    if (const int writer = std::exchange(child.options.keep_fd, -1); writer >= 0) close(writer);
    return child.process != nullptr;
  }

  static bool is_free(const fs::path& folder) {
    try {
      const FolderLock nobody(folder);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void say_summary(const fs::path& file) {
    if (size_of(file) == 0 || size_of(file) > longest_message / 2) return;
    speaker_.say({{"summary", text_if_there(file, longest_message)}});
  }

  void end_of(const Child& child, int status) {
    speaker_.say({{"ended", child.options.name}, {"status", status}});
  }

  void read_port(Child& child) {
    char text[16];
    const auto n = read(child.port, text, sizeof text - 1);
    if (n < 0) return;  // not yet
    text[n] = '\0';
    if (n > 0) speaker_.say({{"port", std::atoi(text)}});
    close(std::exchange(child.port, -1));
  }

  void read_log(Child& child) {
    char bytes[1 << 14];
    for (ssize_t n = 0; (n = read(child.log, bytes, sizeof bytes)) > 0;) {
      child.unread.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = child.unread.next())
        speaker_.output(child.options.name, line->substr(0, longest_line));
      if (child.unread.pending() > longest_line) speaker_.output(child.options.name, child.unread.rest());
    }
  }

  /// Asked first, so that a worker may say goodbye to the run, and killed then. A coordinator that is asked
  /// stops the run, which another one may take up.
  void end_all() {
    for (auto& [name, child] : children_) {
      if (child->process) child->process->signal(child->coordinates ? SIGKILL : SIGTERM);
    }
    const auto until = Clock::now() + std::chrono::duration<double>(request_.grace);
    while (Clock::now() < until) {
      attend();
      std::erase_if(children_, [](const auto& child) { return !child.second->process; });
      if (children_.empty()) break;
      std::this_thread::sleep_for(tick);
    }
    children_.clear();  // kills
    speaker_.finish();
  }

  TetherRequest request_;
  Speaker speaker_;
  LineBuffer input_;
  bool gone_ = false;
  Clock::time_point heard_ = Clock::now();
  std::map<std::string, std::unique_ptr<Child>> children_;
};

}  // namespace

int run_tether(const TetherRequest& request) { return Tether(request).run(); }

}  // namespace isthmus::app
