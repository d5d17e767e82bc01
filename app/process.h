#pragma once
// Child processes of `launch`. A child dies with its parent, however the parent ends.

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

class Process {
 public:
  struct Options {
    std::string name;                  ///< for messages
    std::vector<std::string> command;  ///< program and arguments
    std::filesystem::path log;         ///< gets standard output and error; empty: they are inherited
    int keep_fd = -1;                  ///< one descriptor that the child inherits
    bool standard_input = false;       ///< is inherited too; else it is empty
  };
  /// Starts the child in a process group of its own, so that a terminal's Ctrl-C reaches `launch` alone.
  /// Throws Error(data) when the log cannot be written or the program cannot be started.
  explicit Process(Options options);
  /// Kills the child if it still runs.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  [[nodiscard]] const std::string& name() const { return options_.name; }
  [[nodiscard]] const std::filesystem::path& log() const { return options_.log; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Exit status (128 + signal if it was killed) once it has ended; does not block.
  [[nodiscard]] std::optional<int> poll();
  [[nodiscard]] bool running() { return !poll().has_value(); }

 private:
  Options options_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

/// Last lines of a text file, for messages.
[[nodiscard]] std::string tail_of(const std::filesystem::path& file, std::size_t lines);

}  // namespace isthmus::app
