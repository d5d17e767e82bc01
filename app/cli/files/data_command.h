#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus data`: makes a chunk store from text, shows what one holds, finds settings for a corpus, and
/// reports which sequences a run trained on.
void add_data(CommandLine& commands);

}  // namespace isthmus::app
