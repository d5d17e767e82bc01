#pragma once
// The outer settings over the steps of a run: those of the config, then those of each live change from its
// step on (protocol/settings.h). A round uses the settings of the step at which it is sent.

#include <cstdint>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync {

class SettingsTimeline {
 public:
  /// `base` must be resolved. Keys outside `outer.*` are ignored. Throws Error(config) for invalid values.
  explicit SettingsTimeline(const OuterConfig& base, const protocol::Settings& settings = {});

  /// Settings at this step; steps count from 1.
  [[nodiscard]] const OuterConfig& at(std::uint64_t step) const;
  [[nodiscard]] const OuterConfig& newest() const { return timeline_.back().config; }
  /// Phases of the send schedule: a change of H or of the delay begins a new one.
  [[nodiscard]] const std::vector<SyncPhase>& phases() const { return phases_; }

 private:
  struct Era {
    std::uint64_t begin = 0;  ///< in force from the step after this one
    OuterConfig config;
  };
  void begin_phase(const Era& era, bool every_changes);

  std::vector<Era> timeline_;
  std::vector<SyncPhase> phases_;
};

/// Why these outer values cannot be set during a run, after the changes `before`; the text names the key.
/// Empty if they can. Does not check whether a key is live, nor keys outside `outer.*`.
[[nodiscard]] std::string problem_of_change(const OuterConfig& base, const protocol::Settings& before,
                                            const config::SharedItems& items);

}  // namespace isthmus::outer_sync
