#pragma once

#include "command_line/command_line.h"

namespace isthmus::app {

/// `isthmus certs`: makes, issues and revokes the certificates of a run.
void add_certs(CommandLine& commands);

}  // namespace isthmus::app
