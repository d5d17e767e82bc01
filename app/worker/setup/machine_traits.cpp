#include "worker/setup/machine_traits.h"

#include <filesystem>
#include <system_error>

#include "run/process/machine.h"

namespace isthmus::app {

namespace {
std::string ranks_of(const trainer::ReplicaConfig& replica) {
  auto text = std::to_string(replica.ranks);
  if (replica.ranks_per_sequence > 1)
    text += ", " + std::to_string(replica.ranks_per_sequence) + " per sequence";
  if (replica.ranks > 1 && replica.average_every > 1)
    text += ", averaged every " + std::to_string(replica.average_every) + " steps";
  if (const auto machines = replica.machine_list(); machines.size() > 1)
    text += ", on " + std::to_string(machines.size()) + " machines";
  return text;
}
}  // namespace

MachineTraits machine_traits(const Experiment& experiment, const ModelSetup& setup,
                             const std::string& build) {
  const auto& hardware = setup.hardware;
  std::error_code none;
  const auto library = std::filesystem::file_size(trainer::torch_in_use() / "libtorch_cpu.so", none);
  MachineTraits traits{{"build", build},
                       {data_trait, setup.corpus.fingerprint().hex()},
                       {"device", std::string(to_string(hardware.device))},
                       {"instructions", trainer::instructions_in_use()},
                       {"libtorch bytes", std::to_string(none ? 0 : library)},
                       {"precision", std::string(to_string(hardware.precision))},
                       {"processor", processor_here()},
                       {"ranks", ranks_of(experiment.replica)},
                       {threads_trait, std::to_string(trainer::threads_in_use())}};
  if (hardware.device != trainer::Device::cuda) return traits;
  const auto gpus = trainer::probe_hardware().gpus;
  traits["gpu"] = gpus.empty() ? "" : gpus.front().name;
  traits[deterministic_trait] = experiment.trainer.deterministic ? "yes" : "no";
  return traits;
}

}  // namespace isthmus::app
