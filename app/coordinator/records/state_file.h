#pragma once
// RUN/coordinator.state: the last view that a coordinator announced, with a digest. It is there as long as
// the run has not ended, so that another coordinator can take the run over.

#include <filesystem>
#include <optional>

#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"

namespace isthmus::app {

/// `folder`: the run's. Throws Error(data).
void store_view(const std::filesystem::path& folder, const outer_sync::protocol::LastView& view);
/// nullopt without an earlier coordinator. Throws Error(data) if the file is damaged or of another build.
[[nodiscard]] std::optional<outer_sync::protocol::LastView> read_view(const std::filesystem::path& folder);
/// The same for a coordinator that recovers a run and does not need the file: nullopt instead of an Error.
[[nodiscard]] std::optional<outer_sync::protocol::LastView> read_view_if_sound(
    const std::filesystem::path& folder);
void remove_view(const std::filesystem::path& folder);

}  // namespace isthmus::app
