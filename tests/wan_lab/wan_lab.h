// A lab that lives as long as an object, for programs that measure something across it.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace isthmus::wan_lab {

/// This machine cannot have a lab, with the reason: not root, no /dev/net/tun, no iproute2. A test then exits
/// with `no_lab_here`, which ctest counts as skipped.
struct NoLab : std::runtime_error {
  using std::runtime_error::runtime_error;
};
constexpr int no_lab_here = 77;

/// A child process. This program reads its standard output and shares its standard error.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command);
  Process(Process&&) = default;
  Process& operator=(Process&&) = delete;
  ~Process();  // ends it, unless wait() was called

  /// The next line of the output without the line break; "" at the end.
  std::string line();
  /// The rest of the output. Throws std::runtime_error with the command if the exit status is not 0.
  std::string finish();
  /// Closes the standard input and waits. Returns the exit status, 128 + N after signal N.
  int wait();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Closer>;

  std::vector<std::string> command_;
  File input_, output_;
  pid_t pid_ = -1;
};

/// A lab with sites site-1, site-2, ..., made by `lab up` with these options. The lab ends with the object,
/// and also with the process, even if it is killed.
class WanLab {
 public:
  explicit WanLab(const std::vector<std::string>& options);

  const std::string& name() const { return name_; }
  /// IPv4 address of a site (1, 2, ...).
  std::string address(int site) const;
  /// Starts a command at a site (1, 2, ...).
  Process start(int site, const std::vector<std::string>& command) const;
  /// Runs `lab VERB --name NAME WORDS...`, for example with {"set", "site-1", "site-2", "--rtt", "50ms"}, and
  /// returns its output.
  std::string lab(const std::vector<std::string>& words) const;

 private:
  std::string name_;
  Process keeper_;  // the lab ends when its standard input is closed
  int number_;
};

/// Runs `run` as a program's `main`. Returns its exit status and prints the message of an exception after the
/// program's name.
int run_program(const char* name, const std::function<int()>& run);

}  // namespace isthmus::wan_lab
