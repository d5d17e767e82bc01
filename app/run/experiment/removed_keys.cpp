#include "run/experiment/removed_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "isthmus/base/error.h"

namespace isthmus::app {

namespace {

constexpr auto removed_keys = std::to_array<RemovedKey>({
    {"outer.auto.in_run", "true", "outer.auto.min_interval: 0 leaves the settings alone during the run"},
    {"outer.auto.least_between", "1min", "it is now outer.auto.min_interval"},
    {"run.gather", "true", "run.gather_limit: 0 copies nothing"},
    {"data.source", "files",
     "data.path alone makes the data a stream: - (standard input), tcp://HOST:PORT or unix:///PATH"},
});

/// The part KEY of "sites.NAME.KEY"; other keys are returned as they are.
std::string_view general_key(std::string_view key) {
  constexpr std::string_view sites = "sites.";
  if (!key.starts_with(sites)) return key;
  const auto dot = key.find('.', sites.size());
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

}  // namespace

const RemovedKey* removed_key(std::string_view key) {
  const auto* found = std::ranges::find(removed_keys, general_key(key), &RemovedKey::key);
  return found == removed_keys.end() ? nullptr : found;
}

std::string message_of(const RemovedKey& removed) {
  return fmt::format("{} was removed: {}", removed.key, removed.now);
}

config::Source without_removed_keys(const config::Source& source) {
  config::Source out;
  for (const auto& entry : source.entries()) {
    const auto* removed = removed_key(entry.key);
    if (removed == nullptr)
      out.put(entry);
    else if (entry.is_list || entry.by_step || entry.values != std::vector{std::string(removed->was_default)})
      config_error(fmt::format("{}: {}", entry.place, message_of(*removed)));
  }
  return out;
}

}  // namespace isthmus::app
