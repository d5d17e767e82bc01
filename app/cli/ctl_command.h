#pragma once
// `isthmus ctl`: asks a run's coordinator for the status of the run, or to change it.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace isthmus::app {

struct CtlRequest {
  std::string verb;
  std::vector<std::string> arguments;
  std::string name = "operator";  ///< name of the certificate
  std::string member;
  std::uint64_t at = 0;
  bool json = false;
};

/// The request must outlive the command line.
void add_ctl(CommandLine& commands, CtlRequest& request);

}  // namespace isthmus::app
