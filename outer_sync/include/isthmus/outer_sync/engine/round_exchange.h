#pragma once
// The outer loop's interface to the network: the loop hands in encoded chunks and gets back each round's
// result bytes.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/buffer_pool.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/engine/fragment_snapshot.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/protocol/exchanges.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

/// The result of a round, as every replica receives it.
struct RoundResult {
  std::vector<protocol::SharedBytes> chunks;  ///< result bytes, in chunk order
  std::vector<bool> included;                 ///< by chunk: whether it contains this replica's contribution
  /// By chunk: whether outer.reject excluded this replica's contribution for its norm; it is then not sent
  /// again. Empty: none was excluded.
  std::vector<bool> rejected = {};
  /// Training samples of the replicas included in every chunk.
  std::vector<SampleRange> samples = {};
  /// When the last chunk arrived here, for metrics.
  std::chrono::steady_clock::time_point came = std::chrono::steady_clock::now();
};

/// Outcome of wait(): the result, if it is here, and whether rounds commit.
struct Awaited {
  std::optional<RoundResult> result;
  bool commits = true;
};

/// This replica's rounds differ from the run's or lag too far behind: it must copy the state of another
/// member and continue from there (MemberNode::catch_up).
class Evicted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// MemberNode implements it over the network, tests in memory. The trainer's thread calls everything except
/// contribute().
class RoundExchange {
 public:
  virtual ~RoundExchange() = default;
  /// Hands in one encoded chunk and returns at once. One thread at a time calls it, not necessarily the
  /// trainer's. `weight`: tokens behind the chunk, 0 if it holds nothing yet. `samples`, with a fragment's
  /// first chunk only: the sequences behind it, at most protocol::max_trained_on ranges.
  virtual void contribute(ChunkId chunk, protocol::Round round, protocol::SharedBytes bytes,
                          std::uint64_t weight, const SampleSet& samples) = 0;
  /// Blocks until the round's results are here. Returns without them if rounds do not commit at present, or
  /// if the caller `can_train_on` and the next view forms without one of the trainers; the caller then trains
  /// on and asks again after its next step. (A caller that has no step to make asks again at once, so wait()
  /// blocks for a moment first.) Throws Error(network) if the results can no longer arrive, or Evicted.
  [[nodiscard]] virtual Awaited wait(FragmentId fragment, protocol::Round round, bool can_train_on) = 0;
  /// The global parameters here now include the round. `samples` came with its result; empty from a replica
  /// that only follows.
  virtual void applied(FragmentId fragment, protocol::Round round, const Digest& chain,
                       std::vector<SampleRange> samples) = 0;

  // Exchanges in pairs (engine/gossip.h). A replica has one of a fragment under way at a time.
  /// Whether this replica has a partner to exchange the fragment with at this agreed step. Drops what
  /// has arrived of the fragment's earlier exchanges.
  [[nodiscard]] virtual bool begin_exchange(FragmentId /*fragment*/, std::uint64_t /*step*/) { return false; }
  /// Hands in one encoded chunk for the partner, as `contribute` does.
  virtual void exchange(ChunkId /*chunk*/, std::uint64_t /*step*/, const protocol::SharedBytes& /*bytes*/,
                        std::uint64_t /*weight*/) {}
  /// Returns the partner's part, once; nothing while some of it is missing.
  [[nodiscard]] virtual std::optional<protocol::Exchanged> take_exchanged(FragmentId /*fragment*/,
                                                                          std::uint64_t /*step*/) {
    return {};
  }
  /// The exchange is over here, without the partner's part.
  virtual void end_exchange(FragmentId /*fragment*/, std::uint64_t /*step*/) {}

  /// Digest of a fragment's global parameters and momentum after a checked round (protocol/state_digests.h).
  virtual void checked(const protocol::StateDigest& /*digest*/) {}

  /// Returns a fragment's state, with the inner optimizer's moments if `moments` is set and they exist.
  /// Called on the trainer's thread, from within wait() and serve().
  using StateSource = std::function<FragmentSnapshot(FragmentId, bool moments)>;
  /// Before this call the replica serves no state: in the warm-up that would include the inner optimizer's
  /// state.
  virtual void serve_state_from(StateSource source) = 0;
  /// Answers pending requests for state. Called between two steps.
  virtual void serve() = 0;

  /// The other replicas' agreed step at the time this replica rejoined them after they had continued without
  /// it; 0 if that never happened.
  [[nodiscard]] virtual std::uint64_t agreed_step() const { return 0; }

  /// The live settings of the present view; null before the first view. It changes between two calls only if
  /// no result of a later view has been returned.
  [[nodiscard]] virtual std::shared_ptr<const protocol::Settings> settings() const { return nullptr; }
  /// Called if this replica continued under settings other than the run's: it must copy the state from
  /// others.
  [[noreturn]] virtual void give_up(const std::string& reason) { throw outer_sync::Evicted(reason); }

  [[nodiscard]] virtual Reducer& reducer() = 0;
  /// Memory for the chunks to hand in.
  [[nodiscard]] const BufferPool& buffers() { return reducer().buffers(); }
};

}  // namespace isthmus::outer_sync
