#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus bench outer` and `bench loader`.
void add_bench(CommandLine& commands);

}  // namespace isthmus::app
