#pragma once
// Writes outer gradients as they are before encoding, so that codecs can be compared on the real thing
// (`compare_codecs FOLDER`).

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::app {

/// Files `step_S_fragment_P.f32` in a folder of their own: fp32, little-endian, one outer gradient (global
/// minus local parameters) each.
class OuterGradientRecorder {
 public:
  /// Writes every `every`-th of each fragment, the first included. Makes the folder; throws Error(data) when
  /// it cannot.
  OuterGradientRecorder(std::filesystem::path folder, std::uint64_t every);

  /// Throws Error(data) naming the file when it cannot be written.
  void operator()(outer_sync::FragmentId fragment, std::uint64_t step, std::span<const float> global,
                  std::span<const float> local);

 private:
  std::filesystem::path folder_;
  std::uint64_t every_;
  std::map<outer_sync::FragmentId, std::uint64_t> seen_;
  std::vector<float> difference_;
};

}  // namespace isthmus::app
