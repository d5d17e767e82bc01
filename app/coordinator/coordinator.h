#pragma once
// `isthmus coordinator`: forms the view, shows the run's progress, writes summary.json.

#include <set>
#include <string>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "run/experiment.h"

namespace isthmus::app {

struct CoordinatorRequest {
  Experiment experiment;
  int announce_fd = -1;  ///< gets "PORT\n" once the listener is bound
  bool resume = false;
  bool json = false;     ///< print the summary as a document
  std::string build;     ///< of this binary
  bool recover = false;  ///< form the run from its members, whatever this disk remembers
  /// Trainers of the last view that need not be there for it.
  std::set<std::string> given_up{};
};

/// As the experiment says; the rest is its caller's.
[[nodiscard]] outer_sync::protocol::CoordinatorOptions coordinator_options(Experiment& experiment);
/// "PORT\n" to a descriptor that a launcher listens to, which is closed; nothing if it is negative.
void announce_port(int fd, std::uint16_t port);

/// Exit status: 0 finished, 130 stopped by whomever, otherwise Error's.
[[nodiscard]] int run_coordinator(CoordinatorRequest request);

}  // namespace isthmus::app
