#pragma once
// A run in an object store: RUN/WORKER/checkpoints/ holds a worker's checkpoints under the names of their
// files, RUN/WORKER/log/ its round log (stored_log.h). The checkpoint of a history that the run abandoned has
// an empty object of the same name with .undone next to it, since objects cannot be renamed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/object_store.h"

namespace isthmus::app {

struct StoredCheckpoint {
  std::uint64_t step = 0;
  ObjectEntry object;
};

struct StoredWorker {
  std::string name;
  std::vector<StoredCheckpoint> checkpoints;  ///< ascending; without those of abandoned histories
  std::uint64_t log_bytes = 0;
};

/// Prefix of a worker's objects, or of all of the run without a worker.
[[nodiscard]] std::string stored_worker_prefix(const std::string& run, const std::string& worker);
[[nodiscard]] std::string stored_checkpoint_key(const std::string& run, const std::string& worker,
                                                std::uint64_t step);
/// Key of the mark of an abandoned checkpoint.
[[nodiscard]] std::string stored_mark_key(const std::string& checkpoint_key);

/// All workers of a run, or one, by name. Objects with other names are ignored. Throws as ObjectStore does.
[[nodiscard]] std::vector<StoredWorker> stored_workers(ObjectStore& store, const std::string& run,
                                                       const std::string& worker = {});
/// The same for a listing.
[[nodiscard]] std::vector<StoredWorker> stored_workers(const std::vector<ObjectEntry>& objects,
                                                       const std::string& run);

/// Prefix of the keys of a worker's round log.
[[nodiscard]] std::string stored_log_prefix(const std::string& run, const std::string& worker);

/// Where `isthmus fetch` and verbs that take the URL of a run find it.
struct StoredRunPlace {
  std::string run;  ///< last part of the URL
  ObjectStoreOptions options;
};
/// The place of s3://BUCKET/PREFIX/RUN; other options from assignments of object_store keys. Throws
/// Error(config).
[[nodiscard]] StoredRunPlace stored_run_place(const std::string& url,
                                              const std::vector<std::string>& assignments);

/// Which of a run's objects to fetch, and where to.
struct FetchRequest {
  std::string worker;                 ///< empty: any
  std::optional<std::uint64_t> step;  ///< none: the newest
  std::filesystem::path out;          ///< run folder; empty: fetched/RUN
};
/// Fetches a checkpoint into OUT/WORKER/checkpoints, unless it is there already. Returns its file. Reports
/// progress on standard error. Throws as ObjectStore does, and Error(data) without one.
[[nodiscard]] std::filesystem::path fetch_checkpoint(const StoredRunPlace& place,
                                                     const FetchRequest& request);
/// Fetches the longest round log into OUT/log/WORKER, replacing an earlier copy there. Returns that
/// folder. Throws in the same way.
[[nodiscard]] std::filesystem::path fetch_round_log(const StoredRunPlace& place, const FetchRequest& request);

}  // namespace isthmus::app
