#include "isthmus/outer_sync/engine/live_settings.h"

#include <algorithm>
#include <string>
#include <utility>

namespace isthmus::outer_sync {
namespace {

Schedule schedule_of(FragmentId fragments, const OuterConfig& config, const SettingsTimeline& timeline) {
  return {fragments, timeline.phases(), static_cast<std::uint64_t>(config.sync_delay),
          static_cast<std::uint64_t>(config.warmup_steps)};
}

}  // namespace

LiveSettings::LiveSettings(const OuterConfig& config, const FragmentLayout& layout, RoundExchange& exchange)
    : layout_(layout),
      exchange_(exchange),
      config_(config),
      timeline_(config),
      schedule_(schedule_of(layout.fragment_count(), config, timeline_)),
      ruled_(layout.fragment_count(), 0) {}

quant::OuterStep LiveSettings::rule_of(FragmentId p, protocol::Round round) const {
  const auto step = schedule_.send_step(p, round);
  auto rule = rule_at(timeline_.at(step), step);
  if (layout_.averages(p)) rule.lr = 1, rule.momentum = 0;
  return rule;
}

/// The part of the last outer gradient that was not sent is also still in the local parameters, as far as its
/// merge kept them (alpha), and is sent again from there.
float LiveSettings::carried_into(FragmentId p, protocol::Round round) const {
  if (config_.carries()) return 0;
  const auto last = round > schedule_.warmup_steps() + 1 ? round - 1 : round;
  const auto alpha = timeline_.at(schedule_.send_step(p, last)).merge_alpha;
  return static_cast<float>(config_.feedback_decay) * (1 - static_cast<float>(alpha));
}

/// A change takes effect after a step that no replica can reach when it is agreed, so it arrives here in
/// time.
void LiveSettings::take(std::uint64_t past) {
  auto now = exchange_.settings();
  if (!now || now == taken_) return;
  change_to(*now, past);
  taken_ = std::move(now);
}

void LiveSettings::take_again() {
  taken_ = nullptr;
  take(0);
}

void LiveSettings::change_to(const protocol::Settings& settings, std::uint64_t past) {
  for (const auto ruled : ruled_) past = std::max(past, ruled);
  const auto same = settings_.common_with(settings);
  for (const auto* changes : {&std::as_const(settings_.changes), &settings.changes}) {
    if (same < changes->size() && (*changes)[same].step < past)
      exchange_.give_up("it reached step " + std::to_string(past) +
                        " without knowing the settings that apply after step " +
                        std::to_string((*changes)[same].step) + " on");
  }
  plan(settings);
}

void LiveSettings::restore(const protocol::Settings& settings) {
  plan(settings);
  std::ranges::fill(ruled_, 0);
}

void LiveSettings::plan(const protocol::Settings& settings) {
  if (settings.changes != settings_.changes) {
    timeline_ = SettingsTimeline(config_, settings);
    schedule_ = schedule_of(layout_.fragment_count(), config_, timeline_);
  }
  settings_ = settings;
}

}  // namespace isthmus::outer_sync
