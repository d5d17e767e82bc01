#pragma once
// The interface between `isthmus` and libisthmus_trainer.so, which must come from one build. The library has
// its own copy of all layers; no exception and no C++ object crosses the interface.

#include "run/output/version.h"

namespace isthmus::app {

inline constexpr const char* isthmus_description = "isthmus: train one language model across far-apart sites";

/// The libtorch and the CUDA architectures that the trainer was built with.
inline TrainerBuild trainer_build() {
  return {.torch = ISTHMUS_TORCH_VERSION, .cuda = ISTHMUS_CUDA_ARCHITECTURES};
}

/// The program compares this with its own build before it calls anything else of the library.
inline std::string trainer_library_build() {
  const auto build = trainer_build();
  return version() + ", commit " + build_name(build) + ", CUDA " + build.cuda;
}
using TrainerBuildName = const char* (*)();

/// Takes the program's arguments without --torch, and the value of --torch or "". Returns the exit status.
using TrainerMain = int (*)(int argc, char** argv, const char* torch);

}  // namespace isthmus::app
