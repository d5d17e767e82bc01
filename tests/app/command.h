#pragma once
// Commands as users run them: processes of their own, with all output in one file and a limit on their time.

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

/// Longer than anything here takes on a busy machine: only a command that hangs meets it.
inline constexpr std::chrono::seconds patience{120};

struct Result {
  int status = 0;  ///< exit status, 128 + signal of a killed process
  std::string output;
  std::string command;
  /// For failure messages: what was run, how it ended, the end of what it said.
  [[nodiscard]] std::string report() const;
};

class Command {
 public:
  /// Starts a program, named by its path, with standard output and error in `log`. It dies with the test.
  Command(std::vector<std::string> words, std::filesystem::path log);
  ~Command();
  Command(Command&& other) noexcept;
  Command& operator=(Command&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running();
  void signal(int number) const;
  [[nodiscard]] std::string output() const;
  /// Waits for a whole line with `words` in it. False when none has come for as long as `patience`.
  [[nodiscard]] bool says(const std::string& words) const;
  /// The address of a coordinator at a port that it has chosen, once it has said which; empty when it does
  /// not.
  [[nodiscard]] std::string coordinator_address() const;
  /// Blocks until it has ended. One that exceeds the limit is killed, with which the test has failed.
  Result wait(std::chrono::milliseconds limit = patience);

 private:
  std::string words_;
  std::filesystem::path log_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Starts a command and waits for its end.
Result run_command(std::vector<std::string> words, const std::filesystem::path& log);

/// Asks again and again until the answer is yes. False when it was no for the whole limit.
[[nodiscard]] bool eventually(const std::function<bool()>& ready, std::chrono::milliseconds limit = patience);

/// No process: a signal to it does nothing, where one to -1 would be to everybody.
inline constexpr pid_t nobody = std::numeric_limits<pid_t>::max();

struct RunningProcess {
  pid_t pid;
  std::string command;
};
/// All processes of this machine with this text in their command line.
[[nodiscard]] std::vector<RunningProcess> processes_with(const std::string& text);

}  // namespace isthmus
