#include "isthmus/trainer/rank_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <type_traits>

namespace isthmus::trainer {
namespace {

/// Sent before each answer.
struct Verdict {
  static constexpr std::array<char, 8> usual_mark = {'i', 's', 't', 'h', 'm', 'u', 's', '\n'};
  std::array<char, 8> mark = usual_mark;
  std::uint32_t failed = 0;
  ErrorKind kind = ErrorKind::network;
};

/// A shell that prints something of its own would be read as an answer.
void check_mark(const Verdict& verdict, const std::string& sender) {
  if (verdict.mark == Verdict::usual_mark) return;
  std::string text;
  for (const char c : verdict.mark) {
    if (c == '\n') break;
    text += c >= ' ' && c <= '~' ? c : '?';
  }
  config_error(
      sender + " sent '" + text +
      "' instead of an answer; expected that the command of replica.reach prints nothing of its own: "
      "look at what the shell there prints at login");
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> room_of(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_writable_bytes(std::span(&value, 1));
}

[[noreturn]] void lost(const char* doing, const std::string& other, ssize_t result) {
  const std::string why = result == 0 ? "it closed the connection" : std::strerror(errno);
  throw Error(ErrorKind::network, std::string(doing) + " " + other + " failed: " + why);
}

constexpr std::uint64_t longest_text = 1 << 24;

}  // namespace

RankLink::~RankLink() { close(socket_); }
void RankLink::abort() noexcept { shutdown(socket_, SHUT_RDWR); }

void RankLink::send_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) lost("writing to", other_, n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void RankLink::receive_bytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) lost("reading from", other_, n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void RankLink::send(const RankOrder& order, std::span<const std::span<const std::byte>> payload) {
  const std::lock_guard lock(sending_);
  send_bytes(bytes_of(order));
  for (const auto& part : payload) send_bytes(part);
}
RankOrder RankLink::order() {
  RankOrder order;
  receive_bytes(room_of(order));
  return order;
}

void RankLink::show_presence() noexcept {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock) return;  // the bytes that are sent show it too
  const RankOrder order{.what = RankOrder::What::here};
  const auto bytes = bytes_of(order);
  const auto n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n <= 0) return;
  try {
    send_bytes(bytes.subspan(static_cast<std::size_t>(n)));
  } catch (const Error&) {
    // The other end is gone.
  }
}

void RankLink::send(const RankAnswer& answer) {
  send_bytes(bytes_of(Verdict{}));
  send_bytes(bytes_of(answer));
}
void RankLink::send_failure(const Error& error) {
  send_bytes(bytes_of(Verdict{.failed = 1, .kind = error.kind()}));
  send_text(error.what());
}
RankAnswer RankLink::answer() {
  Verdict verdict;
  receive_bytes(room_of(verdict));
  check_mark(verdict, other_);
  if (verdict.failed != 0) throw Error(verdict.kind, text());
  RankAnswer answer;
  receive_bytes(room_of(answer));
  return answer;
}

void RankLink::send_text(const std::string& text) {
  const std::uint64_t size = text.size();
  send_bytes(bytes_of(size));
  send_bytes(std::as_bytes(std::span(text)));
}
std::string RankLink::text() {
  std::uint64_t size = 0;
  receive_bytes(room_of(size));
  if (size > longest_text)
    throw Error(ErrorKind::network, other_ + " announces a text of " + std::to_string(size) +
                                        " bytes; expected at most " + std::to_string(longest_text));
  std::string text(size, '\0');
  receive_bytes(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace isthmus::trainer
