#pragma once
// `isthmus bench`: how fast parts of a run are, without a model.
//
// `bench outer` runs the outer loop as it is, over the network as it is, under a trainer that sleeps in place
// of computing: does a setting keep accelerators busy over a link?

#include <filesystem>
#include <string>
#include <vector>

#include "run/experiment.h"

namespace isthmus::app {

struct OuterBenchRequest {
  /// `all` starts the others on this machine.
  enum class Role { all, coordinator, replica } role = Role::all;
  Experiment experiment;
  std::uint64_t parameters = 0;
  config::Duration step_time;
  std::string name;                  ///< of a replica
  std::string build;                 ///< of this binary, for messages about unequal ones
  std::filesystem::path out;         ///< gets the report as JSON; empty for none
  bool json = false;                 ///< print it
  bool quiet = false;                ///< a replica's: the coordinator says it all
  int announce_fd = -1;              ///< a coordinator's, as in CoordinatorRequest
  std::vector<std::string> command;  ///< this program and the flags that all roles share
};

/// "200M", "1.5B" (thousand million), "64k" or a plain number. Throws Error(config).
[[nodiscard]] std::uint64_t parameter_count(const std::string& text);
/// "500ms". Throws Error(config).
[[nodiscard]] config::Duration step_duration(const std::string& text);

/// The experiment as its outer loop is measured: without warm-up and final sync, of so many steps (0: as many
/// as it takes to measure two sync intervals). Throws Error(config) for what cannot be measured.
void make_measurable(Experiment& experiment, std::int64_t steps);
/// Steps until every fragment is in flight once in an interval, at the last sync_every: they are not
/// measured.
[[nodiscard]] std::uint64_t filling_steps(const Experiment& experiment);

/// `experiment` must have been made measurable. Exit status: 0 measured, 130 stopped by Ctrl-C, 143 a replica
/// after SIGTERM, 5 where hashes differ, otherwise Error's.
[[nodiscard]] int run_outer_bench(OuterBenchRequest request);

}  // namespace isthmus::app
