#pragma once
// Bulk connections between members: `lanes` to every peer. The member with the lower index dials and dials
// again when a lane breaks; connections carry chunks both ways. Everything here runs on the io thread.

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/awake_clock.h"
#include "transport/connection.h"

namespace isthmus::outer_sync::transport {

/// Lets one line through per second and counts the rest: a flood of strangers must not become a flood of
/// lines.
class LineLimiter {
 public:
  explicit LineLimiter(std::function<void(const std::string&)> out) : out_(std::move(out)) {}
  void operator()(const std::string& line);

 private:
  std::function<void(const std::string&)> out_;
  Connection::Clock::time_point last_{};
  std::size_t swallowed_ = 0;
};

class PeerMesh {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    /// `bytes` are packed as the header says. Returns why the peer breaks the protocol; its connection is
    /// then dropped.
    [[nodiscard]] virtual std::optional<std::string> on_chunk(protocol::MemberIndex from,
                                                              const ChunkHeader& header,
                                                              protocol::SharedBytes bytes) = 0;
    virtual void on_ack(protocol::MemberIndex from, protocol::ViewNumber view,
                        const protocol::ChunkKey& key) = 0;
    /// A lane is there (again): what was not acknowledged on it must be repeated.
    virtual void on_lane_up(protocol::MemberIndex peer, std::size_t lane) = 0;
    /// The peer broke the protocol again and again: dialling once more will not mend it.
    virtual void on_broken_peer(protocol::MemberIndex peer, const std::string& why) = 0;
    virtual void on_message(const std::string& text) = 0;
  };

  PeerMesh(asio::io_context& io, asio::ip::tcp::acceptor acceptor, std::size_t lanes, WireCounters& counters,
           LinkOptions link, AwakeClock& clock, Trace& trace, Handler& handler);

  /// Dials the peers and lets in those that dial. No frame of a peer is longer than `frame_limit`; what
  /// chunks they send is put into memory of `chunks`.
  void start(const protocol::View& view, protocol::MemberIndex self, const Digest& token,
             std::size_t frame_limit, const BufferPool& chunks);

  [[nodiscard]] std::size_t lane_of(ChunkId chunk) const { return chunk % lanes_; }
  /// Nothing is sent while the lane is down: `on_lane_up` comes when it is back.
  void send(protocol::MemberIndex peer, ChunkId chunk, Frame frame);
  /// A peer to which no lane has been up for `limit`.
  [[nodiscard]] std::optional<protocol::MemberIndex> lost(AwakeClock::Clock::duration limit);

 private:
  struct Peer {
    std::string name, address;
    std::vector<ConnectionPtr> lanes;
    AwakeClock::Clock::duration last_up;
    std::size_t breaches = 0;  ///< of the protocol
  };

  [[nodiscard]] asio::awaitable<void> accept_loop();
  [[nodiscard]] asio::awaitable<void> welcome(ConnectionPtr connection);
  [[nodiscard]] asio::awaitable<void> dial_loop(protocol::MemberIndex peer, std::size_t lane);
  [[nodiscard]] asio::awaitable<void> introduce(ConnectionPtr connection, protocol::MemberIndex peer,
                                                std::size_t lane);
  [[nodiscard]] asio::awaitable<void> serve(protocol::MemberIndex peer, std::size_t lane,
                                            ConnectionPtr connection);
  [[nodiscard]] Frame hello_to(protocol::MemberIndex peer, std::size_t lane) const;
  [[nodiscard]] PeerHello check_hello(const Connection::Received& frame) const;
  void take(protocol::MemberIndex peer, Connection::Received frame);

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  std::size_t lanes_;
  WireCounters& counters_;
  LinkOptions link_;
  AwakeClock& clock_;
  Trace& trace_;
  Handler& handler_;
  LineLimiter stranger_line_;
  std::shared_ptr<UnknownConnections> unknown_ = std::make_shared<UnknownConnections>();

  bool started_ = false;
  asio::steady_timer started_event_;
  protocol::ViewNumber view_ = 0;
  protocol::MemberIndex self_ = 0;
  Digest token_;
  std::size_t frame_limit_ = 0;
  std::optional<BufferPool> chunks_;
  std::vector<Peer> peers_;
};

}  // namespace isthmus::outer_sync::transport
