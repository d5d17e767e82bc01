#pragma once
// `isthmus bench`: measures the speed of parts of a run, without a model.
//
// `bench outer` runs the real outer loop over the real network, with a trainer that sleeps instead of
// computing: does a setting keep accelerators busy over a link?

#include <filesystem>
#include <string>
#include <vector>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct OuterBenchRequest {
  /// `all` starts the coordinator and all replicas on this machine.
  enum class Role { all, coordinator, replica } role = Role::all;
  Experiment experiment;
  std::uint64_t parameters = 0;
  config::Duration step_time;
  std::string name;                  ///< of the replica; for `replica` only
  std::string build;                 ///< of this binary, for messages about different builds
  std::filesystem::path out;         ///< file for the report as JSON; empty: no file
  bool json = false;                 ///< print the report as JSON
  bool quiet = false;                ///< a replica prints errors only
  int announce_fd = -1;              ///< as in CoordinatorRequest; for `coordinator` only
  std::vector<std::string> command;  ///< this program and the options that all roles share
};

/// Prepares the experiment for measuring its outer loop: `steps` steps (0: enough to measure two sync
/// intervals), no warm-up and no final sync. Throws Error(config) if its outer loop cannot be measured.
void make_measurable(Experiment& experiment, std::int64_t steps);
/// Steps at the beginning that are not measured: until every fragment has been in flight once, at the last
/// sync_every.
[[nodiscard]] std::uint64_t filling_steps(const Experiment& experiment);

/// `experiment` must have passed through make_measurable. Returns the exit status: 0 measured, 130 stopped by
/// Ctrl-C, 143 for a replica after SIGTERM, 5 if hashes differ, otherwise that of the Error.
[[nodiscard]] int run_outer_bench(OuterBenchRequest request);

}  // namespace isthmus::app
