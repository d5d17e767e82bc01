#pragma once
// A TCP forwarder on loopback that cuts, refuses, silences, delays or damages the connections it carries.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace isthmus::outer_sync {

class Forwarder {
 public:
  /// Forwards to `target`, a numeric HOST:PORT that need not be open yet. Bytes arrive `delay` later in each
  /// direction; the target sees connections from the address `from`.
  explicit Forwarder(const std::string& target, std::chrono::milliseconds delay = {},
                     const std::string& from = "127.0.0.1");
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  [[nodiscard]] std::string address() const;
  /// Connections accepted so far.
  [[nodiscard]] std::size_t connections() const { return connections_; }

  /// Bytes received from each client so far, at most the first 64 KiB of each connection.
  [[nodiscard]] std::vector<std::string> heard();

  /// Closes all connections; returns when they are closed.
  void cut();
  /// Breaks each new connection after 1 to `most` bytes; 0 breaks none.
  void cut_within(std::size_t most) { cut_within_ = most; }
  /// Flips one bit of each new connection within its next `most` bytes; 0 flips none.
  void damage_within(std::size_t most) { damage_within_ = most; }
  /// Bits flipped so far.
  [[nodiscard]] std::size_t damaged() const { return damaged_; }
  /// From now on, closes new connections at once, or accepts them again.
  void refuse(bool yes = true) { refuse_ = yes; }
  /// Closes all connections and accepts no new ones.
  void cut_off() {
    refuse();
    cut();
  }
  /// Stops passing bytes without closing anything.
  void silence() { silent_ = true; }
  [[nodiscard]] bool is_silent() const { return silent_; }
  /// Ends a silence and closes all connections that existed during it.
  void speak();

 private:
  struct Pair;
  struct Line;
  [[nodiscard]] asio::awaitable<void> accept_loop();
  [[nodiscard]] asio::awaitable<void> carry(asio::ip::tcp::socket client);
  [[nodiscard]] asio::awaitable<void> pump(std::shared_ptr<Pair> pair, bool forth);
  [[nodiscard]] asio::awaitable<void> pump_later(std::shared_ptr<Pair> pair, bool forth);
  [[nodiscard]] asio::awaitable<void> arrive(std::shared_ptr<Pair> pair, std::shared_ptr<Line> line,
                                             bool forth);

  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::endpoint target_, from_;
  std::chrono::milliseconds delay_;
  std::vector<std::weak_ptr<Pair>> pairs_;
  std::vector<std::shared_ptr<std::string>> heard_;
  std::vector<std::shared_ptr<Pair>> silent_pairs_;  ///< neither end may see the other one's close
  std::atomic<std::size_t> connections_ = 0, cut_within_ = 0, damage_within_ = 0, damaged_ = 0;
  std::atomic<bool> refuse_ = false, silent_ = false;
  std::thread thread_;
};

}  // namespace isthmus::outer_sync
