#pragma once
// `isthmus config explain` and `isthmus config diff`.

#include <filesystem>
#include <string>
#include <vector>

#include "run/experiment.h"

namespace isthmus::app {

struct ConfigRequest {
  std::string key;             ///< of explain
  std::filesystem::path a, b;  ///< of diff: run folders, or config files
  bool json = false;
};

/// All keys in Markdown, or as a document.
int print_reference(bool as_json);
/// Every key with its value, in YAML, or as a document.
int print_config(Experiment& experiment, bool as_json);
/// Names of all keys that `--set` takes.
[[nodiscard]] std::vector<std::string> config_keys();

/// Class, unit, range, default, meaning and why. Throws Error(config) for a key that there is not, naming the
/// nearest.
int run_config_explain(const ConfigRequest& request);
/// Keys that differ, with the values in effect. Throws Error(config).
int run_config_diff(const ConfigRequest& request);

}  // namespace isthmus::app
