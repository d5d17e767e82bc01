#pragma once
// Sizes and times that `plan` and `bench` take on the command line instead of a model.

#include <cstdint>
#include <string>

#include "isthmus/base/config.h"
#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::app {

/// "200M", "1.5B" (thousand million), "64k" or a plain number. Throws Error(config).
[[nodiscard]] std::uint64_t parameter_count(const std::string& text);
/// "500ms". Throws Error(config).
[[nodiscard]] config::Duration step_duration(const std::string& text);

/// Fragments of equal size to within 16 elements; each begins at a multiple of 16. Throws Error(config) if a
/// fragment has fewer than 16 parameters.
[[nodiscard]] outer_sync::FragmentLayout even_layout(const outer_sync::OuterConfig& outer,
                                                     std::uint64_t parameters);

}  // namespace isthmus::app
