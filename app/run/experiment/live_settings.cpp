#include "run/experiment/live_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/settings_timeline.h"
#include "isthmus/outer_sync/core/calendar.h"
#include "run/experiment/removed_keys.h"

namespace isthmus::app {

using config::Scope;

namespace {

std::string reason_not_to_set(const config::Item& item) {
  if (item.scope == Scope::live || item.at_once) return {};
  const auto* why = item.scope == Scope::per_site
                        ? "each member reads it when it starts; change the member's config and restart it"
                        : "everything computed in the run so far depends on it";
  return fmt::format(
      "{} cannot be set during a run: its class is {}, and {}. Keys of class live, network.rate and "
      "network.calendar can be set",
      item.key, to_string(item.scope), why);
}

}  // namespace

outer_sync::protocol::ChangeVerdict judge_change(const Experiment& experiment,
                                                 const outer_sync::protocol::Settings& before,
                                                 const config::SharedItems& items) {
  auto asked = experiment;
  const auto keys = config::list(asked);
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const auto& key : keys) names.push_back(key.key);
  std::size_t at_once = 0;
  config::Source source;
  try {
    for (const auto& [key, value] : items) {
      const auto item = std::ranges::find(keys, key, &config::Item::key);
      if (const auto* removed = removed_key(key); removed != nullptr) return {message_of(*removed), false};
      if (item == keys.end())
        return {
            fmt::format("unknown key {}; did you mean {}?", key.substr(0, 80), config::nearest(key, names)),
            false};
      if (auto reason = reason_not_to_set(*item); !reason.empty()) return {std::move(reason), false};
      at_once += item->at_once ? 1 : 0;
      source.set(key + "=" + value);
    }
    config::Reader reader(source);  // checks each value by itself
    asked.serialize(reader);
    reader.finish();
    static_cast<void>(outer_sync::Calendar::parse(asked.network.calendar));
    if (asked.outer.data_parallel() && !asked.network.calendar.empty())
      return {"network.calendar has no effect with outer.method: data_parallel", false};
  } catch (const Error& error) {
    return {error.what(), false};
  }
  if (at_once > 0 && at_once < items.size())
    return {
        "some of these keys belong to each member and apply at once, and the others are shared by all; set "
        "them separately",
        false};
  return {outer_sync::problem_of_change(experiment.outer, before, items), at_once > 0};
}

RunConfig run_config_at(const RunConfig& base, const outer_sync::protocol::Settings& settings,
                        std::uint64_t step) {
  struct Section {
    RunConfig run;
    void serialize(config::Archive& ar) { ar.section("run", run); }
  } section{base};
  config::Source source;
  for (const auto* key : {"run.eval_every", "run.checkpoint_every"}) {
    const auto value = outer_sync::protocol::changed_value(settings, key, step);
    if (!value.empty()) source.set(std::string(key) + "=" + value);
  }
  config::Reader reader(source);
  section.serialize(reader);
  reader.finish();
  return section.run;
}

}  // namespace isthmus::app
