#include "worker/setup/machine_traits.h"

#include <fmt/format.h>

#include "run/process/machine.h"

namespace isthmus::app {

MachineTraits machine_traits(const Experiment& experiment, const Hardware& hardware,
                             const std::string& build) {
  const auto threads = experiment.trainer.threads;
  MachineTraits traits{{"build", build},
                       {"device", std::string(to_string(hardware.device))},
                       {"precision", std::string(to_string(hardware.precision))},
                       {"processor", processor_here()},
                       {"ranks", std::to_string(experiment.replica.ranks)},
                       {threads_trait, std::to_string(threads > 0 ? threads : cores_here())}};
  const auto gpus = trainer::probe_hardware().gpus;
  if (hardware.device == trainer::Device::cuda && !gpus.empty()) traits["gpu"] = gpus.front().name;
  return traits;
}

}  // namespace isthmus::app
