#pragma once
// One TCP connection that carries frames. Lives on the io thread alone; kept alive by its coroutines.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/tls/role.h"
#include "net/link/socket_options.h"
#include "net/wire/frame.h"
#include "net/wire/frame_reader.h"

namespace isthmus::outer_sync::tls {
class Credentials;
class Stream;
}  // namespace isthmus::outer_sync::tls

namespace isthmus::outer_sync::transport {

class RunSecret;

struct WireCounters {
  std::atomic<std::uint64_t> payload{0};  ///< codec bytes, as packed as they went, written to sockets
  std::atomic<std::uint64_t> state{0};    ///< fp32 values of state streams written to sockets
  std::atomic<std::uint64_t> total{0};    ///< all bytes written to sockets, TCP/IP headers not counted
};

class Connection;

/// The connections of a node, for what concerns them all. Of its io thread.
class Connections {
 public:
  void add(Connection* connection) { all_.insert(connection); }
  void remove(Connection* connection) { all_.erase(connection); }
  /// Drops those whose other ends show certificates that have been revoked by now.
  void drop_revoked() const;

 private:
  std::set<Connection*> all_;
};

/// How all connections of a node behave.
struct LinkOptions {
  std::chrono::steady_clock::duration hold{};  ///< every frame waits that long before it is written
  /// A connection has ended when what was sent stays without TCP's acknowledgement for that long: a link that
  /// only loses packets would else look alive for a quarter of an hour. 0: the system's own limit.
  std::chrono::steady_clock::duration give_up{};
  /// Whoever connects has that long to show who it is.
  std::chrono::steady_clock::duration hello_limit = std::chrono::seconds(10);
  /// No more bytes than this wait for a peer that does not read; its lanes are then cut. It gets what still
  /// counts once more when one is up again.
  std::size_t max_queued = SIZE_MAX;
  /// Of bulk; its round trip is `hold` already.
  EmulateConfig emulate{};
  /// Whether the system is asked to spread packets where there is a rate (SO_MAX_PACING_RATE). This process
  /// keeps to the rate in any case, chunk by chunk.
  bool system_paces = true;
  /// Congestion control of connections that leave this machine: bbr, cubic or system.
  std::string congestion = "system";
  /// Connections are TLS, and both ends show a certificate of the run; null: neither.
  std::shared_ptr<tls::Credentials> credentials{};
  /// Without certificates: both ends show that they know it; null: neither.
  std::shared_ptr<RunSecret> secret{};
  /// Each connection is one of these for as long as it lives. Copies of the options share them.
  std::shared_ptr<Connections> connections = std::make_shared<Connections>();
};

/// This end has closed the connection and says why, as far as that is nobody's breach of the protocol.
class Dropped : public Error {
 public:
  explicit Dropped(const std::string& why) : Error(ErrorKind::network, why) {}
};

/// The other end of a connection, as far as this one knows beforehand.
struct OtherEnd {
  bool dialled = false;  ///< from here
  /// That its certificate must have, or that is shown with the run's secret; any if empty. The coordinator
  /// must have a coordinator's certificate, all others a member's.
  std::string name{};
  /// It may have no certificate yet, to ask for one (`Connection::newcomer`).
  bool may_be_newcomer = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(asio::ip::tcp::socket socket, WireCounters& counters, LinkOptions link, Trace& trace,
             OtherEnd other);
  ~Connection();

  /// Queues a frame; frames leave in order, and not before `hold` has passed, beside the one of all frames.
  void send(Frame frame, Clock::duration hold = {});
  /// The next frame. Throws asio::system_error when the connection ends, Dropped where `drop` has ended it,
  /// Damaged when it is not what was sent, and Error(network) when what arrives is no frame or is longer than
  /// `limit`. Chunks are put into memory of `chunks`, unless it is null: whoever is not known yet gets no
  /// buffer of a size that others need.
  using Received = ReceivedFrame;
  [[nodiscard]] asio::awaitable<Received> receive(std::size_t limit, const BufferPool* chunks = nullptr);
  /// Waits until nothing is being written and nothing that is due waits to be, or until the connection ends:
  /// whoever streams sends the next piece then.
  [[nodiscard]] asio::awaitable<void> drained();
  /// Whether a frame that is sent now need not wait for others.
  [[nodiscard]] bool ready() const;
  /// Called whenever it has become so.
  void when_ready(std::function<void()> call) { when_ready_ = std::move(call); }
  /// The system spreads packets at that rate from now on; 0 lifts the limit. Returns whether it can.
  bool pace(std::uint64_t bytes_per_second);
  /// The system takes no more than that beyond what is in flight: what it has can no longer be overtaken.
  void hold_unsent_at_most(std::uint32_t bytes);
  static constexpr std::uint32_t first_unsent = 64 * 1024;  ///< as it begins
  /// Congestion control begins to learn the path anew.
  void renew_congestion_control();
  [[nodiscard]] std::optional<PathInfo> path() { return path_info(socket_.native_handle()); }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::size_t queued_frames() const { return queue_.size(); }
  /// Nothing more is sent than what is queued. Once that has left the other end has a moment to read it and
  /// to close; until then `receive` must go on, since a system that closes with something unread takes back
  /// what it sent last.
  void close_when_sent();
  [[nodiscard]] bool closing() const { return closing_; }  ///< nothing new is sent
  void close();
  /// Closes it, and lets `receive` say why. The first reason counts.
  void drop(const std::string& why);
  [[nodiscard]] bool open() const { return socket_.is_open(); }
  /// Whether the other end has closed it, for one from which nothing more is being read.
  [[nodiscard]] bool hung_up();
  [[nodiscard]] const std::string& remote() const { return remote_; }
  [[nodiscard]] bool is_loopback() const { return loopback_; }  ///< it stays on this machine
  [[nodiscard]] asio::any_io_executor executor() { return socket_.get_executor(); }

  /// Both ends have shown who they are, as far as that is asked here. Throws Error(network) when the other is
  /// not the one meant. `receive` waits for it too.
  [[nodiscard]] asio::awaitable<void> introduced();
  /// What its certificate says; empty where there is none. Known from then on.
  [[nodiscard]] std::string peer_name() const;
  /// It has shown a certificate or the secret of the run, or else its token (which this end has to say):
  /// strangers do not push it out.
  [[nodiscard]] bool is_trusted() const { return trusted_; }
  void trust() { trusted_ = true; }
  /// Who holds it, as far as that can be told: the name in its certificate, otherwise the address (of IPv6
  /// the first 64 bits, which are one network's).
  [[nodiscard]] std::string holder() const;
  [[nodiscard]] std::optional<tls::Role> peer_role() const;
  /// It has none, where it should: nothing but an enrolment may be heard from it.
  [[nodiscard]] bool newcomer() const;
  /// That certificate has been revoked since.
  [[nodiscard]] bool peer_is_revoked() const;

  /// Must be spawned once; ends when the connection closes.
  [[nodiscard]] asio::awaitable<void> write_loop();

 private:
  struct Queued {
    Clock::time_point release;
    Frame frame;
  };
  [[nodiscard]] asio::awaitable<void> shake_hands();
  [[nodiscard]] asio::awaitable<void> show_certificates();
  void check_role_of_dialled() const;
  [[nodiscard]] asio::awaitable<void> write(const Frame& frame);
  [[nodiscard]] asio::awaitable<void> wait_for_the_other_end();
  /// With what it wants next.
  [[nodiscard]] asio::awaitable<void> fill(FrameReader& reader);

  asio::ip::tcp::socket socket_;
  std::shared_ptr<tls::Credentials> credentials_;
  std::shared_ptr<Connections> connections_;
  std::unique_ptr<tls::Stream> tls_;  ///< null: no TLS
  std::shared_ptr<RunSecret> secret_;
  OtherEnd other_;
  bool introduced_;      ///< by TLS or the run's secret, where there is any
  std::string dropped_;  ///< why
  std::string remote_, congestion_;
  std::string source_;  ///< of `holder`
  bool loopback_ = false, trusted_ = false;
  WireCounters& counters_;
  Clock::duration hold_, hello_limit_;
  Trace& trace_;
  std::deque<Queued> queue_;
  std::size_t queued_bytes_ = 0;
  asio::steady_timer wake_;
  asio::steady_timer written_;      ///< cancelled after every frame
  asio::steady_timer introducing_;  ///< cancelled when that is over
  std::function<void()> when_ready_;
  bool closing_ = false, writing_ = false;
  bool checked_ = false;  ///< the frame received last had a checksum
};

using ConnectionPtr = std::shared_ptr<Connection>;

/// Makes the connection and starts its writer.
[[nodiscard]] ConnectionPtr start_connection(asio::ip::tcp::socket socket, WireCounters& counters,
                                             const LinkOptions& link, Trace& trace, OtherEnd other);

/// Closes the connection unless it is cancelled (destroyed) within the time: nobody may keep us waiting
/// half-known. `closed` is called then, for whoever waits for something else than the connection.
class Watchdog {
 public:
  Watchdog(const ConnectionPtr& connection, Connection::Clock::duration limit,
           std::function<void()> closed = {});

 private:
  asio::steady_timer timer_;
};

/// Connections that have not said who they are. There are never more than a few: those who are trusted and
/// those who are not have places of their own, and where these are short the holder of most of them loses its
/// oldest. So no crowd at one address keeps out who comes from another, however fast it connects.
class UnknownConnections {
 public:
  static constexpr std::size_t most = 64;  ///< of either kind

  void add(const ConnectionPtr& connection);
  void remove(const ConnectionPtr& connection) { std::erase(waiting_, connection); }

  /// Counts a connection while it lives. Shares the list, which may be gone otherwise when the last coroutine
  /// is.
  class Guest {
   public:
    Guest(std::shared_ptr<UnknownConnections> list, ConnectionPtr connection)
        : list_(std::move(list)), connection_(std::move(connection)) {
      list_->add(connection_);
    }
    ~Guest() { list_->remove(connection_); }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

   private:
    std::shared_ptr<UnknownConnections> list_;
    ConnectionPtr connection_;
  };

 private:
  void make_room(bool trusted);

  std::deque<ConnectionPtr> waiting_;  ///< oldest first
};

}  // namespace isthmus::outer_sync::transport
