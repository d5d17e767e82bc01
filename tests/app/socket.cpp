#include "socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>

namespace isthmus {
namespace {

sockaddr_in local(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

}  // namespace

BusyPort::BusyPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  auto address = local(0);
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_TRUE(bind(socket_, raw, size) == 0 && listen(socket_, 1) == 0 &&
              getsockname(socket_, raw, &size) == 0);
  port_ = ntohs(address.sin_port);
}
BusyPort::~BusyPort() { close(socket_); }

Stranger::Stranger(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const auto address = local(port);
  EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << "no process listens at port " << port;
}
Stranger::~Stranger() { close(socket_); }

void Stranger::say(std::string_view bytes) const {
  EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

bool Stranger::is_shown_out() const {
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char bytes[256];  // bytes received before the end
  auto got = recv(socket_, bytes, sizeof bytes, 0);
  while (got > 0) got = recv(socket_, bytes, sizeof bytes, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

std::string answer_from(std::uint16_t port, std::string_view request) {
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = local(port);
  const timeval limit{.tv_sec = 30, .tv_usec = 0};
  setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  EXPECT_EQ(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << "no process listens at port " << port;
  EXPECT_EQ(send(client, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string out;
  char bytes[16384];
  for (auto got = recv(client, bytes, sizeof bytes, 0); got > 0; got = recv(client, bytes, sizeof bytes, 0))
    out.append(bytes, static_cast<std::size_t>(got));
  close(client);
  return out;
}

}  // namespace isthmus
