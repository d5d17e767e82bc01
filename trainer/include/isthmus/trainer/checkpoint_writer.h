#pragma once
// Writes a replica's checkpoints on a separate thread, from a snapshot: training stops only for the copy.
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

/// A replica's state at one moment, as large as its file. Its memory is reused for the next one.
struct Snapshot {
  Digest model;            ///< fingerprint of the model
  std::uint64_t step = 0;  ///< agreed step, which names the file
  ReplicaState replica;
  std::map<std::string, Bytes> others;  ///< by section
};

/// Lowers the priority of the calling thread: hashing and writing take whole seconds of a core that training
/// could use.
void yield_to_training();

/// One thread calls, the writer's own thread writes. A failed write (a full disk) does not disturb training:
/// it is reported once, leaves nothing behind, and is retried every `retry_after` until the next snapshot is
/// taken.
class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    KeepRule keep;
    std::function<void(const std::string&)> say;  ///< takes human-readable lines; called on both threads
    std::chrono::milliseconds retry_after{10'000};
  };
  /// `steps` are the folder's sound checkpoints, ascending. The folder is created with the first checkpoint.
  CheckpointWriter(Options options, const std::vector<std::uint64_t>& steps, Trace& trace);
  /// Finishes the current write; a failed one is not retried.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns the memory for the next snapshot, of `step`. Waits, and reports it, while the last snapshot is
  /// being written: if one were left out, replicas would have checkpoints of different steps. Gives up a
  /// snapshot that could not be written.
  [[nodiscard]] Snapshot& begin(std::uint64_t step);
  /// Hands over the snapshot that begin() returned.
  void write();
  /// Returns once everything handed over is on disk; retries a failed write once. False if the newest
  /// snapshot could not be written.
  [[nodiscard]] bool finish();

  /// Steps of all complete and sound checkpoints, ascending.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;
  /// The same with the digest of each checkpoint's agreed section (checkpoint.h); zero if it has no such
  /// section.
  [[nodiscard]] std::map<std::uint64_t, Digest> checkpoints() const;
  /// Call when all replicas of the run have a checkpoint of this step: older ones may be removed.
  void all_have(std::uint64_t step);

 private:
  enum class State {
    idle,    ///< the caller owns the snapshot
    ready,   ///< waiting to be written
    busy,    ///< being written
    failed,  ///< could not be written; may be retried
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
  bool said_ = false;  ///< whether this failure was reported
  bool closing_ = false;
  std::map<std::uint64_t, Digest> known_;  ///< by step: digest of the agreed section
  std::uint64_t common_ = 0, removed_for_ = 0;
  std::thread thread_;
};

}  // namespace isthmus::trainer
