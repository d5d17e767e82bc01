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
  std::vector<std::string> program;  ///< that has `launch`: the first words of a command
};

/// Exit status: 0, or 130 when Ctrl-C has stopped it.
[[nodiscard]] int run_compare(const CompareRequest& request);

void add_compare(CommandLine& commands, CompareRequest& request);

}  // namespace isthmus::app
