#pragma once
// State transfer: a fetcher (a joiner, an observer) dials a donor and asks for fragments, and then for the
// rounds that were committed meanwhile; the donor streams what it has of them, no faster than it was told.
// Everything here runs on the io thread.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "net/link/connection.h"
#include "net/mesh/peer_mesh.h"
#include "net/rate/pacer.h"
#include "net/state_transfer/state_frames.h"

namespace isthmus::outer_sync::transport {

// ---- donor ----

/// Bytes of values that a piece should have: what fills the bucket, from 4 KiB (so that headers stay below 1
/// %) to `largest_piece`.
[[nodiscard]] std::size_t piece_of(const Pacer& pacer);

/// Streams fragments and rounds over a connection, of which never more than one piece or chunk waits to be
/// written.
class StateSender {
 public:
  StateSender(ConnectionPtr connection, std::shared_ptr<Pacer> pacer);
  /// Throws Error(network) when the connection has ended, or takes longer over one piece than a fetcher may.
  [[nodiscard]] asio::awaitable<void> send(FragmentSnapshot snapshot);
  /// The results of a round in chunk order. Throws as above.
  [[nodiscard]] asio::awaitable<void> send(RoundRequest round, const FragmentLayout& layout,
                                           std::vector<protocol::SharedBytes> results);
  void send_gone(FragmentId fragment);

 private:
  [[nodiscard]] asio::awaitable<void> send_part(const FragmentSnapshot& snapshot, StatePart part);
  [[nodiscard]] asio::awaitable<void> send_piece(Frame piece);

  ConnectionPtr connection_;
  std::shared_ptr<Pacer> pacer_;
};

/// Takes a snapshot with all parts that the request names; nothing where the fragment is not that far yet. An
/// Error that it throws ends the connection.
using SnapshotSource = std::function<asio::awaitable<std::optional<FragmentSnapshot>>(StateRequest)>;

/// The codec bytes of a round's results in chunk order. Empty, or with nulls, where they are not all here
/// (any more).
using RoundSource = std::function<std::vector<protocol::SharedBytes>(FragmentId, protocol::Round)>;

/// Answers a fetcher's requests one after the other until its connection ends (asio::system_error) or it
/// breaks the protocol or asks for nothing during a minute (Error(network)). The layout must outlive it.
[[nodiscard]] asio::awaitable<void> serve_fetcher(ConnectionPtr connection, const FragmentLayout& layout,
                                                  std::shared_ptr<Pacer> pacer, SnapshotSource snapshots,
                                                  RoundSource rounds);

// ---- fetcher ----

/// The donor cannot be reached, is gone or silent: it may be asked again. All other errors say that what it
/// sent does not fit.
class DonorLost : public Error {
 public:
  explicit DonorLost(const std::string& message) : Error(ErrorKind::network, message) {}
};

/// How long a fetcher waits for a donor.
struct StatePatience {
  Connection::Clock::duration
      head;  ///< from the request on: the donor's trainer may be in the middle of a step
  Connection::Clock::duration frame;  ///< from then on, for every frame
};

/// Dials the donor as `self` and shows it the token. Throws DonorLost or Error(network) naming the donor when
/// it cannot be reached or does not answer, or is somebody else.
[[nodiscard]] asio::awaitable<ConnectionPtr> dial_donor(asio::io_context& io, PeerInfo donor,
                                                        protocol::ReplicaId self, Digest token,
                                                        LinkOptions link, WireCounters& counters,
                                                        Trace& trace);

/// Asks for a fragment and waits until it is there; nothing where the donor has it only as it was before
/// `request.from`. Throws DonorLost when the donor is lost or falls silent and Error(network) when it breaks
/// the protocol; the connection is then closed and another donor may be asked. The layout must outlive it.
[[nodiscard]] asio::awaitable<std::optional<FragmentSnapshot>> fetch_fragment(ConnectionPtr donor,
                                                                              const FragmentLayout& layout,
                                                                              StateRequest request,
                                                                              StatePatience patience);

/// Asks for the results of a round and waits until they are there, in memory of `buffers`; nothing where the
/// donor has not got them. Throws as above.
[[nodiscard]] asio::awaitable<std::optional<std::vector<protocol::SharedBytes>>> fetch_round(
    ConnectionPtr donor, const FragmentLayout& layout, protocol::CodecPlan codecs, RoundRequest request,
    StatePatience patience, BufferPool buffers);

}  // namespace isthmus::outer_sync::transport
