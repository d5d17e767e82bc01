#pragma once
// `isthmus compare`: arms of an experiment, run with several seeds, and what their losses say.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace isthmus::app {

class CommandLine;

struct CompareRequest {
  std::filesystem::path file;  ///< the comparison
  std::string size;            ///< of its sizes; empty: the first
  std::vector<std::string> assignments;
  std::size_t jobs = 1;
  bool json = false;                 ///< the report on standard output, and nothing else there
  bool no_run = false;               ///< a report of the runs that are there
  bool certify = false;              ///< the exit status says whether all gates passed
  std::vector<std::string> program;  ///< that has `launch`: the first words of a command
};

/// Exit status: 0, 130 when Ctrl-C has stopped it, or with `certify` that of a divergence where a gate did
/// not pass.
[[nodiscard]] int run_compare(const CompareRequest& request);

void add_compare(CommandLine& commands, CompareRequest& request);

}  // namespace isthmus::app
