#pragma once
// `outer.auto`: what a plan recommends becomes the run's settings before it begins.

#include "run/experiment.h"

namespace isthmus::app {

/// What outer.auto needs. Throws Error(config) naming what it has not.
void check_automatic(const Experiment& experiment);
/// Sets sync_every, num_fragments, sync_delay, codec and, where that needs it, error_feedback, says so in
/// `auto_note`, and sets outer.auto.at_start to false: a resumed run keeps them. A pure function of
/// `general`, the config as it is at no site, and of its links file, so whoever reads the same config has the
/// same settings; members compare them when they join. Throws Error(config) where nothing can be chosen.
void choose_settings(Experiment& experiment, Experiment general);

}  // namespace isthmus::app
