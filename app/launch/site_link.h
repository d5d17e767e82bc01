#pragma once
// The connection to a site: the system's ssh, and behind it `isthmus tether`, which starts that site's
// processes. A thread of its own follows what they say, and says that this launch is there.

#include <atomic>
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
  std::filesystem::path log = {};  ///< here: what it says is added to it; empty: it is shown alone
  bool coordinates = false;
};

/// ssh and its arguments for a launcher of that kind.
[[nodiscard]] std::vector<std::string> ssh_command(const LauncherConfig& launcher);
/// What the shell there is given: environment, set-up lines, then `isthmus tether`.
[[nodiscard]] std::string tether_script(const LauncherConfig& launcher);
/// In single quotes, for a shell.
[[nodiscard]] std::string shell_word(const std::string& text);

class SiteLink : public std::enable_shared_from_this<SiteLink> {
 public:
  struct Options {
    std::string site;
    LauncherConfig launcher;
    /// What is written there before anything is started; on the link's thread. May throw Error.
    std::function<std::vector<SiteFile>(const SiteFacts&)> files;
    /// Gets whole lines of what is said there, on the link's thread.
    std::function<void(const std::string& who, const std::string& line)> show;
  };
  enum class State { connecting, ready, failed };

  /// Begins to connect; starts are kept until it is ready.
  explicit SiteLink(Options options);
  /// Ends what still runs there.
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
  /// Blocks until it listens, has ended, or somebody interrupts.
  [[nodiscard]] std::optional<std::uint16_t> await_port(RunProcess& coordinator,
                                                        const std::atomic<int>& interrupts) const;
  /// The summary of a run whose coordinator has ended there, as JSON; empty before.
  [[nodiscard]] std::string summary() const;
  /// Begins what the destructor waits for.
  void close_soon();
  /// One of its workers has made a step.
  [[nodiscard]] bool begun() const;

  [[nodiscard]] std::unique_ptr<RunProcess> start(const SiteStart& start);

 private:
  friend class SiteProcess;
  struct Remote {
    std::filesystem::path log;
    std::optional<int> status;
  };

  void say(const Message& message);
  void signal(const std::string& name, int number);
  [[nodiscard]] std::optional<int> status_of(const std::string& name) const;

  [[nodiscard]] bool all_sent() const;
  void follow();
  void wait_for_bytes();
  void take_output();
  void take_errors();
  void hear(const std::string& line);
  void welcome(const Message& hello);
  void became_ready();
  void output(const std::string& name, const std::string& text);
  void lose(std::string why, int status);

  Options options_;
  mutable std::mutex mutex_;
  State state_ = State::connecting;
  std::string problem_, last_error_;
  int problem_status_ = 0;
  SiteFacts facts_;
  std::optional<std::uint16_t> port_;
  bool begun_ = false;
  std::string summary_;
  std::atomic<bool> closing_ = false;
  std::map<std::string, Remote> processes_;
  std::string unsent_;
  std::vector<Message> starts_;

  int input_ = -1, output_ = -1, errors_ = -1, wake_ = -1;  ///< ours of ssh's, and an eventfd
  LineBuffer said_, error_lines_;
  std::unique_ptr<Process> ssh_;
  std::thread thread_;
};

}  // namespace isthmus::app
