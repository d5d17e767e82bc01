#pragma once
// Copies a replica's checkpoints and its round log to the object store, on a thread of low priority, while
// training continues; and fetches checkpoints from it when a run is resumed. Checkpoints are copied oldest
// first, so that all replicas copy the same ones however slow a link is. Older ones are removed from the
// store once all trainers of the view that copy theirs have a newer one there.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/object_store.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "run/objects/stored_log.h"
#include "run/objects/stored_run.h"

namespace isthmus::app {

/// The worker's main thread calls.
class Uploads {
 public:
  struct Options {
    ObjectStoreOptions store;
    std::string run, worker;
    std::filesystem::path checkpoints;  ///< folder
    std::filesystem::path log;          ///< folder; empty: no log
    trainer::KeepRule keep;
    bool resumed = false;                           ///< the store may have checkpoints of this run
    std::function<void(const std::string&)> say;    ///< called on both threads
    std::chrono::milliseconds retry_after{15'000};  ///< doubles up to 16 times that
  };
  /// Lists what the store has. Throws Error(config) if it refuses, or has checkpoints of this worker although
  /// the run is not resumed. If it cannot be reached, reports that and tries again later.
  explicit Uploads(Options options);
  /// Gives up what is not copied yet.
  ~Uploads();
  Uploads(const Uploads&) = delete;
  Uploads& operator=(const Uploads&) = delete;

  /// The newest checkpoints in the store, with the digests of their agreed sections, ascending. Unusable ones
  /// are reported and left out.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, Digest>> stored();
  /// Fetches a checkpoint into the folder. Throws as ObjectStore does.
  void fetch(std::uint64_t step);
  /// The run continues from this step: later checkpoints in the store belong to an abandoned history.
  void leave_later_than(std::uint64_t step);

  /// The checkpoints on disk, and the names of the view's trainers. Returns at once.
  void offer(std::vector<std::uint64_t> steps, std::vector<std::string> trainers);
  /// Returns once everything on disk is copied, or after `patience` without success. False if something is
  /// not copied, which was reported.
  [[nodiscard]] bool finish(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;
  void learn(const std::vector<StoredWorker>& workers);
  void loop();
  void work(std::unique_lock<std::mutex>& lock);
  void failed(const std::string& why);
  void mark_abandoned(std::unique_lock<std::mutex>& lock);
  void copy_checkpoint(std::unique_lock<std::mutex>& lock, std::uint64_t step);
  void copy_log(std::unique_lock<std::mutex>& lock);
  void remove_superseded(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<std::uint64_t> next_step() const;
  [[nodiscard]] bool has_work() const;
  [[nodiscard]] std::string key_of(std::uint64_t step) const;
  [[nodiscard]] std::filesystem::path file_of(std::uint64_t step) const;
  [[nodiscard]] ObjectStore::Stopped between_parts();

  Options options_;
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<StoredLog> log_;  ///< null: no log
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool listed_ = false;   ///< whether stored_ is known
  bool refused_ = false;  ///< the store has another run's checkpoints: nothing is copied
  std::map<std::uint64_t, ObjectEntry> stored_;
  std::set<std::uint64_t> on_disk_;
  std::vector<std::string> trainers_;
  std::optional<std::uint64_t> abandoned_after_;
  bool log_due_ = false, prune_due_ = false, busy_ = false, closing_ = false;
  std::chrono::milliseconds pause_{0};  ///< before the next try, after a failure
  bool failing_ = false;                ///< the last try failed, which was reported
  Clock::time_point last_success_ = Clock::now();
  std::thread thread_;
};

}  // namespace isthmus::app
