#pragma once
// Global parameters from a log, bit for bit, every hash of its chains recomputed.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/log/log_header.h"

namespace isthmus::outer_sync::log {

struct ReplayedFragment {
  protocol::Round first = 0;      ///< of the snapshot that it begins with
  protocol::FragmentState state;  ///< after the last round applied
  bool torn = false;              ///< an incomplete record follows the last one: a crash, or a log in use
};

struct Replayed {
  LogHeader header;
  AlignedVector<float> parameters;  ///< flat, whole buffer
  std::vector<ReplayedFragment> fragments;
  Digest global_hash;  ///< of the parameters; the run's own if all fragments stand where they stood together
  [[nodiscard]] std::uint64_t rounds() const;  ///< applied, all fragments
};

/// Applies the rounds in the log up to `until`, that one included, or all. Changes nothing in the folder.
/// Throws Error(data) naming file, offset and reason for what is missing or damaged, or begins after `until`,
/// and Error(divergence) naming fragment and round when results do not give the chain hash that stands with
/// them.
[[nodiscard]] Replayed replay(const std::filesystem::path& folder,
                              std::optional<protocol::Round> until = std::nullopt);

}  // namespace isthmus::outer_sync::log
