#pragma once
// A live input: standard input, or a socket that is redialled when it breaks.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace isthmus::data {

/// Used by one thread, except stop().
class LiveInput {
 public:
  struct Options {
    std::string path;    ///< "-", "tcp://HOST:PORT" or "unix:///PATH"
    std::string reader;  ///< name sent to the source of the stream
    /// Takes sentences for the user about connections that are made, fail or break.
    std::function<void(const std::string&)> say;
  };
  /// Throws Error(config) for an invalid path.
  explicit LiveInput(Options options);
  ~LiveInput();
  LiveInput(const LiveInput&) = delete;
  LiveInput& operator=(const LiveInput&) = delete;

  [[nodiscard]] const std::string& path() const { return options_.path; }
  /// Whether this is a socket. A socket ends only with an explicit message. Standard input is never
  /// redialled: to resume, it must deliver the same data from the start.
  [[nodiscard]] bool is_socket() const { return options_.path != standard_input; }

  /// Dials a socket until it answers, and sends it how much was read so far as one line of JSON, {"reader":
  /// "NAME", "bytes": N, "lines": N}. Returns at once for standard input. Returns false if stopped.
  [[nodiscard]] bool open(std::uint64_t bytes, std::uint64_t lines);
  /// Whether read() would wait.
  [[nodiscard]] bool quiet() const;
  /// Waits for bytes and returns their number: 0 at the end, if the connection is broken, and if stopped.
  /// Throws Error(data) if standard input cannot be read.
  [[nodiscard]] std::size_t read(std::span<char> bytes);
  /// Whether a socket is not connected.
  [[nodiscard]] bool broken() const { return is_socket() && socket_ < 0; }
  [[nodiscard]] bool stopped() const;
  /// Ends all waiting. Any thread.
  void stop();

  static constexpr const char* standard_input = "-";

 private:
  /// Whether the descriptor became ready for `events` in time; false if stopped.
  [[nodiscard]] bool wait(int descriptor, short events, int milliseconds) const;
  /// These three return why they failed, or an empty string.
  [[nodiscard]] std::string connect();
  [[nodiscard]] std::string finish_connecting(int domain, const void* address, std::size_t size);
  [[nodiscard]] std::string greet(std::uint64_t bytes, std::uint64_t lines);
  void close();
  /// Waits between two attempts, longer each time until bytes arrive.
  void rest();
  void say(const std::string& text) const { options_.say(options_.path + ": " + text); }

  Options options_;
  int socket_ = -1;
  int stopping_;  ///< an eventfd, readable once stopped
  bool dialled_ = false;
  std::chrono::milliseconds pause_;
};

/// Throws Error(config) naming `key` if LiveInput does not support `path`.
void check_live_path(const std::string& key, const std::string& path);

}  // namespace isthmus::data
