#pragma once
// Child processes of `launch`. A child dies with its parent, however the parent ends.

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

/// A process of a run, on this machine or another.
class RunProcess {
 public:
  virtual ~RunProcess() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  /// File with its output; empty if the output was shown.
  [[nodiscard]] virtual const std::filesystem::path& log() const = 0;
  virtual void signal(int number) = 0;
  /// Exit status (128 + signal if it was killed) once it has ended; does not block.
  [[nodiscard]] virtual std::optional<int> poll() = 0;
  [[nodiscard]] bool running() { return !poll().has_value(); }

 protected:
  RunProcess() = default;
  RunProcess(const RunProcess&) = default;
  RunProcess& operator=(const RunProcess&) = default;
};

/// A child process.
class Process final : public RunProcess {
 public:
  struct Options {
    std::string name;                  ///< for messages
    std::vector<std::string> command;  ///< program and arguments
    std::filesystem::path log;         ///< gets standard output and error; empty: the child inherits them
    int keep_fd = -1;                  ///< a descriptor that the child inherits
    bool standard_input = false;       ///< inherit standard input; otherwise it is empty
    std::vector<std::string> environment = {};  ///< NAME=VALUE, overrides inherited variables
    int input = -1, output = -1, errors = -1;   ///< descriptors for the standard streams, override the above
  };
  /// Starts the child in a process group of its own, so that a terminal's Ctrl-C reaches `launch` alone.
  /// Throws Error(data) when the log cannot be written or the program cannot be started.
  explicit Process(Options options);
  /// Kills the child if it still runs.
  ~Process() override;
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  [[nodiscard]] const std::string& name() const override { return options_.name; }
  [[nodiscard]] const std::filesystem::path& log() const override { return options_.log; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) override;
  [[nodiscard]] std::optional<int> poll() override;

 private:
  Options options_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Replaces this process by that program, found as a shell finds it. Throws Error(config) naming `key` if it
/// cannot be started.
[[noreturn]] void become_program(std::vector<std::string> command, const std::string& key);

/// Last lines of a text file, for messages.
[[nodiscard]] std::string tail_of(const std::filesystem::path& file, std::size_t lines);

}  // namespace isthmus::app
