#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus ctl`: asks a run's coordinator for the status of the run, or to change it.
void add_ctl(CommandLine& commands);

}  // namespace isthmus::app
