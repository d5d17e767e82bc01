#pragma once
// The commands `launch` and `attach`, and two that are started at sites: `tether` by launch, and `give-model`
// by export, eval and sample.

#include "command_line/command_line.h"

namespace isthmus::app {

void add_launch(CommandLine& commands);
void add_attach(CommandLine& commands);
void add_tether(CommandLine& commands);
void add_give_model(CommandLine& commands);

}  // namespace isthmus::app
