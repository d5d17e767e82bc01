#pragma once
// `isthmus top`: shows the live status of a run in a terminal.

#include <string>

#include "cli/commands.h"

namespace isthmus::app {

struct TopRequest {
  std::string name = "operator";  ///< name of the certificate
  bool once = false;
};

/// The request must outlive the command line.
void add_top(CommandLine& commands, TopRequest& request);

}  // namespace isthmus::app
