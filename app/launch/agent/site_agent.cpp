#include "launch/agent/site_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text_file.h"
#include "launch/agent/agent_messages.h"
#include "launch/processes/restarts.h"
#include "run/process/machine.h"
#include "run/process/process.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto tick = 100ms;
/// Wait for an earlier process of the worker, which may still hold its folder.
constexpr auto patience = 60s;
/// An agent ends if no launch connects within this time.
constexpr auto patience_for_the_first = 30s;
constexpr std::size_t max_unsent = std::size_t{1} << 20;
constexpr std::size_t longest_line = 4096;
/// A process may write output while no launch is connected; at most this much of its end is sent later.
constexpr off_t max_replayed = off_t{1} << 18;

/// Connection to a launch. A launch that does not read must not delay the workers or their supervision:
/// output lines that do not fit are dropped.
class AgentConnection {
 public:
  explicit AgentConnection(int fd) : fd_(fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
  ~AgentConnection() { close(fd_); }
  AgentConnection(const AgentConnection&) = delete;
  AgentConnection& operator=(const AgentConnection&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  void say(const Message& message) {
    unsent_ += line_of(message);
    flush();
  }
  void output(const std::string& name, const std::string& text) {
    if (unsent_.size() > max_unsent) {
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
      const auto n = send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      unsent_.erase(0, static_cast<std::size_t>(n));
    }
  }
  /// Sends the rest at the end, as long as the launch may still read.
  void finish() {
    for (int tries = 0; tries < 20 && !unsent_.empty(); ++tries) {
      pollfd writable{fd_, POLLOUT, 0};
      poll(&writable, 1, 100);
      flush();
    }
  }
  /// Returns false when the launch has closed the connection.
  [[nodiscard]] bool receive() {
    char bytes[1 << 16];
    const auto n = read(fd_, bytes, sizeof bytes);
    if (n > 0) input_.add({bytes, static_cast<std::size_t>(n)});
    return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
  }
  [[nodiscard]] LineBuffer& input() { return input_; }

 private:
  int fd_;
  std::string unsent_;
  std::uint64_t left_out_ = 0;
  LineBuffer input_;
};

/// A worker or the coordinator. Its output goes to a file, so that nothing can block it, and is read from
/// there.
struct AgentChild {
  Process::Options options;
  std::vector<std::string> again;  ///< arguments added when the process is restarted
  fs::path metrics;
  std::uintmax_t metrics_before = 0;
  std::int64_t life = 0;  ///< number of this start, counted by the launch
  Clock::time_point wait_until;
  bool coordinates = false;
  int port = -1;  ///< descriptor on which the coordinator reports its port
  bool begun = false;
  bool killed = false;    ///< by a launch
  bool said_end = false;  ///< reported to the connected launch
  bool said_begun = false;
  std::optional<int> status;
  std::unique_ptr<Process> process;
  int log = -1;
  LineBuffer unread;

  AgentChild() = default;
  AgentChild(const AgentChild&) = delete;
  AgentChild& operator=(const AgentChild&) = delete;
  ~AgentChild() {
    if (log >= 0) close(log);
    if (port >= 0) close(port);
    if (options.keep_fd >= 0) close(options.keep_fd);
  }
  [[nodiscard]] bool running() const { return !status; }
  [[nodiscard]] fs::path folder() const { return metrics.parent_path(); }
  [[nodiscard]] bool run_goes_on() const { return may_be_there(folder() / "coordinator.state"); }
};

std::uintmax_t bytes_in(const fs::path& file) {
  std::error_code no_file;
  const auto size = fs::file_size(file, no_file);
  return no_file ? 0 : size;
}

/// A path below the folder. Throws Error(data) for any other.
fs::path inside(const fs::path& folder, const std::string& path) {
  const auto relative = fs::path(path).lexically_normal();
  if (path.empty() || relative.is_absolute() || relative.begin()->string() == "..")
    throw Error(ErrorKind::data, "'" + path + "' is not in the folder of runs");
  return folder / relative;
}

bool is_free(const fs::path& folder) {
  try {
    const FolderLock nobody(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

class SiteAgent {
 public:
  explicit SiteAgent(const TetherRequest& request) : request_(request) {}

  int run() {
    std::signal(SIGHUP, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    std::atomic<bool> told_to_end = false;
    const SignalThread signals([&](int, int) { told_to_end = true; });
    if (lock_agent(request_.place()) < 0) return tell_starter();  // the lock is kept to the end
    listener_ = listen_as_agent(request_.place());
    static_cast<void>(tell_starter());
    while (!told_to_end && !is_over()) {
      wait();
      attend();
    }
    unlink_agent(request_.place());
    if (!leaving_ && std::exchange(connected_, false))
      connection_.reset();  // the launch must not mistake the following ends for failures
    end_all();
    // Keep the connection open: the launch waits until the end of this process closes it.
    static_cast<void>(connection_.release());
    return 0;
  }

 private:
  int tell_starter() const {
    static_cast<void>(!write(request_.started_fd, "ok\n", 3));
    close(request_.started_fd);
    return 0;
  }

  [[nodiscard]] bool is_over() const {
    if (leaving_) return true;
    const auto silent = Clock::now() - heard_;
    if (silent > std::chrono::duration<double>(request_.silence)) return true;
    return children_.empty() && !connected_ && (had_connection_ || silent > patience_for_the_first);
  }

  // ---- a launch ----

  void wait() {
    pollfd waiting[] = {{listener_, POLLIN, 0}, {connected_ ? connection_->fd() : -1, POLLIN, 0}};
    if (poll(waiting, 2, static_cast<int>(tick.count())) <= 0) return;
    if (waiting[1].revents != 0) listen_to_launch();
    if (waiting[0].revents != 0) welcome();
  }

  /// The newest launch replaces the connected one.
  void welcome() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (connected_) {
      connection_->say({{"replaced", true}});
      connection_->finish();
    }
    connection_ = std::make_unique<AgentConnection>(fd);
    connected_ = had_connection_ = true;
    heard_ = Clock::now();
    Message hello = {{"tether", tether_protocol},
                     {"folder", request_.folder.string()},
                     {"cores", cores_here()},
                     {"gpus", gpus_here()},
                     {"build", request_.build},
                     {"processes", Message::array()},
                     {"run_goes_on", may_be_there(request_.folder / request_.run / "coordinator.state")}};
    for (auto& [name, child] : children_) {
      Message one = {{"name", name}, {"life", child->life}};
      if (child->status) one["status"] = *child->status;
      hello["processes"].push_back(std::move(one));
      child->said_end = child->said_begun = false;
      skip_what_was_missed(*child);
    }
    if (port_ > 0) hello["port"] = port_;
    connection_->say(hello);
    for (const auto& [name, child] : children_) {
      if (child->coordinates && child->status == 0) say_summary(child->folder() / "summary.json");
    }
  }

  void skip_what_was_missed(AgentChild& child) const {
    if (child.log < 0) return;
    const auto at = lseek(child.log, 0, SEEK_CUR);
    const auto end = static_cast<off_t>(bytes_in(child.options.log));
    if (end - at <= max_replayed) return;
    connection_->output(child.options.name, fmt::format("({} bytes are left out here; {} has them)",
                                                        end - at - max_replayed, child.options.log.string()));
    lseek(child.log, end - max_replayed, SEEK_SET);
    static_cast<void>(child.unread.rest());
  }

  void listen_to_launch() {
    if (!connection_->receive()) {
      connected_ = false;
      if (!children_.empty())
        connection_.reset();  // without children this process ends, which closes the connection
      return;
    }
    heard_ = Clock::now();
    while (const auto line = connection_->input().next()) {
      if (const auto message = message_of(*line)) obey(*message);
    }
    if (connection_->input().pending() <= longest_message) return;
    connection_->say({{"failed", "a message of more than 4 MiB"}});
    connection_.reset();
    connected_ = false;
  }

  void obey(const Message& message) {
    const auto what = text_in(message, "do");
    try {
      if (what == "write") write_file(message);
      if (what == "ready") connection_->say({{"ready", true}});
      if (what == "start") start(message);
      if (what == "signal") pass_on(message);
      if (what == "leave") leaving_ = true;
    } catch (const std::exception& error) {  // running processes continue
      connection_->say({{"failed", error.what()}});
    }
  }

  /// No other user may read a certificate, not even for a moment.
  void write_file(const Message& message) const {
    const auto file = inside(request_.folder, text_in(message, "path"));
    fs::create_directories(file.parent_path());
    const bool secret = flag_in(message, "secret");
    if (secret) fs::permissions(file.parent_path(), fs::perms::owner_all);
    replace_file(file, text_in(message, "text"), secret ? File::Mode::secret : File::Mode::replace);
  }

  /// A process that already runs continues: the launch sends a start again if the connection broke before the
  /// answer.
  void start(const Message& message) {
    const auto name = text_in(message, "name");
    const auto life = number_in(message, "life", 0);
    const auto folder = inside(request_.folder, text_in(message, "folder"));
    if (const auto there = children_.find(name);
        there != children_.end() && there->second->running() && !there->second->killed) {
      there->second->life = life;
      if (there->second->coordinates && port_ > 0) connection_->say({{"port", port_}});
      return;
    }
    auto child = std::make_unique<AgentChild>();
    child->coordinates = flag_in(message, "coordinator");
    child->life = life;
    child->options = {.name = name,
                      .command = texts_in(message, "arguments"),
                      .log = folder / (child->coordinates ? "coordinator.log" : "worker.log"),
                      .environment = texts_in(message, "environment")};
    child->options.command.insert(child->options.command.begin(), request_.program.begin(),
                                  request_.program.end());
    child->again = texts_in(message, "again");
    child->metrics = folder / "metrics.jsonl";
    child->wait_until = Clock::now() + (child->coordinates ? 0s : patience);
    if (child->coordinates) port_ = 0;
    children_[name] = std::move(child);
  }

  void pass_on(const Message& message) {
    const auto found = children_.find(text_in(message, "name"));
    const auto number = static_cast<int>(number_in(message, "number", 0));
    if (found == children_.end() || number < 1 || number > 64) return;
    auto& child = *found->second;
    child.killed = child.killed || number == SIGKILL;
    if (child.process) {
      child.process->signal(number);
    } else if (child.running()) {  // it was not started yet
      child.status = 128 + number;
    }
  }

  // ---- the processes ----

  void attend() {
    for (auto& [name, child] : children_) attend(*child);
    if (connected_) connection_->flush();
  }

  void attend(AgentChild& child) {
    if (!child.running() && !connected_) restart_alone(child);
    if (child.running() && !child.process) begin(child);
    if (child.running() && child.process)
      child.status = child.process->poll();  // polled before reading, so that the output is complete
    if (child.port >= 0) read_port(child);
    const auto size = bytes_in(child.metrics);
    child.begun = child.begun || (child.process && size > 0 && size != child.metrics_before);
    if (!connected_) return;
    read_log(child);
    if (child.begun && !std::exchange(child.said_begun, true))
      connection_->say({{"begun", child.options.name}});
    if (!child.running() && !std::exchange(child.said_end, true)) say_end(child);
  }

  void begin(AgentChild& child) {
    if (!is_free(child.folder()) && Clock::now() < child.wait_until) return;
    auto options = child.options;
    int ends[2] = {-1, -1};
    try {
      fs::create_directories(child.folder());
      if (child.coordinates) {
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw Error(ErrorKind::data, "cannot make a pipe");
        options.keep_fd = ends[1];
        options.command.insert(options.command.end(), {"--announce-fd", std::to_string(ends[1])});
        if (child.port >= 0) close(child.port);
        child.port = ends[0];
      }
      child.metrics_before = bytes_in(child.metrics);
      const auto read_from = bytes_in(options.log);
      child.process = std::make_unique<Process>(options);
      if (child.log < 0) {  // otherwise reading continues at the same place
        child.log = open(options.log.c_str(), O_RDONLY | O_CLOEXEC);
        if (child.log >= 0) lseek(child.log, static_cast<off_t>(read_from), SEEK_SET);
      }
    } catch (const std::exception& error) {
      say_error(child.options.name + ": " + error.what());
      if (connected_) connection_->output(child.options.name, error.what());
      child.status = exit_status(ErrorKind::data);
    }
    if (ends[1] >= 0) close(ends[1]);
  }

  /// Restarts a process while no launch is connected. A coordinator continues its run at the same port.
  void restart_alone(AgentChild& child) {
    const int status = *child.status;
    auto cause = Restarts::cause_of(status);
    if (child.coordinates) {
      cause.reset();
      if (Restarts::coordinator_returns(status) && child.run_goes_on()) cause = Restarts::Cause::lost;
    }
    if (!cause || child.killed) return;
    const auto answer = restarts_.ask(child.options.name, *cause, Clock::now());
    if (answer != Restarts::Answer::now) return;
    say_error(fmt::format("{} ended with status {}; restarting it", child.options.name, status));
    auto& words = child.options.command;
    if (child.coordinates) {
      std::erase(words, "--resume");
      const auto listen = std::ranges::find(words, "--listen");
      if (listen != words.end() && std::next(listen) != words.end() && std::next(listen)->ends_with(":0"))
        *std::next(listen) = fmt::format("{}:{}", listen[1].substr(0, listen[1].size() - 2), port_);
    } else if (child.begun) {
      for (const auto& word : child.again) {
        if (std::ranges::find(words, word) == words.end()) words.push_back(word);
      }
    }
    child.process.reset();
    child.status.reset();
    child.wait_until = Clock::now() + patience;
  }

  void say_end(const AgentChild& child) const {
    if (child.coordinates && child.status == 0) say_summary(child.folder() / "summary.json");
    Message message = {{"ended", child.options.name}, {"life", child.life}, {"status", *child.status}};
    if (child.coordinates) message["run_goes_on"] = child.run_goes_on();
    connection_->say(message);
  }

  void say_summary(const fs::path& file) const {
    if (bytes_in(file) == 0 || bytes_in(file) > longest_message / 2) return;
    connection_->say({{"summary", text_if_there(file, longest_message)}});
  }

  void read_port(AgentChild& child) {
    char text[16];
    const auto n = read(child.port, text, sizeof text - 1);
    if (n < 0) return;  // not yet
    text[n] = '\0';
    if (n > 0) port_ = std::atoi(text);
    if (n > 0 && connected_) connection_->say({{"port", port_}});
    close(std::exchange(child.port, -1));
  }

  void read_log(AgentChild& child) const {
    char bytes[1 << 14];
    for (ssize_t n = 0; child.log >= 0 && (n = read(child.log, bytes, sizeof bytes)) > 0;) {
      child.unread.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = child.unread.next())
        connection_->output(child.options.name, line->substr(0, longest_line));
      if (child.unread.pending() > longest_line) connection_->output(child.options.name, child.unread.rest());
    }
    if (child.running() || child.unread.pending() == 0) return;
    connection_->output(child.options.name, child.unread.rest());
  }

  /// Sends workers SIGTERM, so that they can leave the run, and kills the rest later. A coordinator is killed
  /// at once: SIGTERM would make it stop the run, which another coordinator may continue.
  void end_all() {
    for (auto& [name, child] : children_) {
      child->killed = true;  // no restart
      if (child->process) child->process->signal(child->coordinates ? SIGKILL : SIGTERM);
      if (!child->process && child->running()) child->status = 128 + SIGTERM;
    }
    const auto until = Clock::now() + std::chrono::duration<double>(request_.grace);
    const auto running = [](const auto& child) { return child.second->running(); };
    while (std::ranges::any_of(children_, running) && Clock::now() < until) {
      attend();
      std::this_thread::sleep_for(tick);
    }
    children_.clear();  // kills
    if (connected_) connection_->finish();
  }

  const TetherRequest& request_;
  int listener_ = -1;
  std::unique_ptr<AgentConnection> connection_;
  bool connected_ = false, had_connection_ = false, leaving_ = false;
  Clock::time_point heard_ = Clock::now();
  int port_ = 0;  ///< the coordinator's, once known
  Restarts restarts_{std::numeric_limits<std::int64_t>::max()};
  std::map<std::string, std::unique_ptr<AgentChild>> children_;
};

}  // namespace

int run_site_agent(const TetherRequest& request) {
  try {
    return SiteAgent(request).run();
  } catch (const std::exception& error) {
    say_error(error.what());
    return exit_status(ErrorKind::data);
  }
}

}  // namespace isthmus::app
