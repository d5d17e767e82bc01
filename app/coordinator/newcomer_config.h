#pragma once
// The part of the run's config that a machine gets when it joins with a token: everything except the keys
// that each machine sets for itself.

#include <string>

#include "run/experiment/experiment.h"

namespace isthmus::app {

/// YAML with every key, including those of sites. Left out are network.insecure and texts of class per_site,
/// which are paths, addresses and commands of the coordinator's own machine. If they are set there, comments
/// show them.
[[nodiscard]] std::string config_for_newcomers(Experiment& experiment);

/// Checks such a text, which is not trusted. Throws Error(network) with the key if it sets what only this
/// machine may set, and Error(config) if it is not a config.
void check_config_for_newcomers(const std::string& yaml);

}  // namespace isthmus::app
