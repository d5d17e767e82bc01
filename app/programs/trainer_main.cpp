// The entry points of libisthmus_trainer.so, which has all verbs and a trainer. `isthmus` loads it after
// libtorch (trainer_library.h).

#include "cli/verbs.h"
#include "isthmus/trainer/device.h"
#include "trainer_library.h"
#include "worker/setup/step_probe.h"

using namespace isthmus;
using namespace isthmus::app;

namespace {

Finding find_device(const Experiment& experiment) {
  const auto device = trainer::choose_device(experiment.device, trainer::probe_hardware());
  return {"device", Level::ok,
          "trains on " + std::string(to_string(device)) + " with libtorch in " +
              trainer::torch_in_use().string()};
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* isthmus_trainer_build() noexcept {
  static const auto build = trainer_library_build();
  return build.c_str();
}

extern "C" __attribute__((visibility("default"))) int isthmus_trainer_main(int argc, char** argv,
                                                                           const char* torch) noexcept {
  CommandLine commands(isthmus_description, trainer_build(), torch);
  const TrainerVerbs verbs{.worker = run_worker,
                           .observe = run_observe,
                           .model = {.write_model = run_export,
                                     .evaluate = run_eval,
                                     .sample = run_sample,
                                     .audit = run_audit,
                                     .selftest = run_selftest,
                                     .rank = run_rank},
                           .device = find_device,
                           .measure_step = measure_step};
  return run_verbs(commands, &verbs, argc, argv);
}
