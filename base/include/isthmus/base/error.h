#pragma once
// The exception type for everything that a user can cause or fix. Its kind determines the exit status of the
// process, so that scripts can distinguish a wrong key from a lost peer. Programming errors are asserts, not
// exceptions.

#include <stdexcept>
#include <string>

namespace isthmus {

enum class ErrorKind {
  config,      ///< a key, value or command line is wrong; exit status 2
  data,        ///< a corpus, checkpoint or other file is wrong or missing; exit status 3
  network,     ///< a peer or the coordinator is lost, refuses, or cannot be reached; exit status 4
  divergence,  ///< replicas disagree on agreed state, or a value is not finite; exit status 5
};

[[nodiscard]] constexpr int exit_status(ErrorKind kind) { return 2 + static_cast<int>(kind); }

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }
  [[nodiscard]] int exit_status() const { return isthmus::exit_status(kind_); }

 private:
  ErrorKind kind_;
};

[[noreturn]] inline void config_error(const std::string& message) { throw Error(ErrorKind::config, message); }
[[noreturn]] inline void data_error(const std::string& message) { throw Error(ErrorKind::data, message); }

}  // namespace isthmus
