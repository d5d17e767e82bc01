#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus replay`: rebuilds a model from a round log.
void add_replay(CommandLine& commands);

}  // namespace isthmus::app
