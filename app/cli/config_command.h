#pragma once
// `isthmus config`, `isthmus config explain` and `isthmus config diff`.

#include <filesystem>
#include <string>
#include <vector>

#include "run/experiment/experiment.h"

namespace isthmus::app {

struct ConfigRequest {
  std::string key;             ///< for explain
  std::filesystem::path a, b;  ///< for diff: run folders, or config files
  bool json = false;
};

/// Prints all keys in Markdown, or as a JSON document.
int print_reference(bool as_json);
/// Prints every key with its value in YAML, or as a JSON document.
int print_config(Experiment& experiment, bool as_json);
/// Names of all keys that `--set` accepts.
[[nodiscard]] std::vector<std::string> config_keys();

/// Prints class, unit, range, default, meaning and reason of a key. Throws Error(config) with the nearest
/// keys for an unknown key.
int run_config_explain(const ConfigRequest& request);
/// Prints the keys that differ, with the values in effect. Throws Error(config).
int run_config_diff(const ConfigRequest& request);

}  // namespace isthmus::app
