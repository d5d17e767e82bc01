#pragma once
// What is there of a run of a comparison: whether it is finished, can be gone on with, or is to begin.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "compare/comparison.h"

namespace isthmus::app {

/// Why a run is finished that has not come to its last step.
struct EarlyEnd {
  std::string how;    ///< time, hopeless or diverged; empty: it has come to its last step
  std::string words;  ///< for people
};

struct RunState {
  enum class Stage { missing, unfinished, finished } stage = Stage::missing;
  bool resumable = false;  ///< unfinished, with a checkpoint that all of its workers have
  EarlyEnd ended;
};

/// Throws Error(config), naming the first key that differs, when the folder has a run of another config.
[[nodiscard]] RunState state_of(const RunPlan& run);

/// Says in the run's folder that it is finished although it has not come to its last step.
void mark_ended(const RunPlan& run, const EarlyEnd& end);

/// summary.json of a run that came to an end, stopped or not; null where there is none. Throws Error(data)
/// for a file that is none.
[[nodiscard]] nlohmann::json summary_of(const std::filesystem::path& folder);

}  // namespace isthmus::app
