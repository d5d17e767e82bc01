#pragma once
// The connection to a site: the system's ssh, and behind it `isthmus tether` and the site's agent, which owns
// that site's processes. A thread of its own follows what they say, says that this launch is there, and dials
// again for as long as it takes when the connection is lost: the processes go on meanwhile.

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

#include "launch/tether_messages.h"
#include "run/launcher_config.h"
#include "run/process.h"

namespace isthmus::app {

/// A machine as its tether describes it.
struct SiteFacts {
  std::filesystem::path folder;  ///< of runs, in full
  std::int64_t cores = 1;
  std::vector<std::string> gpus;
  std::string build;
};

struct SiteFile {
  std::string path;  ///< below the folder of runs
  std::string text;
  bool secret = false;
};

/// A process to be started there.
struct SiteStart {
  std::string name;
  std::string folder;  ///< below the folder of runs: where its log is
  std::vector<std::string> arguments;
  std::vector<std::string> environment = {};
  std::vector<std::string> again = {};  ///< added to the arguments when the agent starts it again
  std::filesystem::path log = {};       ///< here: what it says is added to it; empty: it is shown alone
  bool coordinates = false;
};

/// Which agent the tether is to find or start.
struct AgentWish {
  std::string run, site;
  double silence = 30;  ///< seconds without a launch after which it ends its processes and itself
  double grace = 60;    ///< seconds from SIGTERM to SIGKILL then
};

/// A process that the agent had when the link first connected.
struct FoundProcess {
  std::int64_t life = 0;
  std::optional<int> status;  ///< nothing while it runs
};

/// ssh and its arguments for a launcher of that kind.
[[nodiscard]] std::vector<std::string> ssh_command(const LauncherConfig& launcher, const AgentWish& wish);
/// What the shell there is given: environment, set-up lines, then `isthmus tether`.
[[nodiscard]] std::string tether_script(const LauncherConfig& launcher, const AgentWish& wish);
/// In single quotes, for a shell.
[[nodiscard]] std::string shell_word(const std::string& text);

class SiteLink : public std::enable_shared_from_this<SiteLink> {
 public:
  struct Options {
    std::string site;
    std::string place;                 ///< for messages, as user@host
    std::vector<std::string> command;  ///< ssh, or the tether itself on this machine
    bool take_up = false;              ///< processes that run there already are welcome
    bool dials_again = true;
    bool same_disk = false;  ///< their logs are where this launch would write them
    /// What is written there before anything is started; on the link's thread. May throw Error.
    std::function<std::vector<SiteFile>(const SiteFacts&)> files;
    /// Gets whole lines of what is said there, on the link's thread.
    std::function<void(const std::string& who, const std::string& line)> show;
  };
  /// away: it was ready, and is dialled again. What is to be started or signalled waits for that, and its
  /// processes count as running. failed: for good.
  enum class State { connecting, ready, away, failed };

  /// Begins to connect; starts are kept until it is ready.
  explicit SiteLink(Options options);
  /// Ends what still runs there, unless it was told to let it go on.
  ~SiteLink();
  SiteLink(const SiteLink&) = delete;
  SiteLink& operator=(const SiteLink&) = delete;

  [[nodiscard]] State state() const;
  /// "eu (me@eu.example): ssh: connect to host ..."
  [[nodiscard]] std::string problem() const;
  /// 4 where the machine could not be reached or was lost, else 3.
  [[nodiscard]] int problem_status() const;
  [[nodiscard]] SiteFacts facts() const;
  /// Of the coordinator that was started there, once it listens.
  [[nodiscard]] std::optional<std::uint16_t> port() const;
  /// Blocks until it listens, has ended, is away, or somebody interrupts.
  [[nodiscard]] std::optional<std::uint16_t> await_port(RunProcess& coordinator,
                                                        const std::atomic<int>& interrupts) const;
  /// The summary of a run whose coordinator has ended there, as JSON; empty before.
  [[nodiscard]] std::string summary() const;
  /// The coordinator that has ended there has left a run that goes on.
  [[nodiscard]] bool run_goes_on() const;
  /// Begins what the destructor waits for.
  void close_soon();
  /// From now on its processes outlive this link.
  void let_go_on() { lets_go_on_ = true; }
  [[nodiscard]] bool lets_go_on() const { return lets_go_on_; }
  /// By name, once it is ready.
  [[nodiscard]] std::map<std::string, FoundProcess> found() const;
  /// Takes up one of these, whose log is here.
  [[nodiscard]] std::unique_ptr<RunProcess> adopt(const std::string& name, const std::filesystem::path& log);
  /// One of its workers has made a step.
  [[nodiscard]] bool begun() const;

  [[nodiscard]] std::unique_ptr<RunProcess> start(const SiteStart& start);

 private:
  friend class SiteProcess;
  struct Remote {
    std::filesystem::path log;
    std::int64_t life = 0;
    std::optional<int> status;
  };

  void say(const Message& message);
  void signal(const std::string& name, int number);
  [[nodiscard]] std::optional<int> status_of(const std::string& name) const;

  [[nodiscard]] bool all_sent() const;
  void follow();
  void dial();
  void converse();
  void say_what_is_due();
  void hang_up();
  [[nodiscard]] bool goes_away();
  void pause_before(std::int64_t dial);
  void wait_for_bytes();
  void take_output();
  void take_errors();
  void handle(const std::string& line);
  void welcome(const Message& hello);
  void became_ready();
  void lose_what_is_gone();
  void output(const std::string& name, const std::string& text);
  void handle_of_end(const Message& message);
  void lose(std::string why, int status);
  void show(const std::string& text) const { options_.show(options_.site, text); }

  Options options_;
  mutable std::mutex mutex_;
  State state_ = State::connecting;
  std::string problem_, last_error_;
  int problem_status_ = 0;
  SiteFacts facts_;
  std::optional<std::uint16_t> port_;
  bool begun_ = false, run_goes_on_ = false;
  std::string summary_;
  std::atomic<bool> closing_ = false, lets_go_on_ = false;
  std::map<std::string, Remote> processes_;
  std::map<std::string, FoundProcess> found_;  ///< by the newest connection
  std::int64_t lives_ = 0;                     ///< the highest life of any process
  std::string unsent_;
  std::vector<Message> waiting_;  ///< for the next connection

  // Of one connection.
  bool connected_ = false;  ///< it has become ready
  bool left_ = false;
  std::optional<std::chrono::steady_clock::time_point> kill_at_;
  std::chrono::steady_clock::time_point alive_at_;
  int input_ = -1, output_ = -1, errors_ = -1;  ///< ours of ssh's
  LineBuffer said_, error_lines_;
  std::unique_ptr<Process> ssh_;

  int wake_ = -1;  ///< an eventfd
  std::int64_t connections_ = 0;
  std::thread thread_;
};

}  // namespace isthmus::app
