#include "worker/training/inner_rate.h"

#include "isthmus/trainer/schedule.h"

namespace isthmus::app {

double inner_rate(const Experiment& experiment, std::uint64_t step, std::uint64_t ramp_steps) {
  const double ramp =
      ramp_steps < join_ramp_steps ? static_cast<double>(ramp_steps + 1) / join_ramp_steps : 1;
  return ramp *
         trainer::learning_rate(experiment.inner, step, static_cast<std::uint64_t>(experiment.run.steps));
}

}  // namespace isthmus::app
