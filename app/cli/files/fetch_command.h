#pragma once
// `isthmus fetch`: what an object store has of a run, and copies of it.

#include "command_line/command_line.h"

namespace isthmus::app {

void add_fetch(CommandLine& commands);

}  // namespace isthmus::app
