#pragma once
// `run.wandb`: starts the program `isthmus-wandb`, which reads the metrics.jsonl of the run's folder as they
// grow and logs them to Weights & Biases. Used by the coordinator. Nothing that happens to the program
// affects the run: its failures are only reported.

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "run/process/process.h"

namespace isthmus::app {

class WandbProcess {
 public:
  using Say = std::function<void(const std::string&)>;  ///< called from any thread
  struct Options {
    std::filesystem::path folder;   ///< the run's
    nlohmann::ordered_json run;     ///< for the program, see _wandb.py
    std::chrono::milliseconds end;  ///< how long `finish` waits
    std::filesystem::path program;  ///< a path, or a name to be found in PATH
  };
  /// Starts the program; call it on the process's main thread, since the program ends with the thread that
  /// started it. Never throws for a program that cannot be started.
  WandbProcess(Options options, Say say);
  /// Ends the program at once unless `finish` was called.
  ~WandbProcess();
  WandbProcess(const WandbProcess&) = delete;
  WandbProcess& operator=(const WandbProcess&) = delete;

  /// Makes the program follow the metrics of this replica, too. Never blocks.
  void follow(const std::string& replica);
  /// The run is over: waits until the program has logged the rest, at most for the time in the options, and
  /// then ends it. `failed`: how the run shows at W&B.
  void finish(bool failed);

 private:
  void send(const nlohmann::ordered_json& message);
  void close_input();
  /// Passes the program's lines to `say` until it has ended.
  void watch();
  void say_how_it_ended(int status);

  const Options options_;
  const Say say_;
  int input_ = -1;   ///< a socket, connected to the program's standard input; -1 when closed
  int output_ = -1;  ///< the reading end of its standard output
  std::set<std::string> followed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Process> process_;
  bool ending_ = false;  ///< its end is expected
  bool ended_ = false;
  std::thread watcher_;  ///< last: it uses the members above
};

/// `isthmus-wandb` next to this program, or else the name, to be found in PATH.
[[nodiscard]] std::filesystem::path wandb_program();

}  // namespace isthmus::app
