#pragma once
// Writes outer gradients before they are encoded, to compare codecs on real data (`compare_codecs FOLDER`).

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::app {

/// Writes files `step_S_fragment_P.f32` in its own folder: fp32, little-endian, one outer gradient (global
/// minus local parameters) each.
class OuterGradientRecorder {
 public:
  /// Writes every `every`-th outer gradient of each fragment, including the first. Creates the folder; throws
  /// Error(data) if it cannot.
  OuterGradientRecorder(std::filesystem::path folder, std::uint64_t every);

  /// Throws Error(data) naming the file if it cannot be written.
  void operator()(outer_sync::FragmentId fragment, std::uint64_t step, std::span<const float> global,
                  std::span<const float> local);

 private:
  std::filesystem::path folder_;
  std::uint64_t every_;
  std::map<outer_sync::FragmentId, std::uint64_t> seen_;
  std::vector<float> difference_;
};

}  // namespace isthmus::app
