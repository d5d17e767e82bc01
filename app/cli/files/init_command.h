#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus init`: writes the config of a new run from a recipe, and makes its certificates.
void add_init(CommandLine& commands);

}  // namespace isthmus::app
