#pragma once
// Makes the missing runs of a comparison: one `isthmus launch` for each run, each in its own folder.

#include <filesystem>
#include <functional>
#include <vector>

#include "compare/arms/comparison.h"

namespace isthmus::app {

struct RunnerOptions {
  std::vector<std::string> program;  ///< first words of a command, to which `launch` is added
  std::size_t jobs = 1;              ///< runs at once
  std::FILE* out = nullptr;          ///< gets the progress
  /// Called after each run that has ended.
  std::function<void()> finished;
};

/// Starts or continues every run that is not finished, in order. A run that diverges counts as finished. Any
/// other failure stops the active runs, and is thrown as the Error of `launch` with the end of its log.
/// Returns 0, or 130 if a signal stopped it; the active runs then have a checkpoint, if they had begun.
/// Leaves no process behind. Call it before other threads are started.
[[nodiscard]] int run_missing(const Comparison& comparison, const RunnerOptions& options);

}  // namespace isthmus::app
