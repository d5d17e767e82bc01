#pragma once
// Writes a replica's checkpoints on a thread of its own, from a snapshot: training stops for the copy only.
//
//   auto& snapshot = writer.begin(step);   // waits while the last one is still being written
//   replica.copy_state(snapshot.replica);  // over the last one's memory
//   snapshot.others["outer"] = ...;
//   writer.write();                        // returns at once
//   writer.finish();                       // before the process ends

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/trace.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "isthmus/trainer/replica.h"

namespace isthmus::trainer {

/// A replica's state at one moment. As large as the file that it becomes; its memory is used again for the
/// next one.
struct Snapshot {
  Digest model;            ///< its fingerprint
  std::uint64_t step = 0;  ///< agreed, which names the file
  ReplicaState replica;
  std::map<std::string, Bytes> others;  ///< by section
};

/// One thread calls, the writer's own writes. A write that fails (a full disk) does not disturb training: it
/// is said once, tried again every `retry_after` until the next snapshot is taken, and leaves nothing behind.
class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    KeepRule keep;
    std::function<void(const std::string&)> say;  ///< lines for people, from either thread
    std::chrono::milliseconds retry_after{10'000};
  };
  /// `steps` of the folder are known to be sound, ascending. It is made with the first checkpoint.
  CheckpointWriter(Options options, const std::vector<std::uint64_t>& steps, Trace& trace);
  /// Ends what is being written; what has failed is not tried again.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The memory of the next snapshot, of `step`. While the last one is being written this waits, and says so:
  /// to leave one out would leave replicas with checkpoints of different steps. What could not be written so
  /// far is given up.
  [[nodiscard]] Snapshot& begin(std::uint64_t step);
  /// Hands over what `begin` has given.
  void write();
  /// Returns when all that was handed over is on disk; what has failed is tried once more. False if the
  /// newest is not there then.
  [[nodiscard]] bool finish();

  /// Steps whose checkpoints are complete and sound, ascending.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;
  /// The same, with the digest of each one's agreed section (checkpoint.h); zero where it has none.
  [[nodiscard]] std::map<std::uint64_t, Digest> checkpoints() const;
  /// All replicas of the run have a checkpoint of this step: older ones may go.
  void all_have(std::uint64_t step);

 private:
  enum class State {
    idle,    ///< the snapshot is the caller's
    ready,   ///< to be written
    busy,    ///< is being written
    failed,  ///< could not be written, and may be tried again
  };
  void loop();
  void write_snapshot(std::unique_lock<std::mutex>& lock);
  void written(const Digest& agreed);
  void failed(const std::string& why);
  void remove_superseded(std::unique_lock<std::mutex>& lock);
  void wait_until_over(std::unique_lock<std::mutex>& lock);

  Options options_;
  Trace& trace_;
  Snapshot snapshot_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  bool said_ = false;  ///< that this one has failed
  bool closing_ = false;
  std::map<std::uint64_t, Digest> known_;  ///< by step: digest of the agreed section
  std::uint64_t common_ = 0, removed_for_ = 0;
  std::thread thread_;
};

}  // namespace isthmus::trainer
