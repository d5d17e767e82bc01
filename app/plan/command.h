#pragma once
// The command `plan`, which both binaries have.

#include "command_line/command_line.h"
#include "plan/plan.h"

namespace isthmus::app {

/// `measure` times a training step for --probe; null in a binary without a trainer.
void add_plan(CommandLine& commands, MeasureStep measure);

}  // namespace isthmus::app
