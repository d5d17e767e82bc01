#pragma once
// The commands `launch`, `attach`, and `tether`, which launch starts at other sites.

#include "command_line/command_line.h"

namespace isthmus::app {

void add_launch(CommandLine& commands);
void add_attach(CommandLine& commands);
void add_tether(CommandLine& commands);

}  // namespace isthmus::app
