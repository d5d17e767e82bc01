#pragma once
// `outer.auto`: a plan's recommendation becomes the run's settings before the run starts.

#include "run/experiment/experiment.h"

namespace isthmus::app {

/// Throws Error(config) if outer.auto cannot choose settings, naming the reason.
void check_automatic(const Experiment& experiment);
/// Sets sync_every, num_fragments, sync_delay, codec and, if needed, error_feedback; describes them in
/// `auto_note`; sets outer.auto.at_start to false, so that a resumed run keeps them. Depends only on
/// `general` (the config without any site's settings) and its links file, so equal configs give equal
/// settings; members compare them when they join. Throws Error(config) if no setting fits.
void choose_settings(Experiment& experiment, Experiment general);

}  // namespace isthmus::app
