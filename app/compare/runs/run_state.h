#pragma once
// The state of a run of a comparison: missing, unfinished (and perhaps resumable) or finished.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "compare/arms/comparison.h"

namespace isthmus::app {

/// Why a run finished before its last step.
struct EarlyEnd {
  std::string how;    ///< time, hopeless or diverged; empty: it reached its last step
  std::string words;  ///< human-readable
};

struct RunState {
  enum class Stage { missing, unfinished, finished } stage = Stage::missing;
  bool resumable = false;  ///< unfinished, with a checkpoint that all of its workers have
  EarlyEnd ended;
};

/// Throws Error(config), with the first key that differs, if the folder has a run of another config.
[[nodiscard]] RunState state_of(const RunPlan& run);

/// Records in the run's folder that the run is finished although it did not reach its last step.
void mark_ended(const RunPlan& run, const EarlyEnd& end);

/// summary.json of a run that ended, stopped or not; null if the file does not exist. Throws Error(data) if
/// it is not a summary.
[[nodiscard]] nlohmann::json summary_of(const std::filesystem::path& folder);

}  // namespace isthmus::app
