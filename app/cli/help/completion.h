#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus completion bash|zsh`: a shell script, generated from the definitions of verbs, options and keys.
void add_completion(CommandLine& commands);

}  // namespace isthmus::app
