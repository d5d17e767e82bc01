#pragma once
// The round log: everything that the global parameters were made of, written to disk as rounds complete. The
// outer loop is a replicated log; this copy outlives the run, and `replay` rebuilds the parameters from it.
//
// A folder holds "log.header" and one file per fragment: a snapshot (parameters, momentum, round, chain
// hash), then every round after it. When a fragment's file reaches its share of the budget, the log asks for
// a snapshot: it begins a new file, and the old one is removed. Warm-up rounds are not logged, because the
// parameters do not follow from their results, which are gradients.
//
//   RoundLog log(folder, header, budget, loop.fragments());   // after the warm-up
//   for each fragment p: if (log.wants_snapshot(p)) log.snapshot(p, state, theta, velocity);
//   after each round:    log.append(p, state, rule, results);
//                        if (log.wants_snapshot(p)) log.snapshot(p, state, theta, velocity);

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync::log {

class LogWriter;

/// Immutable values of one fragment.
using SharedValues = std::shared_ptr<const AlignedVector<float>>;

/// Called from one thread. Another thread writes and syncs the files, so that no step waits for a disk unless
/// it is slower than the run: calls block while more than 256 MiB are queued. A failure to write is thrown by
/// the next call, as Error(data).
class RoundLog {
 public:
  /// Creates the folder or continues the log in it. `now`: the run's present rounds and chain hashes, by
  /// fragment. Later rounds in the log are cut off, as is a record that a crash left incomplete. A fragment
  /// starts anew with a snapshot if its log lacks the present state. Throws Error(config) if `budget` (bytes)
  /// is below `min_budget` or the folder belongs to another run, Error(data) naming file and offset if
  /// something is damaged.
  RoundLog(std::filesystem::path folder, const LogHeader& header, std::uint64_t budget,
           std::span<const protocol::FragmentState> now);
  /// Writes what is queued. Failures are lost here: call `flush` first.
  ~RoundLog();
  RoundLog(const RoundLog&) = delete;
  RoundLog& operator=(const RoundLog&) = delete;

  /// Whether a snapshot must be handed in before the next round: the log has no snapshot to continue from, or
  /// one more round would leave no room for a snapshot.
  [[nodiscard]] bool wants_snapshot(FragmentId fragment) const;
  /// The fragment's global parameters and outer momentum after round `state.round`.
  void snapshot(FragmentId fragment, const protocol::FragmentState& state, const SharedValues& theta,
                const SharedValues& velocity);
  /// The results of round `state.round`, in chunk order, as `rule` applied them (its alpha is ignored);
  /// `state.chain` is the chain hash after it. A fragment's rounds must be consecutive, the first one
  /// following the snapshot.
  void append(FragmentId fragment, const protocol::FragmentState& state, const quant::OuterStep& rule,
              std::span<const protocol::SharedBytes> results);
  /// Returns when everything is on disk.
  void flush();

  /// Space for two snapshots and one round of every fragment, and the header.
  [[nodiscard]] static std::uint64_t min_budget(const LogHeader& header);

 private:
  struct Fragment {
    std::filesystem::path file;  ///< empty: no file yet
    std::uint64_t used = 0;      ///< bytes of the file once the queue is written
    std::uint64_t share = 0;     ///< of the budget, in bytes
    std::uint64_t snapshot_size = 0, round_size = 0;
    protocol::Round round = 0;  ///< last round in the file
  };
  void take_over(FragmentId fragment, const std::vector<std::filesystem::path>& files,
                 const protocol::FragmentState& now);

  std::filesystem::path folder_;
  LogHeader header_;
  Digest seed_;
  std::vector<Fragment> fragments_;
  std::unique_ptr<LogWriter> writer_;
};

}  // namespace isthmus::outer_sync::log
