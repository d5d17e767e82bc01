#include "run/experiment/sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "isthmus/base/error.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"

namespace isthmus::app {

using config::Scope;
using config::Source;

namespace {

constexpr std::string_view section = "sites";
constexpr std::string_view launch_prefix = "launch.";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The part KEY of "sites.NAME.KEY".
std::string key_in_site(const Source::Entry& entry, const std::string& site) {
  return entry.key.substr(std::min(entry.key.size(), section.size() + site.size() + 2));
}

std::string name_in(const Source::Entry& entry) {
  const auto begin = section.size() + 1;
  return entry.key.substr(begin, entry.key.find('.', begin) - begin);
}

/// The site's own keys, read under their full names.
struct OwnKeys {
  Site& site;
  void serialize(config::Archive& ar) { ar.section(fmt::format("{}.{}", section, site.name), site); }
};

void check_key(const Site& site, const Source::Entry& entry, const std::string& key,
               const std::vector<config::Item>& keys) {
  std::vector<std::string> own;
  for (const auto& item : keys) {
    if (item.scope == Scope::per_site) own.push_back(item.key);
  }
  if (std::ranges::find(own, key) != own.end()) return;
  const auto known = std::ranges::find(keys, key, &config::Item::key);
  if (known == keys.end()) {
    config_error(fmt::format("unknown key {} ({}) of site {}; did you mean {}?", key, entry.place, site.name,
                             config::nearest(key, own)));
  }
  config_error(fmt::format(
      "{} is set at site {} ({}), and its class is {}: all replicas must share it; expected a key of class "
      "per_site",
      key, site.name, entry.place, to_string(known->scope)));
}

[[noreturn]] void fail_at_launch_key(const Site& site, const Source::Entry& entry, const std::string& key) {
  std::vector<std::string> known;
  for (const auto& item : site.launch.items(true)) known.push_back(std::string(launch_prefix) + item.key);
  config_error(fmt::format("unknown key {} ({}) of site {}; did you mean {}?", key, entry.place, site.name,
                           config::nearest(key, known)));
}

void check_workers(const std::vector<Site>& sites) {
  std::map<std::string, std::string> site_of_worker;
  for (const auto& site : sites) {
    for (const auto& worker : site.workers()) {
      check_member_name(fmt::format("a worker of site {}", site.name), worker);
      const auto [first, is_new] = site_of_worker.emplace(worker, site.name);
      if (!is_new)
        config_error(fmt::format("sites {} and {} both have a worker {}; rename one of the sites",
                                 first->second, site.name, worker));
    }
  }
}

void check_coordinators(const std::vector<Site>& sites) {
  const Site* first = nullptr;
  for (const auto& site : sites) {
    if (!site.launch.coordinator) continue;
    if (first != nullptr)
      config_error(fmt::format("sites {} and {} both have launch.coordinator: true; expected one coordinator",
                               first->name, site.name));
    first = &site;
  }
}

}  // namespace

void check_site_name(const std::string& place, const std::string& name) {
  const bool fits =
      !name.empty() && name.size() <= 48 && is_letter(name.front()) &&
      std::ranges::all_of(name, [](char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; });
  if (fits) return;
  config_error(fmt::format(
      "{}: a site is named '{}'; expected up to 48 letters, digits, '_' and '-', beginning with a letter",
      place, name));
}

void Site::serialize(config::Archive& ar) {
  ar({"replicas", &replicas, Scope::agreed,
      "workers at this site, named NAME, or NAME-1, NAME-2, ...; keys of class per_site may be set next to "
      "it",
      1, 1024});
  ar.section("launch", launch);
}

const config::Source::Entry* Site::find(std::string_view key) const {
  const auto found = std::ranges::find(settings, key, &config::Source::Entry::key);
  return found == settings.end() ? nullptr : &*found;
}

std::vector<std::string> Site::workers() const {
  if (replicas == 1) return {name};
  std::vector<std::string> names;
  for (std::int64_t i = 1; i <= replicas; ++i) names.push_back(fmt::format("{}-{}", name, i));
  return names;
}

std::vector<Site> take_sites(Source& source, const std::vector<config::Item>& keys) {
  std::vector<Site> sites;
  Source own;  // keys of the sites themselves
  Site sample;
  const auto own_keys = config::list(sample);
  for (auto& entry : source.take_section(section)) {
    const auto name = name_in(entry);
    check_site_name(entry.place, name);
    auto site = std::ranges::find(sites, name, &Site::name);
    if (site == sites.end())
      site =
          sites.insert(site, Site{.name = name, .replicas = 1, .settings = {}, .launch = {}, .silence = {}});
    auto key = key_in_site(entry, name);
    if (key.empty())
      config_error(fmt::format("{}: {} is a plain value; expected a map like {{inner.batch: 8}}", entry.place,
                               entry.key));
    if (key.starts_with(launch_prefix) && site->launch.take(entry, key.substr(launch_prefix.size())))
      continue;
    if (std::ranges::find(own_keys, key, &config::Item::key) != own_keys.end()) {
      if (key == "launch.identity" && !entry.values.empty() && !entry.values.front().starts_with("~"))
        entry.values.front() =
            std::filesystem::absolute(entry.base / entry.values.front()).lexically_normal();
      own.put(std::move(entry));
      continue;
    }
    if (key.starts_with(launch_prefix) && std::ranges::find(keys, key, &config::Item::key) == keys.end())
      fail_at_launch_key(*site, entry, key);
    check_key(*site, entry, key, keys);
    entry.key = std::move(key);
    const auto* general = source.find(entry.key);
    if (general == nullptr || !general->assigned() || entry.assigned())
      site->settings.push_back(std::move(entry));
  }
  config::Reader reader(own);
  for (auto& site : sites) {
    OwnKeys{site}.serialize(reader);
    site.launch.check(site.name);
  }
  check_workers(sites);
  check_coordinators(sites);
  return sites;
}

const Site* site_of(const std::vector<Site>& sites, const std::string& worker, const std::string& name) {
  std::string names;
  for (const auto& site : sites) names += (names.empty() ? "" : ", ") + site.name;
  if (!name.empty()) {
    const auto found = std::ranges::find(sites, name, &Site::name);
    if (found != sites.end()) return &*found;
    config_error(fmt::format("--site is '{}'; the config has {}", name,
                             names.empty() ? "no sites" : "the sites " + names));
  }
  if (sites.empty()) return nullptr;
  const Site* best = nullptr;
  for (const auto& site : sites) {
    const auto workers = site.workers();
    if (std::ranges::find(workers, worker) != workers.end()) return &site;
    const auto rest = std::string_view(worker).substr(std::min(worker.size(), site.name.size()));
    const bool is_more = worker.starts_with(site.name) && rest.size() > 1 && rest.front() == '-' &&
                         std::ranges::all_of(rest.substr(1), is_digit);
    if (is_more && (best == nullptr || best->name.size() < site.name.size())) best = &site;
  }
  if (best != nullptr) return best;
  config_error(fmt::format(
      "--name is '{}', which belongs to none of the sites {}; expected a name like {}, or --site too", worker,
      names, sites.front().workers().back()));
}

std::vector<config::Item> own_items(Site& site, bool everything) {
  auto items = config::list(site);
  std::erase_if(items, [](const config::Item& item) { return item.key.starts_with(launch_prefix); });
  for (auto& item : site.launch.items(everything)) {
    item.key.insert(0, launch_prefix);
    items.push_back(std::move(item));
  }
  return items;
}

Source at_site(Source source, const Site& site) {
  for (const auto& entry : site.settings) source.put(entry);
  return source;
}

}  // namespace isthmus::app
