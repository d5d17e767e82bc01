#include "tcp_flows.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint16_t control_port = 7000;
constexpr std::size_t buffer_bytes = 256 << 10;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

long checked(long result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

class Socket {
 public:
  explicit Socket(int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) : fd_(fd) {
    checked(fd, "socket");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

  template <typename T>
  void set(int level, int option, const T& value, const char* what) const {
    checked(setsockopt(fd_, level, option, &value, sizeof value), what);
  }

  template <typename T>
  void write_all(const T& value) const {
    checked(send(fd_, &value, sizeof value, MSG_NOSIGNAL), "send");
  }

  template <typename T>
  T read_all() const {
    T value;
    if (checked(recv(fd_, &value, sizeof value, MSG_WAITALL), "recv") != sizeof value) {
      throw std::runtime_error("the other end went away");
    }
    return value;
  }

 private:
  int fd_;
};

sockaddr_in endpoint(const char* address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  if (inet_pton(AF_INET, address, &result.sin_addr) != 1) throw std::invalid_argument("no address");
  return result;
}

Socket connected(Socket socket, const char* address, std::uint16_t port) {
  const auto to = endpoint(address, port);
  checked(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), "connect");
  return socket;
}

Socket listening(Socket socket, std::uint16_t port) {
  const auto at = endpoint("0.0.0.0", port);
  socket.set(SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  checked(bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), "bind");
  checked(listen(socket.get(), 64), "listen");
  return socket;
}

// Set before connect and listen, because the handshake announces the size of the receive buffer.
Socket flow_socket(const Case& c) {
  Socket flow;
  if (c.cc[0]) {
    checked(setsockopt(flow.get(), IPPROTO_TCP, TCP_CONGESTION, c.cc.data(),
                       static_cast<socklen_t>(std::strlen(c.cc.data()))),
            c.cc.data());
  }
  if (c.sndbuf) flow.set(SOL_SOCKET, SO_SNDBUF, c.sndbuf, "SO_SNDBUF");
  if (c.rcvbuf) flow.set(SOL_SOCKET, SO_RCVBUF, c.rcvbuf, "SO_RCVBUF");
  if (c.lowat) flow.set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, c.lowat, "TCP_NOTSENT_LOWAT");
  if (c.pace > 0) {
    const auto rate = static_cast<std::uint64_t>(c.pace * c.payload_rate / 8 / c.flows);
    flow.set(SOL_SOCKET, SO_MAX_PACING_RATE, rate, "SO_MAX_PACING_RATE");
  }
  return flow;
}

struct Flow {
  Socket socket;
  std::uint64_t to_send = 0, to_receive = 0;
};

// Sends and receives as much as one flow can without blocking. The bytes have no meaning.
void move(Flow& flow, short events, std::vector<char>& buffer) {
  if (events & POLLIN) {
    const auto most = std::min<std::uint64_t>(buffer.size(), flow.to_receive);
    const auto n = recv(flow.socket.get(), buffer.data(), most,
                        MSG_DONTWAIT | MSG_TRUNC);  // MSG_TRUNC counts without copying
    if (n == 0) throw std::runtime_error("a flow was closed");
    if (n < 0 && errno != EAGAIN) fail("recv");
    flow.to_receive -= static_cast<std::uint64_t>(std::max<long>(0, n));
  }
  if (events & POLLOUT) {
    const auto most = std::min<std::uint64_t>(buffer.size(), flow.to_send);
    const auto n = send(flow.socket.get(), buffer.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) fail("send");
    flow.to_send -= static_cast<std::uint64_t>(std::max<long>(0, n));
  }
}

// Sends and receives everything; notifies the other end when all has arrived.
void transfer(std::vector<Flow>& flows, const Socket& control, bool receives, std::vector<char>& buffer) {
  std::vector<pollfd> polled(flows.size());
  bool told = !receives;
  for (;;) {
    bool busy = false, receiving = false;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      const auto& flow = flows[i];
      const auto events = static_cast<short>((flow.to_send ? POLLOUT : 0) | (flow.to_receive ? POLLIN : 0));
      polled[i] = {events ? flow.socket.get() : -1, events, 0};
      busy |= events != 0;
      receiving |= flow.to_receive != 0;
    }
    if (!told && !receiving) control.write_all('d'), told = true;
    if (!busy) return;
    checked(poll(polled.data(), polled.size(), -1), "poll");
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (polled[i].fd >= 0) move(flows[i], polled[i].revents & (POLLIN | POLLOUT), buffer);
    }
  }
}

void load(std::vector<Flow>& flows, const Case& c, bool sends, bool receives) {
  const auto part = c.bytes / flows.size();
  for (auto& flow : flows) flow.to_send = sends ? part : 0, flow.to_receive = receives ? part : 0;
}

std::uint32_t retransmissions(const std::vector<Flow>& flows) {
  std::uint32_t sum = 0;
  for (const auto& flow : flows) {
    tcp_info info{};
    socklen_t size = sizeof info;
    getsockopt(flow.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size);
    sum += info.tcpi_total_retrans;
  }
  return sum;
}

}  // namespace

void serve() {
  const auto listener = listening(Socket(), control_port);
  fmt::print("ready\n");
  std::fflush(stdout);
  const Socket control(
      static_cast<int>(checked(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept")));
  control.set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  const auto c = control.read_all<Case>();
  const auto flow_listener = listening(flow_socket(c), control_port + 1);
  control.write_all('r');
  std::vector<Flow> flows;
  for (int i = 0; i < c.flows; ++i) {
    flows.push_back({Socket(static_cast<int>(
                         checked(accept4(flow_listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept"))),
                     0, 0});
  }
  std::vector<char> buffer(buffer_bytes);
  for (int round = 0; round < c.rounds; ++round) {
    if (c.both) control.read_all<char>();
    load(flows, c, c.both, true);
    transfer(flows, control, true, buffer);
    if (c.both) control.read_all<char>();
  }
  control.read_all<char>();
}

void drive(const char* address, const Case& c) {
  const auto control = connected(Socket(), address, control_port);
  control.set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  control.write_all(c);
  control.read_all<char>();
  std::vector<Flow> flows;
  for (int i = 0; i < c.flows; ++i)
    flows.push_back({connected(flow_socket(c), address, control_port + 1), 0, 0});
  std::vector<char> buffer(buffer_bytes);
  for (int round = 0; round < c.rounds; ++round) {
    if (round > 0 && c.gap > 0) std::this_thread::sleep_for(std::chrono::duration<double>(c.gap));
    const auto start = Clock::now();
    if (c.both) control.write_all('g');
    load(flows, c, true, c.both);
    transfer(flows, control, c.both, buffer);
    control.read_all<char>();
    fmt::print("{:.6f}\n", std::chrono::duration<double>(Clock::now() - start).count());
  }
  fmt::print("{}\n", retransmissions(flows));
  control.write_all('e');
}

}  // namespace isthmus
