#pragma once

#include <string>
#include <vector>

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus config`: prints an experiment with every key, the keys in which two differ, the definition of one
/// key, or the reference of all keys.
void add_config(CommandLine& commands);

/// Names of all keys that `--set` accepts.
[[nodiscard]] std::vector<std::string> config_keys();

}  // namespace isthmus::app
