#pragma once
// `isthmus coordinator`: forms the view, shows the run's progress, writes summary.json.

#include <set>
#include <string>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

struct CoordinatorRequest {
  Experiment experiment;
  std::string chosen{};  ///< the settings that outer.auto chose, and why; empty: none
  int announce_fd = -1;  ///< gets "PORT\n" once the listener is bound
  bool resume = false;
  bool json = false;     ///< print the summary as JSON
  std::string build;     ///< of this binary
  bool recover = false;  ///< form the run from its members, ignoring the state on disk
  /// With `recover`: trainers of the last view that need not be present.
  std::set<std::string> given_up{};
};

/// The options that follow from the experiment; the caller sets the others.
[[nodiscard]] outer_sync::protocol::CoordinatorOptions coordinator_options(Experiment& experiment);
/// Writes "PORT\n" to the launcher's descriptor, and closes it. Does nothing if `fd` is negative.
void announce_port(int fd, std::uint16_t port);

/// Returns the exit status: 0 finished, 130 stopped. Throws Error if the run failed.
[[nodiscard]] int run_coordinator(CoordinatorRequest request);

}  // namespace isthmus::app
