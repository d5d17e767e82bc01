#pragma once
// State transfer: a fetcher (a joining member or an observer) dials a donor and requests fragments, then the
// rounds committed meanwhile. The donor streams them at a limited rate. All functions run on the io thread.

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

/// Bytes of values per piece: what fills the bucket, from 4 KiB (which keeps headers below 1 %) to
/// `largest_piece`.
[[nodiscard]] std::size_t piece_of(const Pacer& pacer);

/// Streams fragments and rounds over a connection, with at most one piece or chunk queued at a time.
class StateSender {
 public:
  StateSender(ConnectionPtr connection, std::shared_ptr<Pacer> pacer);
  /// Throws Error(network) if the connection ends, or takes too long for one piece.
  [[nodiscard]] asio::awaitable<void> send(FragmentSnapshot snapshot);
  /// Sends the results of a round in chunk order. Throws likewise.
  [[nodiscard]] asio::awaitable<void> send(RoundRequest round, const FragmentLayout& layout,
                                           std::vector<protocol::SharedBytes> results);
  void send_gone(FragmentId fragment);

 private:
  [[nodiscard]] asio::awaitable<void> send_part(const FragmentSnapshot& snapshot, StatePart part);
  [[nodiscard]] asio::awaitable<void> send_piece(Frame piece);

  ConnectionPtr connection_;
  std::shared_ptr<Pacer> pacer_;
};

/// Takes a snapshot with all requested parts; returns nullopt if the fragment has not reached the requested
/// round. An Error from it ends the connection.
using SnapshotSource = std::function<asio::awaitable<std::optional<FragmentSnapshot>>(StateRequest)>;

/// The codec bytes of a round's results in chunk order; empty, or with nulls, if some are missing.
using RoundSource = std::function<std::vector<protocol::SharedBytes>(FragmentId, protocol::Round)>;

/// Answers a fetcher's requests one by one until its connection ends (asio::system_error), or it breaks the
/// protocol or sends no request for a minute (Error(network)). The layout must outlive it.
[[nodiscard]] asio::awaitable<void> serve_fetcher(ConnectionPtr connection, const FragmentLayout& layout,
                                                  std::shared_ptr<Pacer> pacer, SnapshotSource snapshots,
                                                  RoundSource rounds);

// ---- fetcher ----

/// The donor is unreachable, gone or silent: it may be tried again. Any other error means that its data does
/// not fit.
class DonorLost : public Error {
 public:
  explicit DonorLost(const std::string& message) : Error(ErrorKind::network, message) {}
};

/// How long a fetcher waits for a donor.
struct StatePatience {
  Connection::Clock::duration
      head;  ///< after the request: the donor's trainer may be in the middle of a step
  Connection::Clock::duration frame;  ///< after that, for every frame
};

/// Dials the donor as `self`, through `bridge` if it has no address, and shows it the token. Throws DonorLost
/// or Error(network) with the donor's name if it cannot be reached, does not answer, or is another replica.
[[nodiscard]] asio::awaitable<ConnectionPtr> dial_donor(asio::io_context& io, PeerInfo donor,
                                                        std::optional<PeerInfo> bridge,
                                                        protocol::ReplicaId self, Digest token,
                                                        LinkOptions link, WireCounters& counters,
                                                        Trace& trace);

/// Requests a fragment and waits for it; returns nullopt if the donor's state is older than `request.from`.
/// Throws DonorLost if the donor is lost or silent, Error(network) if it breaks the protocol; the connection
/// is then closed, and another donor may be asked. The layout must outlive it.
[[nodiscard]] asio::awaitable<std::optional<FragmentSnapshot>> fetch_fragment(ConnectionPtr donor,
                                                                              const FragmentLayout& layout,
                                                                              StateRequest request,
                                                                              StatePatience patience);

/// Requests the results of a round and waits for them; they are stored in memory of `buffers`. Returns
/// nullopt if the donor does not have them. Throws likewise.
[[nodiscard]] asio::awaitable<std::optional<std::vector<protocol::SharedBytes>>> fetch_round(
    ConnectionPtr donor, const FragmentLayout& layout, protocol::CodecPlan codecs, RoundRequest request,
    StatePatience patience, BufferPool buffers);

}  // namespace isthmus::outer_sync::transport
