#include "launch/agent/agent_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launch/processes/pipe.h"

namespace isthmus::app {

AgentConnection::AgentConnection(int fd) : fd_(fd) { make_nonblocking(fd); }
AgentConnection::~AgentConnection() { close(fd_); }

void AgentConnection::send(const Message& message) {
  unsent_ += line_of(message);
  flush();
}

void AgentConnection::send_output(const std::string& name, const std::string& text) {
  constexpr std::size_t max_unsent = std::size_t{1} << 20;
  if (unsent_.size() > max_unsent) {
    ++left_out_;
    return;
  }
  if (left_out_ > 0)
    send({{"output", name},
          {"text", fmt::format("({} lines are left out here)", std::exchange(left_out_, 0))}});
  send({{"output", name}, {"text", text}});
}

void AgentConnection::flush() {
  while (!unsent_.empty()) {
    const auto n = ::send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    unsent_.erase(0, static_cast<std::size_t>(n));
  }
}

void AgentConnection::finish() {
  for (int tries = 0; tries < 20 && !unsent_.empty(); ++tries) {
    pollfd writable{fd_, POLLOUT, 0};
    poll(&writable, 1, 100);
    flush();
  }
}

bool AgentConnection::receive() {
  char bytes[1 << 16];
  const auto n = read(fd_, bytes, sizeof bytes);
  if (n > 0) input_.add({bytes, static_cast<std::size_t>(n)});
  return n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace isthmus::app
