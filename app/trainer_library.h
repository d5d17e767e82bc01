#pragma once
// Between `isthmus` and libisthmus_trainer.so, which have to be of one build. The library has its own copy
// of all layers; no exception and no C++ object crosses.

#include "run/version.h"

namespace isthmus::app {

inline constexpr const char* isthmus_description =
    "isthmus: one language model on machines that are far apart";

/// What the trainer was built with.
inline TrainerBuild trainer_build() {
  return {.torch = ISTHMUS_TORCH_VERSION, .cuda = ISTHMUS_CUDA_ARCHITECTURES};
}

/// The program compares the library's build with its own before it calls anything else.
inline std::string trainer_library_build() {
  const auto build = trainer_build();
  return version() + ", commit " + build_name(build) + ", CUDA " + build.cuda;
}
using TrainerBuildName = const char* (*)();

/// Arguments of the program without --torch, and what that named, or "". Exit status.
using TrainerMain = int (*)(int argc, char** argv, const char* torch);

}  // namespace isthmus::app
