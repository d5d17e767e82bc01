#pragma once
// Runs what is missing of a comparison: one `isthmus launch` for each run, each in a folder of its own.

#include <filesystem>
#include <functional>
#include <vector>

#include "compare/comparison.h"

namespace isthmus::app {

struct RunnerOptions {
  std::vector<std::string> program;  ///< that has `launch`: the first words of a command
  std::size_t jobs = 1;              ///< runs at once
  std::FILE* out = nullptr;          ///< gets the progress
  /// After each run that has come to its end.
  std::function<void()> finished;
};

/// Begins, or goes on with, every run that is not finished, in their order. A run that diverges is finished
/// by that; any other failure ends those under way, and is thrown as the Error that `launch` ended with, with
/// the end of its log. Returns 0, or 130 when a signal has stopped it: the runs under way then have a
/// checkpoint, where they had begun. No process is left behind. Must be called before other threads are
/// started.
[[nodiscard]] int run_missing(const Comparison& comparison, const RunnerOptions& options);

}  // namespace isthmus::app
