#include "isthmus/outer_sync/config/settings_timeline.h"

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

/// The section under its name in a config file.
struct OuterSection {
  OuterConfig& outer;
  void serialize(config::Archive& ar) { ar.section("outer", outer); }
};

bool is_outer(const std::string& key) { return key.starts_with("outer."); }

bool has(const config::SharedItems& items, const std::string& key) {
  return std::ranges::find(items, key, &std::pair<std::string, std::string>::first) != items.end();
}

OuterConfig changed(OuterConfig config, const config::SharedItems& items) {
  config::Source source;
  for (const auto& [key, value] : items) {
    if (is_outer(key)) source.set(key + "=" + value);
  }
  OuterSection section{config};
  config::Reader reader(source);
  section.serialize(reader);
  reader.finish();
  config.resolve();
  return config;
}

}  // namespace

SettingsTimeline::SettingsTimeline(const OuterConfig& base, const protocol::Settings& settings)
    : timeline_{{0, base}}, phases_(base.sync_phases()) {
  for (const auto& change : settings.changes) {
    if (std::ranges::none_of(change.items, [](const auto& item) { return is_outer(item.first); })) continue;
    timeline_.push_back({change.step, changed(timeline_.back().config, change.items)});
    const bool every = has(change.items, "outer.sync_every");
    if (every || has(change.items, "outer.sync_delay")) begin_phase(timeline_.back(), every);
  }
}

/// Begins a phase at the era's step. If the change sets H, the config's own later changes of H are cancelled.
void SettingsTimeline::begin_phase(const Era& era, bool every_changes) {
  auto every = phases_.front().every;
  for (const auto& phase : phases_) {
    if (phase.begin <= era.begin) every = phase.every;
  }
  if (every_changes) every = static_cast<std::uint64_t>(era.config.sync_every.parts.back().value);
  std::erase_if(phases_, [&](const SyncPhase& phase) {
    return phase.begin == era.begin || (every_changes && phase.begin > era.begin);
  });
  const auto delay = static_cast<std::uint64_t>(era.config.sync_delay);
  const auto after = std::ranges::upper_bound(phases_, era.begin, {}, &SyncPhase::begin);
  const auto place = phases_.insert(after, {era.begin, every, delay});
  for (auto later = std::next(place); later != phases_.end(); ++later) later->delay = delay;
}

const OuterConfig& SettingsTimeline::at(std::uint64_t step) const {
  const auto later = std::ranges::find_if(timeline_.begin() + 1, timeline_.end(),
                                          [step](const Era& era) { return era.begin >= step; });
  return std::prev(later)->config;
}

std::string problem_of_change(const OuterConfig& base, const protocol::Settings& before,
                              const config::SharedItems& items) {
  try {
    auto now = changed(SettingsTimeline(base, before).newest(), items);
    OuterSection section{now};
    const auto values = config::list(section);
    for (const auto& [key, value] : items) {
      const auto item = std::ranges::find(values, key, &config::Item::key);
      if (!is_outer(key) || item == values.end()) continue;
      auto asked = base;
      OuterSection asked_section{asked};
      config::Source source;
      source.set(key + "=" + value);
      config::Reader reader(source);
      asked_section.serialize(reader);
      const auto wanted = config::list(asked_section);
      if (std::ranges::find(wanted, key, &config::Item::key)->value != item->value)
        return key + " is " + item->value + " in a run of outer.method " +
               std::string(to_string(base.method)) + ", which fixes this key";
    }
    if (has(items, "outer.merge_alpha") && now.carries())
      return "outer.merge_alpha is set in a run with outer.merge: carry, where it has no effect";
    if (has(items, "outer.sync_every") && now.sync_every.parts.size() != 1)
      return "outer.sync_every has several parts; expected one number, valid from the change on";
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace isthmus::outer_sync
