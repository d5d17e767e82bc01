#include "run/process/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "isthmus/base/error.h"

namespace isthmus::app {

namespace {

/// Whether `port` of this machine can be bound now.
bool is_port_free(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return bound;
}

}  // namespace

std::uint16_t free_port() {
  // Random: processes that search at the same time would otherwise all find the same port.
  std::random_device source;
  std::uniform_int_distribution<int> any(20'000, 32'767);
  for (int i = 0; i < 1'000; ++i) {
    const auto port = static_cast<std::uint16_t>(any(source));
    if (is_port_free(port)) return port;
  }
  throw Error(ErrorKind::network,
              "no free TCP port on this machine between 20000 and 32767; end programs that hold ports there");
}

}  // namespace isthmus::app
