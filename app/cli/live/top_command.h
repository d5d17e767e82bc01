#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus top`: shows the live status of a run in a terminal.
void add_top(CommandLine& commands);

}  // namespace isthmus::app
