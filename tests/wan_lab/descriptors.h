#pragma once
// The forwarder's descriptors: devices in the namespaces of the sites, and the socket for its orders.

#include <unistd.h>

#include <string>
#include <utility>

namespace isthmus::wan_lab {

inline constexpr const char* device_name = "wan0";

[[noreturn]] void fail(const std::string& what);
/// Throws std::system_error with `what` if the result of a system call is negative.
int checked(int result, const std::string& what);

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// A device belongs to the namespace in which it is opened, not to that of the process that uses its
/// descriptor.
Descriptor open_device(const std::string& name_space);
Descriptor listen_on(const std::string& path);
/// Makes timers precise and takes precedence over other work on the machine. If this is not permitted, the
/// forwarder is less punctual; `status` reports it.
bool become_punctual();

}  // namespace isthmus::wan_lab
