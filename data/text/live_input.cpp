#include "text/live_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::data {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view tcp_scheme = "tcp://", unix_scheme = "unix://";
constexpr std::chrono::milliseconds first_pause = 250ms, max_pause = 15s;
constexpr int answer_milliseconds = 10'000;
constexpr int forever = -1;

std::string reason(int number) { return std::generic_category().message(number); }

struct HostPort {
  std::string host, port;
};

/// Splits "HOST:PORT" or "[HOST]:PORT"; nullopt for anything else.
std::optional<HostPort> host_and_port(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size()) return {};
  auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos) return {};
  if (const auto number = std::stoi(std::string(port)); number == 0 || number > 65535) return {};
  return HostPort{std::string(host), std::string(port)};
}

/// Detects within a minute a peer that vanished without closing the connection.
void keep_alive(int number) {
  const int on = 1, idle = 30, interval = 10, count = 3;
  ::setsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(number, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(number, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(number, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

}  // namespace

void check_live_path(const std::string& key, const std::string& path) {
  if (path == LiveInput::standard_input) return;
  if (path.starts_with(tcp_scheme) && host_and_port(std::string_view(path).substr(tcp_scheme.size()))) return;
  const auto file = path.starts_with(unix_scheme) ? path.substr(unix_scheme.size()) : "";
  if (file.starts_with('/') && file.size() < sizeof sockaddr_un{}.sun_path) return;
  config_error(key + " is \"" + path + "\"; expected - (standard input), tcp://HOST:PORT or unix:///PATH");
}

LiveInput::LiveInput(Options options) : options_(std::move(options)), stopping_(-1), pause_(first_pause) {
  check_live_path("data.path", options_.path);
  stopping_ = ::eventfd(0, EFD_CLOEXEC);
  if (stopping_ < 0) data_error("cannot wait for " + path() + ": " + reason(errno));
}

LiveInput::~LiveInput() {
  close();
  ::close(stopping_);
}

void LiveInput::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void LiveInput::stop() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(stopping_, &one, sizeof one));
}

bool LiveInput::stopped() const {
  pollfd stop{stopping_, POLLIN, 0};
  return ::poll(&stop, 1, 0) > 0;
}

bool LiveInput::wait(int descriptor, short events, int milliseconds) const {
  pollfd both[] = {{stopping_, POLLIN, 0}, {descriptor, events, 0}};
  int ready = -1;
  do {
    ready = ::poll(both, 2, milliseconds);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && both[0].revents == 0 && both[1].revents != 0;
}

bool LiveInput::quiet() const { return !wait(is_socket() ? socket_ : STDIN_FILENO, POLLIN, 0); }

std::size_t LiveInput::read(std::span<char> bytes) {
  const int from = is_socket() ? socket_ : STDIN_FILENO;
  if (bytes.empty() || from < 0) return 0;
  ssize_t got = -1;
  do {
    if (!wait(from, POLLIN, forever)) return 0;
    got = ::read(from, bytes.data(), bytes.size());
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  if (got > 0) {
    pause_ = first_pause;
    return static_cast<std::size_t>(got);
  }
  const auto why = got == 0 ? "was closed by the other end" : "broke: " + reason(errno);
  if (!is_socket()) {
    if (got == 0) return 0;
    data_error("standard input: " + why);
  }
  say("the connection " + why + "; reconnecting");
  close();
  return 0;
}

bool LiveInput::open(std::uint64_t bytes, std::uint64_t lines) {
  if (!is_socket()) return !stopped();
  close();
  std::string said;
  for (; !stopped(); dialled_ = true) {
    if (dialled_) rest();
    auto why = connect();
    if (why.empty()) why = greet(bytes, lines);
    if (why.empty()) {
      say(fmt::format("connected, from byte {} and line {} on", bytes, lines));
      dialled_ = true;
      return true;
    }
    close();
    if (why != said) say("cannot connect: " + why + "; trying again");
    said = why;
  }
  return false;
}

void LiveInput::rest() {
  static_cast<void>(wait(-1, 0, static_cast<int>(pause_.count())));
  pause_ = std::min(2 * pause_, max_pause);
}

std::string LiveInput::connect() {
  if (path().starts_with(unix_scheme)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1, unix_scheme.size());
    return finish_connecting(AF_UNIX, &address, sizeof address);
  }
  const auto where = host_and_port(std::string_view(path()).substr(tcp_scheme.size())).value();
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found); error != 0)
    return ::gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  std::string why = "the host has no address";
  for (const auto* one = found; one != nullptr; one = one->ai_next) {
    why = finish_connecting(one->ai_family, one->ai_addr, one->ai_addrlen);
    if (why.empty()) break;
  }
  return why;
}

std::string LiveInput::finish_connecting(int domain, const void* address, std::size_t size) {
  close();
  socket_ = ::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) return reason(errno);
  if (domain != AF_UNIX) keep_alive(socket_);
  if (::connect(socket_, static_cast<const sockaddr*>(address), static_cast<socklen_t>(size)) == 0) return {};
  if (errno != EINPROGRESS) return reason(errno);
  if (!wait(socket_, POLLOUT, answer_milliseconds)) return "no answer";
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? "" : reason(error);
}

std::string LiveInput::greet(std::uint64_t bytes, std::uint64_t lines) {
  const auto reader =
      nlohmann::json(options_.reader).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto line = fmt::format("{{\"reader\": {}, \"bytes\": {}, \"lines\": {}}}\n", reader, bytes, lines);
  // A new connection has room for a line.
  const auto sent = ::send(socket_, line.data(), line.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(line.size())) return {};
  return sent < 0 ? reason(errno) : "the connection took only a part of the first line";
}

}  // namespace isthmus::data
