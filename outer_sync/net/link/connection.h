#pragma once
// One TCP connection that carries frames. Used on the io thread only; its coroutines keep it alive.

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
class Mailbox;

struct WireCounters {
  std::atomic<std::uint64_t> payload{0};  ///< codec bytes written to sockets, after packing
  std::atomic<std::uint64_t> state{0};    ///< bytes of fp32 values of state streams written to sockets
  std::atomic<std::uint64_t> total{0};    ///< all bytes written to sockets, TCP/IP headers not counted
};

class Connection;

/// All connections of a node. Used on its io thread only.
class Connections {
 public:
  void add(Connection* connection) { all_.insert(connection); }
  void remove(Connection* connection) { all_.erase(connection); }
  /// Drops connections with certificates that have been revoked by now.
  void drop_revoked() const;

 private:
  std::set<Connection*> all_;
};

/// Options of all connections of a node.
struct LinkOptions {
  std::chrono::steady_clock::duration hold{};  ///< delay of every frame before it is written (emulation)
  /// Ends a connection when sent data stays unacknowledged for this long; otherwise a link that loses all
  /// packets would seem alive for a quarter of an hour. 0: the system's own limit.
  std::chrono::steady_clock::duration give_up{};
  /// Time for a new connection to authenticate.
  std::chrono::steady_clock::duration hello_limit = std::chrono::seconds(10);
  /// Maximum bytes queued for a peer that does not read; its lanes are then cut. Frames that still count are
  /// sent again once a lane is back.
  std::size_t max_queued = SIZE_MAX;
  /// Emulated link for bulk connections; `hold` already contains its round trip.
  EmulateConfig emulate{};
  /// Whether to ask the system to pace packets if there is a rate (SO_MAX_PACING_RATE). This process keeps to
  /// the rate in any case, chunk by chunk.
  bool system_paces = true;
  /// Congestion control of connections that leave this machine: bbr, cubic or system.
  std::string congestion = "system";
  /// Connections use TLS, and both ends present a certificate of the run; null: no TLS.
  std::shared_ptr<tls::Credentials> credentials{};
  /// Without certificates: both ends prove that they know this secret; null: no authentication.
  std::shared_ptr<RunSecret> secret{};
  /// Leads to peers with the address of a mailbox; null without network.mailbox.
  std::shared_ptr<Mailbox> mailbox{};
  /// Every open connection is in this list. Copies of the options share it.
  std::shared_ptr<Connections> connections = std::make_shared<Connections>();
};

/// This end has closed the connection, for a reason that is not a breach of the protocol.
class Dropped : public Error {
 public:
  explicit Dropped(const std::string& why) : Error(ErrorKind::network, why) {}
};

/// Expected other end of a connection.
struct OtherEnd {
  bool dialled = false;  ///< this end has dialled
  /// Name that its certificate must have, or that the proof of the run's secret must contain; any if empty. A
  /// dialled coordinator needs a coordinator's certificate, all others a member's.
  std::string name{};
  /// It may lack a certificate and request one (`Connection::newcomer`).
  bool may_be_newcomer = false;
  bool by_mailbox = false;  ///< the socket is the local end of a stream of the mailbox
};

/// Large because all uses of one socket are here: sending and pacing, receiving, closing, and the identity
/// of the other end.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(asio::ip::tcp::socket socket, WireCounters& counters, LinkOptions link, Trace& trace,
             OtherEnd other);
  ~Connection();

  /// Queues a frame. Frames leave in order, each at the earliest after `hold` in addition to the delay of all
  /// frames.
  void send(Frame frame, Clock::duration hold = {});
  /// The next frame. Throws asio::system_error if the connection ends, Dropped if `drop` ended it, Damaged if
  /// the checksum differs, and Error(network) for an invalid frame or one longer than `limit`. Chunks are
  /// read into memory of `chunks`, unless it is null: a peer that is not authenticated gets no pooled buffer.
  using Received = ReceivedFrame;
  [[nodiscard]] asio::awaitable<Received> receive(std::size_t limit, const BufferPool* chunks = nullptr);
  /// Waits until no due frame is being written or queued, or the connection ends; streams send their next
  /// piece then.
  [[nodiscard]] asio::awaitable<void> drained();
  /// Whether a frame sent now would not wait for others.
  [[nodiscard]] bool ready() const;
  /// `call` is called whenever `ready` becomes true.
  void when_ready(std::function<void()> call) { when_ready_ = std::move(call); }
  /// Asks the system to pace packets at this rate; 0 lifts the limit. Returns whether it does.
  bool pace(std::uint64_t bytes_per_second);
  /// The system buffers at most this much beyond what is in flight: data in its buffer can no longer be
  /// overtaken.
  void hold_unsent_at_most(std::uint32_t bytes);
  static constexpr std::uint32_t first_unsent = 64 * 1024;  ///< initial value
  /// Makes congestion control start afresh on this path.
  void renew_congestion_control();
  [[nodiscard]] std::optional<PathInfo> path() { return path_info(socket_.native_handle()); }
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  [[nodiscard]] std::size_t queued_frames() const { return queue_.size(); }
  /// Sends only what is queued. The other end then has a moment to read it and close. Until then keep calling
  /// `receive`: a system that closes with unread data takes back what it sent last.
  void close_when_sent();
  /// Sends what is queued and gives up the socket; TLS, if used, ends without a word. Until the other end
  /// knows, it must send nothing, and nothing may be received here. Throws asio::system_error if the
  /// connection ends first. Call once.
  [[nodiscard]] asio::awaitable<asio::ip::tcp::socket> release();
  [[nodiscard]] bool closing() const { return closing_; }  ///< nothing new is sent
  void close();
  /// Closes it, and makes `receive` throw the reason. Only the first reason counts.
  void drop(const std::string& why);
  [[nodiscard]] bool open() const { return socket_.is_open(); }
  /// Whether the other end has closed it; for a connection that is no longer read.
  [[nodiscard]] bool hung_up();
  [[nodiscard]] const std::string& remote() const { return remote_; }
  /// Both ends of the socket are on this machine, as also for a stream of the mailbox.
  [[nodiscard]] bool is_loopback() const { return loopback_; }
  [[nodiscard]] bool by_mailbox() const { return other_.by_mailbox; }
  [[nodiscard]] asio::any_io_executor executor() { return socket_.get_executor(); }

  /// Waits until both ends have authenticated, if that is required; `receive` waits for it too. Throws
  /// Error(network) if the other end is not the expected one.
  [[nodiscard]] asio::awaitable<void> introduced();
  /// Name in the other end's certificate, known once authenticated; empty without a certificate.
  [[nodiscard]] std::string peer_name() const;
  /// The other end has authenticated by a certificate, the run's secret or (after `trust`) its token:
  /// strangers cannot displace the connection.
  [[nodiscard]] bool is_trusted() const { return trusted_; }
  void trust() { trusted_ = true; }
  /// The other end: the name in its certificate, otherwise its address (for IPv6 the first 64 bits, which
  /// identify a network).
  [[nodiscard]] std::string holder() const;
  [[nodiscard]] std::optional<tls::Role> peer_role() const;
  /// The other end has no certificate although it needs one: it may only send an enrolment request.
  [[nodiscard]] bool newcomer() const;
  /// The other end's certificate has been revoked since.
  [[nodiscard]] bool peer_is_revoked() const;

  /// Spawn it once; ends when the connection closes.
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
  /// Reads the bytes that the reader wants next.
  [[nodiscard]] asio::awaitable<void> fill(FrameReader& reader);

  asio::ip::tcp::socket socket_;
  std::shared_ptr<tls::Credentials> credentials_;
  std::shared_ptr<Connections> connections_;
  std::unique_ptr<tls::Stream> tls_;  ///< null: no TLS
  std::shared_ptr<RunSecret> secret_;
  OtherEnd other_;
  bool introduced_;      ///< authenticated by TLS or the run's secret, if either is used
  std::string dropped_;  ///< reason given to `drop`
  std::string remote_, congestion_;
  std::string source_;  ///< address for `holder`
  bool loopback_ = false, trusted_ = false;
  WireCounters& counters_;
  Clock::duration hold_, hello_limit_;
  Trace& trace_;
  std::deque<Queued> queue_;
  std::size_t queued_bytes_ = 0;
  asio::steady_timer wake_;
  asio::steady_timer written_;      ///< cancelled after every frame
  asio::steady_timer introducing_;  ///< cancelled once authenticated
  std::function<void()> when_ready_;
  bool closing_ = false, writing_ = false;
  bool checked_ = false;  ///< the frame received last had a checksum
};

using ConnectionPtr = std::shared_ptr<Connection>;

/// Creates the connection and starts its writer.
[[nodiscard]] ConnectionPtr start_connection(asio::ip::tcp::socket socket, WireCounters& counters,
                                             const LinkOptions& link, Trace& trace, OtherEnd other);

/// Closes the connection unless it is destroyed within the time limit: no peer may stay unauthenticated or
/// silent for long. Then calls `closed`, for a caller that waits for something else than the connection.
class Watchdog {
 public:
  Watchdog(const ConnectionPtr& connection, Connection::Clock::duration limit,
           std::function<void()> closed = {});

 private:
  asio::steady_timer timer_;
};

/// Connections before their hello. Their number is bounded, separately for trusted and other ones; above the
/// bound, the holder of the most connections loses its oldest. So a crowd at one address cannot keep out
/// peers from another one, however fast it connects.
class UnknownConnections {
 public:
  static constexpr std::size_t most = 64;  ///< of each kind

  void add(const ConnectionPtr& connection);
  void remove(const ConnectionPtr& connection) { std::erase(waiting_, connection); }

  /// Counts a connection while this object exists. Shares ownership of the list, which the last coroutine
  /// could otherwise outlive.
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
