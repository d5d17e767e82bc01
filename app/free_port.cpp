#include "free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "isthmus/base/error.h"

namespace isthmus::app {

std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && bind(fd, raw, size) == 0 && getsockname(fd, raw, &size) == 0;
  if (fd >= 0) close(fd);
  if (!found) throw Error(ErrorKind::network, "no free TCP port on this machine");
  return ntohs(address.sin_port);
}

}  // namespace isthmus::app
