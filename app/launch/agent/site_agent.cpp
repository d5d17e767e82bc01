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
#include "launch/agent/agent_child.h"
#include "launch/agent/agent_connection.h"
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
constexpr auto folder_timeout = 60s;
/// An agent ends if no launch connects within this time.
constexpr auto first_launch_timeout = 30s;
constexpr std::size_t max_line_bytes = 4096;
/// A process may write output while no launch is connected; at most this much of its end is sent later.
constexpr off_t max_replayed = off_t{1} << 18;

/// A path below the folder. Throws Error(data) for any other.
fs::path inside(const fs::path& folder, const std::string& path) {
  const auto relative = fs::path(path).lexically_normal();
  if (path.empty() || relative.is_absolute() || relative.begin()->string() == "..")
    data_error("'" + path + "' is not in the folder of runs");
  return folder / relative;
}

class SiteAgent {
 public:
  explicit SiteAgent(const TetherRequest& request) : request_(request) {}

  int run() {
    std::signal(SIGHUP, SIG_IGN);
    std::signal(SIGPIPE, SIG_IGN);
    std::atomic<bool> told_to_end = false;
    const SignalThread signals([&](int, int) { told_to_end = true; });
    if (lock_agent(request_.place()) < 0) return report_started();  // the lock is kept to the end
    listener_ = listen_as_agent(request_.place());
    static_cast<void>(report_started());
    while (!told_to_end && !is_over()) {
      wait();
      supervise();
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
  int report_started() const {
    static_cast<void>(!write(request_.started_fd, "ok\n", 3));
    close(request_.started_fd);
    return 0;
  }

  [[nodiscard]] bool is_over() const {
    if (leaving_) return true;
    const auto silent = Clock::now() - last_message_at_;
    if (silent > std::chrono::duration<double>(request_.agent.silence)) return true;
    return children_.empty() && !connected_ && (had_connection_ || silent > first_launch_timeout);
  }

  // ---- a launch ----

  void wait() {
    pollfd waiting[] = {{listener_, POLLIN, 0}, {connected_ ? connection_->fd() : -1, POLLIN, 0}};
    if (poll(waiting, 2, static_cast<int>(tick.count())) <= 0) return;
    if (waiting[1].revents != 0) receive_orders();
    if (waiting[0].revents != 0) accept_launch();
  }

  /// The newest launch replaces the connected one.
  void accept_launch() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (connected_) {
      connection_->send({{"replaced", true}});
      connection_->finish();
    }
    connection_ = std::make_unique<AgentConnection>(fd);
    connected_ = had_connection_ = true;
    last_message_at_ = Clock::now();
    Message hello = {
        {"tether", tether_protocol},
        {"folder", request_.folder.string()},
        {"cores", cores_here()},
        {"gpus", gpus_here()},
        {"build", request_.build},
        {"processes", Message::array()},
        {"run_goes_on", may_be_there(request_.folder / request_.agent.run / "coordinator.state")}};
    for (auto& [name, child] : children_) {
      Message one = {{"name", name}, {"life", child->life}};
      if (child->status) one["status"] = *child->status;
      hello["processes"].push_back(std::move(one));
      child->end_reported = child->begin_reported = false;
      skip_old_output(*child);
    }
    if (port_ > 0) hello["port"] = port_;
    connection_->send(hello);
    for (const auto& [name, child] : children_) {
      if (child->coordinates && child->status == 0) send_summary(child->folder() / "summary.json");
    }
  }

  void skip_old_output(AgentChild& child) const {
    if (child.log < 0) return;
    const auto at = lseek(child.log, 0, SEEK_CUR);
    const auto end = static_cast<off_t>(bytes_in(child.options.log));
    if (end - at <= max_replayed) return;
    connection_->send_output(child.options.name,
                             fmt::format("({} bytes are left out here; {} has them)", end - at - max_replayed,
                                         child.options.log.string()));
    lseek(child.log, end - max_replayed, SEEK_SET);
    static_cast<void>(child.unread.rest());
  }

  void receive_orders() {
    if (!connection_->receive()) {
      connected_ = false;
      if (!children_.empty())
        connection_.reset();  // without children this process ends, which closes the connection
      return;
    }
    last_message_at_ = Clock::now();
    while (const auto line = connection_->input().next()) {
      if (const auto message = message_of(*line)) execute(*message);
    }
    if (connection_->input().pending() <= max_message_bytes) return;
    connection_->send({{"failed", "a message of more than 4 MiB"}});
    connection_.reset();
    connected_ = false;
  }

  void execute(const Message& message) {
    const auto what = text_in(message, "do");
    try {
      if (what == "write") write_file(message);
      if (what == "ready") connection_->send({{"ready", true}});
      if (what == "start") start(message);
      if (what == "signal") signal_child(message);
      if (what == "leave") leaving_ = true;
    } catch (const std::exception& error) {  // running processes continue
      connection_->send({{"failed", error.what()}});
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
      if (there->second->coordinates && port_ > 0) connection_->send({{"port", port_}});
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
    child->wait_until = Clock::now() + (child->coordinates ? 0s : folder_timeout);
    if (child->coordinates) port_ = 0;
    children_[name] = std::move(child);
  }

  void signal_child(const Message& message) {
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

  void supervise() {
    for (auto& [name, child] : children_) supervise(*child);
    if (connected_) connection_->flush();
  }

  void supervise(AgentChild& child) {
    if (!child.running() && !connected_) restart_without_launch(child);
    if (child.running() && !child.process) begin(child);
    if (child.running() && child.process)
      child.status = child.process->poll();  // polled before reading, so that the output is complete
    if (child.port >= 0) read_port(child);
    const auto size = bytes_in(child.metrics);
    child.begun = child.begun || (child.process && size > 0 && size != child.metrics_before);
    if (!connected_) return;
    read_log(child);
    if (child.begun && !std::exchange(child.begin_reported, true))
      connection_->send({{"begun", child.options.name}});
    if (!child.running() && !std::exchange(child.end_reported, true)) send_end(child);
  }

  void begin(AgentChild& child) {
    if (!is_free(child.folder()) && Clock::now() < child.wait_until) return;
    try {
      child.start();
    } catch (const std::exception& error) {
      say_error(child.options.name + ": " + error.what());
      if (connected_) connection_->send_output(child.options.name, error.what());
      child.status = exit_status(ErrorKind::data);
    }
  }

  /// Restarts a process while no launch is connected. A coordinator continues its run at the same port.
  void restart_without_launch(AgentChild& child) {
    const int status = *child.status;
    auto cause = Restarts::cause_of(status);
    if (child.coordinates) {
      cause.reset();
      if (Restarts::coordinator_returns(status) && child.run_is_unfinished()) cause = Restarts::Cause::lost;
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
    child.wait_until = Clock::now() + folder_timeout;
  }

  void send_end(const AgentChild& child) const {
    if (child.coordinates && child.status == 0) send_summary(child.folder() / "summary.json");
    Message message = {{"ended", child.options.name}, {"life", child.life}, {"status", *child.status}};
    if (child.coordinates) message["run_goes_on"] = child.run_is_unfinished();
    connection_->send(message);
  }

  void send_summary(const fs::path& file) const {
    if (bytes_in(file) == 0 || bytes_in(file) > max_message_bytes / 2) return;
    connection_->send({{"summary", text_if_there(file, max_message_bytes)}});
  }

  void read_port(AgentChild& child) {
    char text[16];
    const auto n = read(child.port, text, sizeof text - 1);
    if (n < 0) return;  // not yet
    text[n] = '\0';
    if (n > 0) port_ = std::atoi(text);
    if (n > 0 && connected_) connection_->send({{"port", port_}});
    close(std::exchange(child.port, -1));
  }

  void read_log(AgentChild& child) const {
    char bytes[1 << 14];
    for (ssize_t n = 0; child.log >= 0 && (n = read(child.log, bytes, sizeof bytes)) > 0;) {
      child.unread.add({bytes, static_cast<std::size_t>(n)});
      while (const auto line = child.unread.next())
        connection_->send_output(child.options.name, line->substr(0, max_line_bytes));
      if (child.unread.pending() > max_line_bytes)
        connection_->send_output(child.options.name, child.unread.rest());
    }
    if (child.running() || child.unread.pending() == 0) return;
    connection_->send_output(child.options.name, child.unread.rest());
  }

  /// Sends workers SIGTERM, so that they can leave the run, and kills the rest later. A coordinator is killed
  /// at once: SIGTERM would make it stop the run, which another coordinator may continue.
  void end_all() {
    for (auto& [name, child] : children_) {
      child->killed = true;  // no restart
      if (child->process) child->process->signal(child->coordinates ? SIGKILL : SIGTERM);
      if (!child->process && child->running()) child->status = 128 + SIGTERM;
    }
    const auto until = Clock::now() + std::chrono::duration<double>(request_.agent.grace);
    const auto running = [](const auto& child) { return child.second->running(); };
    while (std::ranges::any_of(children_, running) && Clock::now() < until) {
      supervise();
      std::this_thread::sleep_for(tick);
    }
    children_.clear();  // kills
    if (connected_) connection_->finish();
  }

  const TetherRequest& request_;
  int listener_ = -1;
  std::unique_ptr<AgentConnection> connection_;
  bool connected_ = false, had_connection_ = false, leaving_ = false;
  Clock::time_point last_message_at_ = Clock::now();
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
