#pragma once
// The model of a run on the machine that launched it: its folder there has the run's config, and the
// checkpoints are at the sites. Used by load_trained_model.

#include <filesystem>
#include <string>
#include <vector>

#include "model/trained_model.h"

namespace isthmus::app {

/// Whether the folder is that of a launched run.
[[nodiscard]] bool is_launched_run(const std::filesystem::path& folder);

/// Copies the global parameters of the live run, through its own connections. If the run is not live, fetches
/// the newest checkpoint from a site, into FOLDER/fetched/SITE, where a later call finds it. Reports progress
/// on standard error. Throws Error(data) with the reason of each failure and what to do next; Error(config)
/// for wrong settings.
[[nodiscard]] TrainedModel model_of_launched_run(const std::filesystem::path& folder,
                                                 const std::vector<std::string>& assignments,
                                                 const std::string& build);

}  // namespace isthmus::app
