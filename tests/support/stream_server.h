#pragma once
// A server that sends a stream of documents over a socket, in pieces of any size, with connections that break
// anywhere.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus {

/// Lines of JSONL, each with 1 to `max_words` words; append `end_of_stream` to end the stream.
inline std::string stream_of_lines(std::uint32_t seed, std::size_t lines, std::uint32_t max_words = 40) {
  const char* const words[] = {"stone", "river", "light", "small", "bridge", "carries", "the", "north"};
  std::minstd_rand random(seed);
  std::string text;
  for (std::size_t i = 0; i < lines; ++i) {
    text += R"({"text": ")";
    for (auto left = 1 + random() % max_words; left > 0; --left)
      text += std::string(words[random() % 8]) + " ";
    text += "\"}\n";
  }
  return text;
}
inline const std::string end_of_stream = "{\"end\": true}\n";

struct StreamBehaviour {
  std::uint32_t seed = 1;                 ///< for the sizes of pieces
  std::size_t break_after = 0;            ///< approximate bytes after which each connection breaks; 0: never
  std::size_t hold_at = ~std::size_t{0};  ///< byte of the stream at which it waits for release()
};

/// Sends each reader the stream from the byte that its greeting names.
class StreamServer {
 public:
  /// `stream` returns the whole stream for the reader with this name.
  StreamServer(const std::filesystem::path& socket, std::function<std::string(const std::string&)> stream,
               StreamBehaviour behaviour = {})
      : address_("unix://" + socket.string()),
        stream_(std::move(stream)),
        behaviour_(behaviour),
        listening_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (socket.string().size() >= sizeof address.sun_path) throw std::runtime_error("too long: " + address_);
    std::strcpy(address.sun_path, socket.c_str());
    if (::bind(listening_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listening_, 8) != 0)
      throw std::runtime_error("cannot listen at " + address_);
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~StreamServer() {
    stopped_ = true;
    release();
    ::shutdown(listening_, SHUT_RDWR);
    accepting_.join();
    for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
    for (auto& thread : serving_) thread.join();
    for (const int connection : connections_) ::close(connection);
    ::close(listening_);
  }
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  /// Number of connections so far.
  [[nodiscard]] std::size_t connections() const { return count_; }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    release_.notify_all();
  }

 private:
  void accept_all() {
    for (int connection = -1; (connection = ::accept(listening_, nullptr, nullptr)) >= 0;) {
      const std::lock_guard lock(mutex_);
      connections_.push_back(connection);
      serving_.emplace_back([this, connection, number = count_++] {
        serve(connection, number);
        ::shutdown(connection, SHUT_RDWR);
      });
    }
  }

  void serve(int connection, std::size_t number) {
    std::string greeting;
    for (char c = 0; c != '\n'; greeting += c) {
      if (::recv(connection, &c, 1, 0) != 1) return;
    }
    char name[65] = {};
    std::size_t at = 0;
    if (std::sscanf(greeting.c_str(), R"({"reader": "%64[^"]", "bytes": %zu,)", name, &at) != 2) return;
    const auto all = stream_(name);
    std::minstd_rand random(behaviour_.seed + static_cast<std::uint32_t>(number));
    auto end = all.size();
    if (behaviour_.break_after > 0)
      end = std::min(end, at + behaviour_.break_after / 2 + random() % behaviour_.break_after);
    while (at < end) {
      if (at >= behaviour_.hold_at) {
        std::unique_lock lock(mutex_);
        release_.wait(lock, [&] { return released_; });
      }
      if (stopped_) return;
      auto piece = std::min<std::size_t>(end - at, 1 + random() % 3000);
      if (at < behaviour_.hold_at) piece = std::min(piece, behaviour_.hold_at - at);
      const auto sent = ::send(connection, all.data() + at, piece, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
  }

  std::string address_;
  std::function<std::string(const std::string&)> stream_;
  StreamBehaviour behaviour_;
  int listening_;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::size_t> count_ = 0;
  std::mutex mutex_;
  std::condition_variable release_;
  bool released_ = false;
  std::vector<int> connections_;
  std::vector<std::thread> serving_;
  std::thread accepting_;
};

}  // namespace isthmus
