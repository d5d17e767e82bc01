#pragma once
// Plain TCP on this machine, for actions that Isthmus does not offer: holding a port, and sending garbage.

#include <cstdint>
#include <string>
#include <string_view>

namespace isthmus {

/// Listens at a free port and never answers.
class BusyPort {
 public:
  BusyPort();
  ~BusyPort();
  BusyPort(const BusyPort&) = delete;
  BusyPort& operator=(const BusyPort&) = delete;
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

/// Connects to a port of this machine and keeps the connection. Fails the test if no process listens there.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port);
  ~Stranger();
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void say(std::string_view bytes) const;
  /// Whether the other end closes the connection within ten seconds.
  [[nodiscard]] bool is_shown_out() const;

 private:
  int socket_;
};

/// Sends a request to a port of this machine, and returns the answer up to the end of the connection.
[[nodiscard]] std::string answer_from(std::uint16_t port, std::string_view request);

}  // namespace isthmus
