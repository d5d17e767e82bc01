// A lab for as long as an object lives, for programs that measure something across it.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace isthmus::wan_lab {

/// There can be no lab on this machine, and why: not root, no /dev/net/tun, no iproute2. A test then exits
/// with `no_lab_here`, which ctest counts as skipped.
struct NoLab : std::runtime_error {
  using std::runtime_error::runtime_error;
};
constexpr int no_lab_here = 77;

/// A program that runs beside this one and whose standard output comes here; its standard error stays ours.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command);
  Process(Process&&) = default;
  Process& operator=(Process&&) = delete;
  ~Process();  // ends it if it was not waited for

  /// The next line of its output, without the line break; empty at the end.
  std::string line();
  /// What is left of its output. Throws std::runtime_error, with the command, if it did not exit with 0.
  std::string finish();
  /// Its exit status, 128 + N after signal N; closes its standard input first.
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

/// Sites site-1, site-2, ..., as `lab up` makes them from the options. The lab goes down with the object, and
/// also when this program ends in whatever way.
class WanLab {
 public:
  explicit WanLab(const std::vector<std::string>& options);

  const std::string& name() const { return name_; }
  /// IPv4 address of site 1, 2, ...
  std::string address(int site) const;
  /// Starts a command at site 1, 2, ...
  Process start(int site, const std::vector<std::string>& command) const;
  /// `lab VERB --name NAME WORDS...`: its output, for example of {"set", "site-1", "site-2", "--rtt",
  /// "50ms"}.
  std::string lab(const std::vector<std::string>& words) const;

 private:
  std::string name_;
  Process keeper_;  // the lab lives as long as this has standard input
  int number_;
};

/// What a program that uses labs does in `main`: returns its exit status, and says an exception's words after
/// the program's name.
int run_program(const char* name, const std::function<int()>& run);

}  // namespace isthmus::wan_lab
