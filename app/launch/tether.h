#pragma once
// `isthmus tether`: what `launch` starts at a site over ssh. It writes the files that it is given below its
// folder, starts the workers that it is told to, passes on what they say, and ends them when its standard
// input does, or when nobody has spoken there for too long: no worker outlives its launch.

#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

struct TetherRequest {
  std::filesystem::path folder;           ///< made if need be
  std::string build;                      ///< of this binary
  std::vector<std::string> program = {};  ///< this binary: the first words of a command
  double silence = 30;                    ///< seconds after which the launch is taken for lost
  double grace = 10;                      ///< seconds that a worker has to end by itself then
};

/// Exit status: 0 when the launch has gone, 3 where the folder or a file in it cannot be written.
[[nodiscard]] int run_tether(const TetherRequest& request);

}  // namespace isthmus::app
