#pragma once
// The outer settings as this replica knows them: those of the config, and the live ones
// (protocol/settings.h). They give the schedule of rounds and the rule of each round. Called by the trainer's
// thread.

#include <cstdint>
#include <memory>
#include <vector>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/config/settings_timeline.h"
#include "isthmus/outer_sync/core/schedule.h"
#include "isthmus/outer_sync/engine/round_exchange.h"

namespace isthmus::outer_sync {

class LiveSettings {
 public:
  /// `config` must be resolved. The layout and the exchange must outlive this object.
  LiveSettings(const OuterConfig& config, const FragmentLayout& layout, RoundExchange& exchange);

  [[nodiscard]] const OuterConfig& base() const { return config_; }
  [[nodiscard]] const OuterConfig& at(std::uint64_t step) const { return timeline_.at(step); }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const protocol::Settings& settings() const { return settings_; }
  [[nodiscard]] quant::OuterStep rule_of(FragmentId p, protocol::Round round) const;
  /// Share of the residual added to a round's outer gradient.
  [[nodiscard]] float carried_into(FragmentId p, protocol::Round round) const;

  /// Takes the exchange's settings; `past`: the last step made here. Throws Evicted if they differ from those
  /// that rounds applied here, or steps up to `past`, were made under.
  void take(std::uint64_t past);
  /// The same after the state of other members was copied: no step made here counts.
  void take_again();
  /// Like `take`, with these settings. Throws Error(config) for invalid values too.
  void change_to(const protocol::Settings& settings, std::uint64_t past);
  /// Begins with the state of a checkpoint made under these settings.
  void restore(const protocol::Settings& settings);

  /// A round of the fragment was applied under the settings of this step.
  void applied(FragmentId p, std::uint64_t step) { ruled_[p] = step; }
  /// Rounds applied to the fragment's old state no longer matter.
  void forget(FragmentId p) { ruled_[p] = 0; }

 private:
  void plan(const protocol::Settings& settings);

  const FragmentLayout& layout_;
  RoundExchange& exchange_;
  OuterConfig config_;
  protocol::Settings settings_;
  std::shared_ptr<const protocol::Settings> taken_;  ///< these settings, as received from the exchange
  SettingsTimeline timeline_;
  Schedule schedule_;
  std::vector<std::uint64_t> ruled_;  ///< by fragment: step that ruled the last round applied here
};

}  // namespace isthmus::outer_sync
