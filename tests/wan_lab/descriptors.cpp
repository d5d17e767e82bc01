#include "descriptors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace isthmus::wan_lab {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int checked(int result, const std::string& what) {
  if (result < 0) fail(what);
  return result;
}

Descriptor open_device(const std::string& name_space) {
  const Descriptor home(checked(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "/proc/self/ns/net"));
  const auto path = "/run/netns/" + name_space;
  const Descriptor there(checked(open(path.c_str(), O_RDONLY | O_CLOEXEC), path));
  checked(setns(there.get(), CLONE_NEWNET), "entering " + path);
  Descriptor device(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  checked(setns(home.get(), CLONE_NEWNET), "leaving " + path);
  checked(device.get(), "/dev/net/tun");

  ifreq request{};
  std::strncpy(request.ifr_name, device_name, IFNAMSIZ - 1);
  request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL);
  checked(ioctl(device.get(), TUNSETIFF, &request), fmt::format("making {} in {}", device_name, name_space));
  checked(ioctl(device.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6),
          "offloads of " + name_space);
  return device;
}

Descriptor listen_on(const std::string& path) {
  Descriptor listener(
      checked(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "control socket"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw std::invalid_argument("--control: path too long: " + path);
  path.copy(address.sun_path, path.size());
  checked(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), path);
  checked(listen(listener.get(), 16), path);
  return listener;
}

bool become_punctual() {
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param priority{.sched_priority = 1};
  return sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

}  // namespace isthmus::wan_lab
