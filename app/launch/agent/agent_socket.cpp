#include "launch/agent/agent_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"

namespace isthmus::app {

namespace {

/// An open folder, addressed as /proc/self/fd/N: its path may be too long for a socket address.
struct AgentFolder {
  explicit AgentFolder(const AgentPlace& place)
      : fd(open(place.agents().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}
  ~AgentFolder() {
    if (fd >= 0) close(fd);
  }
  AgentFolder(const AgentFolder&) = delete;
  AgentFolder& operator=(const AgentFolder&) = delete;
  int fd;
};

sockaddr_un agent_address(const AgentFolder& folder, const AgentPlace& place) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto path = fmt::format("/proc/self/fd/{}/{}.sock", folder.fd, place.site);
  if (path.size() >= sizeof address.sun_path)
    config_error("the name of site " + place.site + " is too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

[[noreturn]] void fail_at_agents(const AgentPlace& place, const char* what) {
  data_error(fmt::format("cannot {} in {}: {}", what, place.agents().string(), std::strerror(errno)));
}

int open_lock(const AgentPlace& place, int flags) {
  return open((place.agents() / (place.site + ".lock")).c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
}

}  // namespace

int lock_agent(const AgentPlace& place) {
  make_private_folder(place.folder);
  make_private_folder(place.agents());
  const int fd = open_lock(place, O_CREAT);
  if (fd < 0) fail_at_agents(place, "create a lock");
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

bool agent_lives(const AgentPlace& place) {
  const int fd = open_lock(place, 0);
  if (fd < 0) return false;
  const bool free = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return !free;
}

int listen_as_agent(const AgentPlace& place) {
  const AgentFolder folder(place);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || folder.fd < 0) fail_at_agents(place, "create a socket");
  const auto address = agent_address(folder, place);
  unlink(address.sun_path);
  const auto mask = umask(0177);
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  umask(mask);
  if (!bound || listen(fd, 4) != 0) fail_at_agents(place, "listen on a socket");
  return fd;
}

int connect_to_agent(const AgentPlace& place) {
  const AgentFolder folder(place);
  if (folder.fd < 0) return -1;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto address = agent_address(folder, place);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

void unlink_agent(const AgentPlace& place) {
  const AgentFolder folder(place);
  if (folder.fd >= 0) unlinkat(folder.fd, (place.site + ".sock").c_str(), 0);
}

}  // namespace isthmus::app
