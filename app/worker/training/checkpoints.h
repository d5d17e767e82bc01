#pragma once
// A replica's checkpoints: their contents, which of them it can resume from, and resuming.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/data/corpus.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_writer.h"
#include "isthmus/trainer/replica.h"
#include "run/audit/audit_writer.h"
#include "run/experiment/experiment.h"
#include "worker/training/uploads.h"

namespace isthmus::app {

/// State of the training loop that belongs neither to the replica nor to the outer loop.
struct LoopState {
  std::uint64_t sequences = 0;   ///< trained on
  std::uint64_t ramp_steps = 0;  ///< since the inner optimizer was reset
  template <class Archive>
  void serialize(Archive& ar) {
    ar(sequences, ramp_steps);
  }
};

/// Sections of a checkpoint besides those of replica and agreed state.
inline constexpr const char *outer_section = "outer", *loop_section = "loop";

/// The settings that were changed during the run, up to the checkpoint. Leaves out a pause: a resumed run
/// continues. Throws Error(data) naming the file.
[[nodiscard]] outer_sync::protocol::Settings checkpoint_settings(const trainer::Checkpoint& checkpoint);

/// Which checkpoints a replica keeps.
[[nodiscard]] trainer::KeepRule keep_rule(const RunConfig& run);

class Checkpoints {
 public:
  /// Must outlive this. `say` takes human-readable lines, from any thread.
  struct Parts {
    Experiment& experiment;
    std::string name;  ///< the replica's
    trainer::Replica& replica;
    outer_sync::OuterLoop& outer;
    outer_sync::MemberNode& node;
    const data::Corpus& corpus;
    Trace& trace;
    std::filesystem::path folder;
    std::function<void(const std::string&)> say;
    Uploads* uploads;    ///< null: there is no object store
    AuditWriter* audit;  ///< gets the digests of each checkpoint; may be null
  };
  explicit Checkpoints(Parts parts) : parts_(std::move(parts)) {}

  /// Checkpoints that this replica can resume from, ascending, here or in the object store; damaged ones are
  /// reported and left out. Reads the newest run.keep_checkpoints here completely. Throws Error(data) if
  /// there are checkpoints, but all are damaged or of another model.
  [[nodiscard]] std::vector<outer_sync::protocol::CheckpointId> offer();
  struct Restored {
    LoopState loop;
    outer_sync::protocol::Ledger ledger;
    std::filesystem::path file;
  };
  /// Fetches the checkpoint first if only the object store has it. Throws Error(data) naming the file, and as
  /// ObjectStore does.
  [[nodiscard]] Restored restore(std::uint64_t step);
  /// Sets later checkpoints aside: the run continues from `step` and abandons their history.
  void leave_later_than(std::uint64_t step);

  /// Takes a snapshot of this agreed step, which is written in the background. If rounds do not commit, only
  /// reports that no snapshot is possible.
  void save(const LoopState& loop);
  /// Reports to the run which checkpoints are on disk here, and learns the newest common one. Call it
  /// regularly.
  void exchange_news();
  /// Waits until the newest is on disk. Returns false if it cannot be written, which was reported.
  [[nodiscard]] bool finish();

 private:
  void find_sound();
  void say_what_changes(const trainer::Checkpoint& checkpoint) const;
  void check_stored(const Restored& restored) const;
  [[nodiscard]] trainer::CheckpointWriter& writer();
  void take(trainer::Snapshot& snapshot, const LoopState& loop);
  void report_digests();
  [[nodiscard]] std::vector<std::string> trainers() const;

  Parts parts_;
  std::vector<std::uint64_t> sound_;                 ///< on disk, at the start of this process
  std::optional<trainer::CheckpointWriter> writer_;  ///< from the first snapshot on
  std::uint64_t digests_reported_ = 0;               ///< up to this step
};

}  // namespace isthmus::app
