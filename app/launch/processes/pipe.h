#pragma once
// Pipes to child processes, and the arguments of exec.

#include <string>
#include <vector>

namespace isthmus::app {

/// A pipe that no child inherits by itself. Ends that were not given away are closed with the object.
class Pipe {
 public:
  /// Throws Error(data).
  Pipe();
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reader() const { return ends_[0]; }
  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_writer();
  /// Gives an end to the caller, made non-blocking.
  [[nodiscard]] int take_reader() { return take(0); }
  [[nodiscard]] int take_writer() { return take(1); }
  /// Reads until all writers have closed the pipe.
  [[nodiscard]] std::string read_all() const;

 private:
  [[nodiscard]] int take(int which);
  int ends_[2] = {-1, -1};
};

void make_nonblocking(int fd);

/// For exec; refers to `words`.
[[nodiscard]] std::vector<char*> exec_arguments(std::vector<std::string>& words);

}  // namespace isthmus::app
