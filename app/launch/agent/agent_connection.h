#pragma once
// A site's agent's connection to a launch. A launch that does not read must not delay the workers or their
// supervision: output lines that do not fit are dropped.

#include <cstdint>
#include <string>

#include "launch/agent/agent_messages.h"

namespace isthmus::app {

class AgentConnection {
 public:
  /// Takes the socket over.
  explicit AgentConnection(int fd);
  ~AgentConnection();
  AgentConnection(const AgentConnection&) = delete;
  AgentConnection& operator=(const AgentConnection&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  void send(const Message& message);
  /// Sends a line of output of this process.
  void send_output(const std::string& name, const std::string& text);
  void flush();
  /// Sends the rest at the end, as long as the launch may still read.
  void finish();
  /// Returns false when the launch has closed the connection.
  [[nodiscard]] bool receive();
  [[nodiscard]] LineBuffer& input() { return input_; }

 private:
  int fd_;
  std::string unsent_;
  std::uint64_t left_out_ = 0;
  LineBuffer input_;
};

}  // namespace isthmus::app
