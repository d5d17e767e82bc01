#pragma once
// Commands as users run them: separate processes, with all output in one file and a time limit.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "paths.h"

namespace isthmus {

using namespace std::chrono_literals;

/// Longer than any command here takes on a busy machine; only a command that hangs reaches it.
inline constexpr std::chrono::seconds patience{120};

struct Result {
  int status = 0;  ///< exit status, 128 + signal of a killed process
  std::string output;
  std::string command;
  /// For failure messages: the command, how it ended, and the end of its output.
  [[nodiscard]] std::string report() const;
};

class Command {
 public:
  /// Starts a program, named by its path, with standard output and error in `log`. The program ends with the
  /// test.
  Command(std::vector<std::string> words, std::filesystem::path log);
  ~Command();
  Command(Command&& other) noexcept;
  Command& operator=(Command&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running();
  void signal(int number) const;
  [[nodiscard]] std::string output() const;
  /// Blocks until the output has a whole line with `words`; false if none appears within `patience`.
  [[nodiscard]] bool says(const std::string& words) const;
  /// Address of a coordinator that has chosen its own port, once it has printed the port; empty if it does
  /// not.
  [[nodiscard]] std::string coordinator_address() const;
  /// Blocks until the command has ended. If that exceeds the limit, kills it and fails the test.
  Result wait(std::chrono::milliseconds limit = patience);

 private:
  std::string words_;
  std::filesystem::path log_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Starts a command and waits for its end.
Result run_command(std::vector<std::string> words, const std::filesystem::path& log);

/// Polls `ready` until it returns true; false if it has not within the limit.
[[nodiscard]] bool eventually(const std::function<bool()>& ready, std::chrono::milliseconds limit = patience);

/// A process id that does not exist. A signal to it does nothing, whereas -1 would mean all processes.
inline constexpr pid_t nobody = std::numeric_limits<pid_t>::max();

struct RunningProcess {
  pid_t pid;
  std::string command;
};
/// All processes of this machine with `text` in their command line.
[[nodiscard]] std::vector<RunningProcess> processes_with(const std::string& text);

}  // namespace isthmus
