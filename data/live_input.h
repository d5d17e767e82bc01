#pragma once
// Bytes that come when they come: standard input, or a socket that is dialled again when it breaks.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace isthmus::data {

/// Used by one thread, but for stop().
class LiveInput {
 public:
  struct Options {
    std::string path;    ///< "-", "tcp://HOST:PORT" or "unix:///PATH"
    std::string reader;  ///< said to who gives the stream; of [A-Za-z0-9._-]
    /// Hears, as sentences, of connections that are made, cannot be made and break.
    std::function<void(const std::string&)> say;
  };
  /// Throws Error(config) for another path.
  explicit LiveInput(Options options);
  ~LiveInput();
  LiveInput(const LiveInput&) = delete;
  LiveInput& operator=(const LiveInput&) = delete;

  [[nodiscard]] const std::string& path() const { return options_.path; }
  /// Whether it is dialled: such a stream ends only where it says so, and of standard input, which cannot be
  /// dialled, the same is wanted from the beginning.
  [[nodiscard]] bool is_socket() const { return options_.path != standard_input; }

  /// Dials a socket until somebody answers, and tells him what was read so far: one line of JSON, {"reader":
  /// "NAME", "bytes": N, "lines": N}. At once for standard input. False if it was stopped.
  [[nodiscard]] bool open(std::uint64_t bytes, std::uint64_t lines);
  /// Whether read() would wait.
  [[nodiscard]] bool quiet() const;
  /// Waits for bytes: how many; 0 at the end, where the connection is broken, and where it was stopped.
  /// Throws Error(data) where standard input cannot be read.
  [[nodiscard]] std::size_t read(std::span<char> bytes);
  /// Whether the connection is no longer there.
  [[nodiscard]] bool broken() const { return is_socket() && socket_ < 0; }
  [[nodiscard]] bool stopped() const;
  /// Ends all waiting. Any thread.
  void stop();

  static constexpr const char* standard_input = "-";

 private:
  /// Whether the descriptor is ready for `events` in time; never where it was stopped.
  [[nodiscard]] bool wait(int descriptor, short events, int milliseconds) const;
  /// Empty, or why not.
  [[nodiscard]] std::string connect();
  [[nodiscard]] std::string finish_connecting(int domain, const void* address, std::size_t size);
  [[nodiscard]] std::string greet(std::uint64_t bytes, std::uint64_t lines);
  void close();
  /// Between two tries, longer each time until bytes have come.
  void rest();
  void say(const std::string& text) const { options_.say(options_.path + ": " + text); }

  Options options_;
  int socket_ = -1;
  int stopping_;  ///< an eventfd, readable once it was stopped
  bool dialled_ = false;
  std::chrono::milliseconds pause_;
};

/// Throws Error(config) naming `key` unless it is a path that LiveInput takes.
void check_live_path(const std::string& key, const std::string& path);

}  // namespace isthmus::data
