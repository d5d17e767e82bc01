#pragma once
// The outer settings over the steps of a run: those of its config, and from each change in mid-run on
// (protocol/settings.h) those that hold then. A round has the settings of the step that it is sent at.

#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync {

class SettingsTimeline {
 public:
  /// `base` must be resolved. Keys that are not outer's are passed over. Throws Error(config) for values that
  /// cannot be.
  explicit SettingsTimeline(const OuterConfig& base, const protocol::Settings& settings = {});

  /// At that step, counted from 1.
  [[nodiscard]] const OuterConfig& at(std::uint64_t step) const;
  [[nodiscard]] const OuterConfig& newest() const { return timeline_.back().config; }
  /// When fragments are sent: a change of H or of the delay begins a phase.
  [[nodiscard]] const std::vector<SyncPhase>& phases() const { return phases_; }

 private:
  struct Era {
    std::uint64_t begin = 0;  ///< from the step after this one on
    OuterConfig config;
  };
  void begin_phase(const Era& era, bool every_changes);

  std::vector<Era> timeline_;
  std::vector<SyncPhase> phases_;
};

/// Why these values cannot be set in mid-run, beside what was before, naming the key; empty if they can. Of
/// the outer keys: which those are says their class, and a method that sets a key itself.
[[nodiscard]] std::string problem_of_change(const OuterConfig& base, const protocol::Settings& before,
                                            const config::SharedItems& items);

}  // namespace isthmus::outer_sync
