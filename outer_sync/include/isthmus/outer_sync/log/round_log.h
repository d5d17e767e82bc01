#pragma once
// The round log: everything that the global parameters were made of, on disk, as the rounds come in. The
// outer loop is a replicated log; this is the copy that outlives the run. `replay` makes the parameters from
// it again.
//
// A folder holds "log.header" and one file per fragment: a snapshot (parameters, momentum, round, chain
// hash), then every round after it. When a fragment's file has grown to its share of the budget, the log asks
// for a snapshot: it begins a new file, and the old one goes. During the synchronous warm-up results carry
// gradients, of which the parameters are not a function: nothing is logged until it is over.
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
#include "isthmus/outer_sync/methods/outer_rule.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::log {

class LogWriter;

/// Values of one fragment that nobody changes any more.
using SharedValues = std::shared_ptr<const AlignedVector<float>>;

/// Called from one thread. Files are written and synced by another one, so that no step waits for a disk,
/// unless that is slower than the run: calls block while more than 256 MiB wait to be written. What went
/// wrong with a file is thrown by the next call, as Error(data).
class RoundLog {
 public:
  /// Makes the folder or goes on with the log in it. `now` is where the run stands, by fragment: rounds that
  /// are in the log beyond it are cut off, as is a record that a crash left incomplete, and a fragment whose
  /// log does not hold that state (round and chain hash) begins anew, with a snapshot. Throws Error(config)
  /// when `budget` (bytes) is below `min_budget` or the folder is another run's, Error(data) naming file
  /// and offset for anything that is damaged.
  RoundLog(std::filesystem::path folder, const LogHeader& header, std::uint64_t budget,
           std::span<const protocol::FragmentState> now);
  /// Writes what is queued. Faults are lost here: call `flush` before.
  ~RoundLog();
  RoundLog(const RoundLog&) = delete;
  RoundLog& operator=(const RoundLog&) = delete;

  /// Whether a snapshot must be handed in before the next round: nothing is there to go on from, or one more
  /// round would leave no room for a snapshot.
  [[nodiscard]] bool wants_snapshot(FragmentId fragment) const;
  /// The fragment's global parameters and outer momentum after round `state.round`.
  void snapshot(FragmentId fragment, const protocol::FragmentState& state, const SharedValues& theta,
                const SharedValues& velocity);
  /// The results of round `state.round`, in chunk order, as they were applied by `rule` (its alpha is of no
  /// account); `state.chain` is the chain hash after it. Rounds of a fragment come one after the other, the
  /// first one after the snapshot.
  void append(FragmentId fragment, const protocol::FragmentState& state, const methods::OuterRule& rule,
              std::span<const protocol::SharedBytes> results);
  /// Returns when everything is on disk.
  void flush();

  /// Two snapshots and one round of every fragment, and the header.
  [[nodiscard]] static std::uint64_t min_budget(const LogHeader& header);

 private:
  struct Fragment {
    std::filesystem::path file;  ///< empty: there is none yet
    std::uint64_t used = 0;      ///< bytes of the file once everything is written
    std::uint64_t share = 0;     ///< of the budget
    std::uint64_t snapshot_size = 0, round_size = 0;
    protocol::Round round = 0;  ///< last one in the file
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
