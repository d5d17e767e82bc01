#pragma once
// The workers that a launch starts with, and the GPUs and input of those on this machine.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/sites/launch_sites.h"

namespace isthmus::app {

/// Where one worker runs.
struct Place {
  const Site* site = nullptr;     ///< null without sites
  std::size_t index = 0;          ///< among the site's workers
  std::vector<std::string> gpus;  ///< on this machine
  bool has_command = false;       ///< a worker.command trains there
};

struct Places {
  std::map<std::string, Place> of;  ///< by name of the worker
  std::string reader;               ///< the worker that reads this process's standard input, if any
  std::int64_t processes = 0;       ///< ranks of all workers on this machine
};

/// Refers to the sites of `experiment`, which must outlive the result. Throws Error(config) if two workers
/// would read standard input, or if there are too few GPUs.
[[nodiscard]] Places find_places(const Experiment& experiment, const LaunchConfig& config);

}  // namespace isthmus::app
