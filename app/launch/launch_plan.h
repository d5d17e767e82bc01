#pragma once
// The processes of a launch: the experiment, which process runs where, and the commands that start them.

#include <cstdint>
#include <string>
#include <vector>

#include "launch/launch.h"
#include "launch/sites/launch_places.h"

namespace isthmus::app {

class LaunchPlan {
 public:
  /// Loads the experiment of the request, which must outlive this. Throws Error(config) if the
  /// config does not allow a start.
  explicit LaunchPlan(const LaunchRequest& request);
  LaunchPlan(const LaunchPlan&) = delete;
  LaunchPlan& operator=(const LaunchPlan&) = delete;

  [[nodiscard]] const Experiment& experiment() const { return experiment_; }
  [[nodiscard]] const Places& places() const { return places_; }
  /// The file and the assignments of the request.
  [[nodiscard]] LaunchConfig config() const;
  /// Names of the reducers, which belong to no site.
  [[nodiscard]] std::vector<std::string> reducers() const;
  [[nodiscard]] bool is_reducer(const std::string& name) const;
  [[nodiscard]] bool has_remote_sites() const;
  /// Reducers and the coordinator have none.
  [[nodiscard]] Place place_of(const std::string& name) const;
  /// Whether this launch starts the worker; otherwise a scheduler does.
  [[nodiscard]] bool is_started_here(const std::string& worker) const;
  [[nodiscard]] bool starts_all() const;

  /// The address at which a coordinator listens that others dial at `address`.
  [[nodiscard]] std::string listen_address(const std::string& address) const;
  /// Commands on this machine; `config` is the config in the run's folder.
  [[nodiscard]] std::vector<std::string> coordinator_command(const std::filesystem::path& config,
                                                             bool resume) const;
  [[nodiscard]] std::vector<std::string> worker_command(const std::string& name,
                                                        const std::filesystem::path& config,
                                                        const std::string& coordinator) const;

 private:
  [[nodiscard]] Experiment load() const;

  const LaunchRequest& request_;
  Experiment experiment_;
  Places places_;
  std::int64_t threads_here_ = 0;  ///< for each rank of this machine's workers; 0: as configured
};

/// A line about a site that this launch does not start, for the log; empty for other sites.
[[nodiscard]] std::string line_about_awaited(const Site& site, bool resumes);

}  // namespace isthmus::app
