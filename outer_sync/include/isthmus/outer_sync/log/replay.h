#pragma once
// Rebuilds the global parameters from a log, bit for bit, and verifies every chain hash.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "isthmus/base/aligned.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"

namespace isthmus::outer_sync::log {

struct ReplayedFragment {
  protocol::Round first = 0;      ///< round of the snapshot that it starts from
  protocol::FragmentState state;  ///< after the last round applied
  bool torn = false;  ///< an incomplete record follows the last one: after a crash, or in a log in use
};

struct Replayed {
  LogHeader header;
  AlignedVector<float> parameters;  ///< flat, whole buffer
  std::vector<ReplayedFragment> fragments;
  Digest global_hash;  ///< of the parameters; the run's own hash only if it held all these rounds at one time
  [[nodiscard]] std::uint64_t rounds() const;  ///< applied, all fragments
};

/// Applies the rounds in the log up to and including `until`, or all. Does not change the folder. Throws
/// Error(data) naming file, offset and reason if something is missing, damaged or begins after `until`, and
/// Error(divergence) naming fragment and round if results do not give the recorded chain hash.
[[nodiscard]] Replayed replay(const std::filesystem::path& folder,
                              std::optional<protocol::Round> until = std::nullopt);

}  // namespace isthmus::outer_sync::log
