#pragma once
// `isthmus compare`: runs the arms of an experiment with several seeds, and reports which losses differ.

#include <filesystem>
#include <string>
#include <vector>

#include "command_line/command_line.h"

namespace isthmus::app {

struct CompareRequest {
  std::filesystem::path file;  ///< the comparison
  std::string size;            ///< one of its sizes; empty: the first
  std::vector<std::string> assignments;
  std::size_t jobs = 1;
  bool json = false;                 ///< print only the report, as JSON, on standard output
  bool no_run = false;               ///< run nothing; report on the existing runs
  bool certify = false;              ///< the exit status shows whether all gates passed
  std::vector<std::string> program;  ///< first words of a command, to which `launch` is added
};

/// Returns the exit status: 0; 130 after Ctrl-C; with `certify`, that of ErrorKind::divergence if a gate did
/// not pass.
[[nodiscard]] int run_compare(const CompareRequest& request);

void add_compare(CommandLine& commands);

}  // namespace isthmus::app
