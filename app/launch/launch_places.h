#pragma once
// Which workers a launch begins with, and what those of this machine get of it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/launch_sites.h"

namespace isthmus::app {

/// Of one worker.
struct Place {
  const Site* site = nullptr;     ///< null without sites
  std::size_t index = 0;          ///< among the site's workers
  std::vector<std::string> gpus;  ///< of this machine
};

struct Places {
  std::map<std::string, Place> of;  ///< by worker
  std::string reader;               ///< the worker whose stream is this process's standard input, if one is
  std::int64_t processes = 0;       ///< ranks of the workers of this machine
};

/// Sites are those of `experiment`, which must outlive it. Throws Error(config) where two workers would read
/// standard input, and where there are too few GPUs.
[[nodiscard]] Places find_places(const Experiment& experiment, const LaunchConfig& config);

}  // namespace isthmus::app
