#pragma once
// The connection to a site: the system's ssh, and behind it `isthmus tether` and the site's agent, which owns
// that site's processes. A thread of its own handles messages, shows the agent that this launch is alive, and
// redials without limit when the connection is lost; the processes continue meanwhile.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/sites/agent_hello.h"
#include "run/process/process.h"

namespace isthmus::app {

struct SiteFile {
  std::string path;  ///< below the folder of runs
  std::string text;
  bool secret = false;
};

/// A process to start at the site.
struct SiteStart {
  std::string name;
  std::string folder;  ///< below the folder of runs; the log is there
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};
  std::vector<std::string> again = {};  ///< arguments added when the agent restarts the process
  std::filesystem::path log = {};       ///< gets the output, on this machine; empty: it is only shown
  bool coordinates = false;
};

class SiteLink : public std::enable_shared_from_this<SiteLink> {
 public:
  struct Options {
    std::string site;
    std::string place;                 ///< for messages, as user@host
    std::vector<std::string> command;  ///< ssh, or the tether itself on this machine
    bool take_over = false;            ///< accept processes that already run there
    bool dials_again = true;
    bool same_disk = false;  ///< the site's logs are where this launch would write them
    /// Files to write there before anything is started; called on the link's thread. May throw Error.
    std::function<std::vector<SiteFile>(const SiteFacts&)> files;
    /// Receives whole lines of output from the site, on the link's thread.
    std::function<void(const std::string& who, const std::string& line)> show;
  };
  /// away: was ready, and is being redialled; starts and signals wait for that, and its processes count as
  /// running. failed: given up for good.
  enum class State { connecting, ready, away, failed };

  /// Begins to connect; starts are queued until it is ready.
  explicit SiteLink(Options options);
  /// Ends what still runs there, unless `leave_running` was called.
  ~SiteLink();
  SiteLink(const SiteLink&) = delete;
  SiteLink& operator=(const SiteLink&) = delete;

  [[nodiscard]] State state() const { return locked(state_); }
  /// "eu (me@eu.example): ssh: connect to host ..."
  [[nodiscard]] std::string problem() const { return locked(problem_.text); }
  /// 4 if the machine could not be reached or was lost, otherwise 3.
  [[nodiscard]] int problem_status() const { return locked(problem_.status); }
  [[nodiscard]] SiteFacts facts() const { return locked(facts_); }
  /// Port of the coordinator that was started there, once it listens.
  [[nodiscard]] std::optional<std::uint16_t> port() const { return locked(port_); }
  /// Blocks until the coordinator listens or has ended, the site is away, or an interrupt.
  [[nodiscard]] std::optional<std::uint16_t> await_port(RunProcess& coordinator,
                                                        const std::atomic<int>& interrupts) const;
  /// JSON summary of the run, once its coordinator has ended there; empty before.
  [[nodiscard]] std::string summary() const { return locked(summary_); }
  /// Whether the coordinator that ended there left an unfinished run.
  [[nodiscard]] bool run_is_unfinished() const { return locked(run_is_unfinished_); }
  /// Begins to close; the destructor waits for the end.
  void close_soon();
  /// From now on the site's processes outlive this link.
  void leave_running() { leaves_running_ = true; }
  [[nodiscard]] bool leaves_running() const { return leaves_running_; }
  /// Processes that the agent already had, by name; once the link is ready.
  [[nodiscard]] std::map<std::string, FoundProcess> found() const { return locked(found_); }
  /// Takes over one of these processes; `log` is its log on this machine.
  [[nodiscard]] std::unique_ptr<RunProcess> adopt(const std::string& name, const std::filesystem::path& log);
  /// Whether one of its workers has made a step.
  [[nodiscard]] bool begun() const { return locked(begun_); }

  [[nodiscard]] std::unique_ptr<RunProcess> start(const SiteStart& start);

 private:
  friend class SiteProcess;
  struct Remote {
    std::filesystem::path log;
    std::int64_t life = 0;
    std::optional<int> status;
  };

  template <class T>
  [[nodiscard]] T locked(const T& member) const {
    const std::lock_guard lock(mutex_);
    return member;
  }
  void say(const Message& message);
  void signal(const std::string& name, int number);
  [[nodiscard]] std::optional<int> status_of(const std::string& name) const;

  [[nodiscard]] bool all_sent() const;
  void follow();
  void dial();
  void exchange_messages();
  void queue_due_messages();
  void close_ends();
  [[nodiscard]] bool will_redial();
  void pause_before(std::int64_t dial);
  void wait_for_bytes();
  void take_output();
  void take_errors();
  void handle(const std::string& line);
  void on_hello(const Message& hello);
  void on_ready();
  void end_lost_processes();
  void output(const std::string& name, const std::string& text);
  void handle_of_end(const Message& message);
  void give_up(std::string why, int status);
  void show(const std::string& text) const { options_.show(options_.site, text); }

  Options options_;
  mutable std::mutex mutex_;
  State state_ = State::connecting;
  struct Problem {
    std::string text;
    int status = 0;
  } problem_;
  SiteFacts facts_;
  std::optional<std::uint16_t> port_;
  bool begun_ = false, run_is_unfinished_ = false;
  std::string summary_;
  std::atomic<bool> closing_ = false, leaves_running_ = false;
  std::map<std::string, Remote> processes_;
  std::map<std::string, FoundProcess> found_;  ///< as of the newest connection
  std::int64_t lives_ = 0;                     ///< the highest life of any process
  std::string unsent_;
  std::vector<Message> waiting_;  ///< for the next connection

  /// One connection; used by the thread only.
  struct Ssh {
    std::unique_ptr<Process> process;
    int input = -1, output = -1, errors = -1;  ///< our ends of its pipes
    LineBuffer said, error_lines;
    std::string last_error;
    bool is_ready = false;  ///< the connection has become ready
    bool left = false;
    std::optional<std::chrono::steady_clock::time_point> kill_at;
    std::chrono::steady_clock::time_point alive_at;
  } ssh_;

  int wake_ = -1;  ///< an eventfd
  std::int64_t connections_ = 0;
  std::thread thread_;
};

}  // namespace isthmus::app
