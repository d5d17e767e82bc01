#include "cli/files/config_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "cli/files/key_notes.h"
#include "command_line/wrapped_text.h"
#include "isthmus/base/error.h"
#include "plan/choose.h"
#include "run/experiment/current_names.h"
#include "run/experiment/experiment.h"
#include "run/experiment/removed_keys.h"
#include "run/output/json_output.h"
#include "run/output/terminal.h"

namespace isthmus::app {
namespace {

using config::Item;
using config::Scope;
using Json = nlohmann::ordered_json;

std::vector<Item> all_keys() {
  Experiment experiment;
  return config::list(experiment);
}

std::string_view class_meaning(Scope scope) {
  switch (scope) {
    case Scope::agreed:
      return "equal on all members, for the whole run";
    case Scope::live:
      return "equal on all members; can change during the run, at the same step on all members";
    case Scope::per_site:
      return "each member has its own value, from `sites:`, --set or its own file";
  }
  return "";
}

/// The unit in the notes, or the one of the key's kind of value; empty without a unit.
std::string unit_of(const Item& item, const KeyNote* note) {
  if (note != nullptr && !note->unit.empty()) return std::string(note->unit);
  switch (item.kind) {
    case config::Kind::duration:
      return "time: ms, s, min or h";
    case config::Kind::size:
      return "bytes: kB, MB, GB or TB";
    case config::Kind::rate:
      return "bits per second: kbps, Mbps or Gbps";
    default:
      return {};
  }
}

std::string labelled(std::string_view label, std::string_view text) {
  constexpr std::size_t margin = 12;
  return wrapped(label, text, margin);
}

std::string nearest_keys(const std::string& key) {
  constexpr int most = 3;
  auto valid = config_keys();
  std::string out;
  for (int i = 0; i < most; ++i) {
    const auto name = config::nearest(key, valid);
    std::erase(valid, name);
    out += (i == 0 ? "" : i + 1 < most ? ", " : " or ") + name;
  }
  return out;
}

/// Every key with its value, including the keys of the sites.
std::map<std::string, Item> effective(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "config.yaml" : path;
  auto experiment = load_experiment(file, {}, std::nullopt, Purpose::inference);
  std::map<std::string, Item> out;
  for (auto& item : items_of(experiment)) out.emplace(item.key, std::move(item));
  return out;
}

std::string value_in(const std::map<std::string, Item>& items, const std::string& key) {
  const auto found = items.find(key);
  return found == items.end() ? "(not there)" : found->second.value.empty() ? "\"\"" : found->second.value;
}

/// "also named run.max_steps": the other names of a key that configs may have.
std::string aliases_of(const std::string& key) {
  std::string out;
  for (const auto& alias : key_aliases()) {
    if (alias.key == key) out += (out.empty() ? "" : ", ") + std::string(alias.alias);
  }
  return out;
}

/// nullptr without a note.
const KeyNote* note_of(const std::string& key) {
  const auto found = std::ranges::find(key_notes(), key, &KeyNote::key);
  return found == key_notes().end() ? nullptr : &*found;
}

std::string explanation_of(const Item& item) {
  const auto* note = note_of(item.key);
  const auto unit = unit_of(item, note), others = aliases_of(item.key);
  const auto value = item.value.empty() ? std::string("\"\"") : item.value;
  auto text =
      item.key + "\n\n" + labelled("  meaning", item.doc) +
      labelled("  class", fmt::format("{}: {}", config::to_string(item.scope), class_meaning(item.scope))) +
      labelled("  expected", item.expected);
  if (!unit.empty()) text += labelled("  unit", unit);
  text += labelled("  default", value);
  if (note != nullptr && !note->why.empty()) text += labelled("  why", note->why);
  if (!others.empty()) text += labelled("  also", "accepted as " + others);
  return text + labelled("  set it", fmt::format("--set {}={}", item.key, value));
}

int print_reference(bool as_json) {
  JsonOutput json(as_json);
  if (!as_json && is_terminal(stdout)) {
    for (const auto& item : all_keys()) fmt::print("{}\n", explanation_of(item));
  } else if (!as_json) {
    fmt::print("{}", reference());
  }
  auto keys = Json::array();
  for (const auto& item : all_keys()) {
    keys.push_back({{"key", item.key},
                    {"class", config::to_string(item.scope)},
                    {"default", item.value},
                    {"expected", item.expected},
                    {"meaning", item.doc}});
  }
  json.print(keys);
  return 0;
}

int print_config(Experiment& experiment, bool as_json) {
  JsonOutput json(as_json);
  if (!as_json) fmt::print("{}", to_yaml(experiment));
  auto values = Json::object();
  for (const auto& item : items_of(experiment)) values[item.key] = item.value;
  json.print(values);
  return 0;
}

int explain(const std::string& name, bool as_json) {
  JsonOutput json(as_json);
  const auto key = current_key(name);
  const auto items = all_keys();
  const auto item = std::ranges::find(items, key, &Item::key);
  if (item == items.end())
    throw Error(ErrorKind::config,
                removed_key(key) != nullptr
                    ? message_of(*removed_key(key))
                    : fmt::format("unknown key '{}'; the nearest are {}", key, nearest_keys(key)));
  const auto* note = note_of(key);
  if (json.wanted()) {
    json.print({{"key", item->key},
                {"meaning", item->doc},
                {"class", config::to_string(item->scope)},
                {"expected", item->expected},
                {"unit", unit_of(*item, note)},
                {"default", item->value},
                {"why", note == nullptr ? std::string_view() : note->why}});
    return 0;
  }
  fmt::print("{}", explanation_of(*item));
  return 0;
}

int print_difference(const std::string& left_path, const std::string& right_path, bool as_json) {
  JsonOutput json(as_json);
  const auto a = effective(left_path), b = effective(right_path);
  auto keys = b;
  keys.insert(a.begin(), a.end());
  auto differ = Json::array();
  for (const auto& [key, item] : keys) {
    const auto left = value_in(a, key), right = value_in(b, key);
    if (left == right) continue;
    if (!json.wanted()) {
      fmt::print("{} ({})\n  {}: {}\n  {}: {}\n", key, config::to_string(item.scope), left_path, left,
                 right_path, right);
    }
    differ.push_back({{"key", key}, {"class", config::to_string(item.scope)}, {"a", left}, {"b", right}});
  }
  if (!json.wanted()) fmt::print("{} of {} keys differ\n", differ.size(), keys.size());
  json.print({{"a", left_path}, {"b", right_path}, {"keys", keys.size()}, {"differ", differ}});
  return 0;
}

struct ConfigFlags {
  ConfigOptions options;
  std::string explained, other, name, site;
  bool json = false;
};

int run_config_verb(const ConfigFlags& flags) {
  const auto& file = flags.options.config;
  if (!flags.explained.empty()) return explain(flags.explained, flags.json);
  if (!flags.other.empty()) return print_difference(file, flags.other, flags.json);
  if (file.empty()) return print_reference(flags.json);
  const bool of_worker = !flags.name.empty() || !flags.site.empty();
  const auto place = of_worker ? std::optional(WorkerPlace{flags.name, flags.site}) : std::nullopt;
  auto experiment = load_and_choose(file, flags.options.assignments(), place, Purpose::training).experiment;
  return print_config(experiment, flags.json);
}

}  // namespace

std::vector<std::string> config_keys() {
  std::vector<std::string> out;
  for (auto& item : all_keys()) out.push_back(std::move(item.key));
  return out;
}

void add_config(CommandLine& commands) {
  const auto flags = std::make_shared<ConfigFlags>();
  auto* verb = commands.app().add_subcommand(
      "config", "print an experiment with every key, or the reference of all keys");
  auto* file = add_config_file(
      *verb, flags->options.config,
      "experiment in YAML; without it, print the reference, in Markdown unless to a terminal");
  verb->add_option("--explain", flags->explained,
                   "print a key's meaning, allowed values, and the reason for its default")
      ->excludes(file);
  verb->add_option(
          "--diff", flags->other,
          "list the keys that have another value in this experiment; each may be the folder of a run")
      ->needs(file);
  verb->add_option("--name", flags->name, "print the settings of this worker");
  verb->add_option("--site", flags->site, "print the settings of this site");
  add_set(*verb, flags->options.set);
  add_json(*verb, flags->json);
  verb->footer("Example: isthmus config configs/quickstart.yaml --set replicas=4");
  commands.on(*verb, [flags] { return run_config_verb(*flags); });
}

}  // namespace isthmus::app
