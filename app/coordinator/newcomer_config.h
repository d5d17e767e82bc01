#pragma once
// What a machine that joins by a token is given of the run's config: all but what each machine says for
// itself.

#include <string>

#include "run/experiment.h"

namespace isthmus::app {

/// In YAML: every key, those of sites included, but for texts of class per_site, which are paths, addresses
/// and commands of the coordinator's own machine, and for network.insecure. What of these is set there stands
/// in comments.
[[nodiscard]] std::string config_for_newcomers(Experiment& experiment);

/// Of such a text, wherever it comes from: throws Error(network) naming the key when it says what only this
/// machine may, and Error(config) when it is no config.
void check_config_for_newcomers(const std::string& yaml);

}  // namespace isthmus::app
