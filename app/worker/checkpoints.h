#pragma once
// A replica's checkpoints: what is in one, which it could go on from, and going on from one.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/data/corpus.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_writer.h"
#include "isthmus/trainer/replica.h"
#include "run/experiment.h"

namespace isthmus::app {

/// What of the training loop is neither the replica's nor the outer loop's.
struct LoopState {
  std::uint64_t sequences = 0;   ///< trained on
  std::uint64_t ramp_steps = 0;  ///< since the inner optimizer began anew
  template <class Archive>
  void serialize(Archive& ar) {
    ar(sequences, ramp_steps);
  }
};

class Checkpoints {
 public:
  /// Outlive this. `say` takes lines for people, from any thread.
  struct Parts {
    Experiment& experiment;
    trainer::Replica& replica;
    outer_sync::OuterLoop& outer;
    outer_sync::MemberNode& node;
    const data::Corpus& corpus;
    Trace& trace;
    std::filesystem::path folder;
    std::function<void(const std::string&)> say;
  };
  explicit Checkpoints(Parts parts) : parts_(std::move(parts)) {}

  /// What this replica could go on from, ascending: what is damaged is named and not among them. Reads the
  /// newest run.keep_checkpoints to their end. Throws Error(data) where there are some and all are damaged or
  /// of another model.
  [[nodiscard]] std::vector<outer_sync::protocol::CheckpointId> offer();
  struct Restored {
    LoopState loop;
    outer_sync::protocol::Ledger ledger;
    std::filesystem::path file;
  };
  /// Throws Error(data) naming the file.
  [[nodiscard]] Restored restore(std::uint64_t step);
  /// The run goes on from there: later ones are of a history that it leaves.
  void leave_later_than(std::uint64_t step);

  /// Takes a snapshot of this agreed step, which is written in the background. Says so where rounds do not
  /// commit and there can be none.
  void save(const LoopState& loop);
  /// Tells the run what is on disk here, and hears what is on all disks. To be called now and then.
  void exchange_news();
  /// Returns when the newest is on disk. False if it cannot be written, which was said.
  [[nodiscard]] bool finish();

 private:
  [[nodiscard]] static outer_sync::protocol::Settings settings_of(const trainer::Checkpoint& checkpoint);
  void say_what_changes(const trainer::Checkpoint& checkpoint) const;
  [[nodiscard]] trainer::CheckpointWriter& writer();
  void take(trainer::Snapshot& snapshot, const LoopState& loop);

  Parts parts_;
  std::vector<std::uint64_t> sound_;                 ///< when this process began
  std::optional<trainer::CheckpointWriter> writer_;  ///< from the first snapshot on
};

}  // namespace isthmus::app
