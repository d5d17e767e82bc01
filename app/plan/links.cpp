#include "plan/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "isthmus/base/error.h"
#include "isthmus/base/text_file.h"
#include "run/metrics/diagnosis.h"
#include "run/process/names.h"

namespace isthmus::app {

using config::Scope;
using config::Source;

namespace {

/// Maximum bytes in flight on one TCP connection (docs/architecture.md, "Network").
constexpr double lane_window = 2.9e6;
/// Share of an Ethernet link's bytes that is TCP payload, times the share of that which is not TLS overhead.
constexpr double payload_of_line = 1448.0 / 1514 * (16384.0 / (16384 + 22));

std::string part(const std::string& key, std::size_t number) {
  std::size_t begin = 0;
  for (; number > 0 && begin != std::string::npos; --number) {
    begin = key.find('.', begin);
    if (begin != std::string::npos) ++begin;
  }
  return begin == std::string::npos ? "" : key.substr(begin, key.find('.', begin) - begin);
}

std::size_t parts(const std::string& key) {
  return static_cast<std::size_t>(std::ranges::count(key, '.')) + 1;
}

std::size_t index_of(const std::vector<LinkSite>& sites, const std::string& name,
                     const Source::Entry& entry) {
  const auto found = std::ranges::find(sites, name, &LinkSite::name);
  if (found != sites.end()) return static_cast<std::size_t>(found - sites.begin());
  std::vector<std::string> names;
  names.reserve(sites.size());
  for (const auto& site : sites) names.push_back(site.name);
  config_error(fmt::format("{}: {} names an unknown site '{}'; did you mean {}?", entry.place, entry.key,
                           name, config::nearest(name, names)));
}

LinkSite named(const std::string& name) {
  LinkSite site;
  site.name = name;
  return site;
}

struct SiteKeys {
  LinkSite& site;
  void serialize(config::Archive& ar) { ar.section("sites." + site.name, site); }
};

struct PairKey {
  std::string_view key;
  config::Duration rtt;
  void serialize(config::Archive& ar) { ar({key, &rtt, Scope::per_site, "", 0, 60}); }
};

struct GeneralKeys {
  config::Duration other_rtt{-1}, local_rtt{0.001};
  void serialize(config::Archive& ar) {
    ar({"other_rtt", &other_rtt, Scope::per_site, "round trip of all other pairs of sites", 0, 60});
    ar({"local_rtt", &local_rtt, Scope::per_site, "round trip within a site", 0, 60});
  }
};

std::vector<LinkSite> sites_of(Source& source) {
  std::vector<LinkSite> sites;
  Source own;
  for (auto& entry : source.take_section("sites")) {
    const auto name = part(entry.key, 1);
    check_name(entry.place + ": a site's name", name);
    if (parts(entry.key) < 3)
      config_error(
          fmt::format("{}: {} is a plain value; expected a map like {{up: 100Mbps, step_time: 500ms}}",
                      entry.place, entry.key));
    if (std::ranges::find(sites, name, &LinkSite::name) == sites.end()) sites.push_back(named(name));
    own.put(std::move(entry));
  }
  if (sites.empty())
    config_error("the links file names no sites; expected `sites: {eu: {up: 100Mbps}, us: {up: 50Mbps}}`");
  config::Reader reader(own);
  for (auto& site : sites) SiteKeys{site}.serialize(reader);
  reader.finish();
  return sites;
}

Links from_file(const std::filesystem::path& file) {
  auto source = Source::from_file(file);
  Links links;
  links.source = file.string();
  links.uplinks_known = true;
  links.sites = sites_of(source);
  const auto count = links.sites.size();
  constexpr double unknown = -1;
  links.rtt.assign(count * count, unknown);
  auto pairs = source.take_section("rtt");
  const auto general = config::read<GeneralKeys>(source);
  std::vector<bool> said(count * count, false);
  for (const auto& entry : pairs) {
    if (parts(entry.key) != 3)
      config_error(fmt::format("{}: {} is not a pair of sites; expected `rtt: {{eu: {{us: 90ms}}}}`",
                               entry.place, entry.key));
    const auto from = index_of(links.sites, part(entry.key, 1), entry);
    const auto to = index_of(links.sites, part(entry.key, 2), entry);
    Source one;
    one.put(entry);
    PairKey pair{entry.key, {}};
    config::Reader reader(one);
    pair.serialize(reader);
    said[from * count + to] = true;
    links.rtt[from * count + to] = pair.rtt.seconds;
    if (!said[to * count + from]) links.rtt[to * count + from] = pair.rtt.seconds;
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      auto& rtt = links.rtt[i * count + j];
      if (rtt != unknown) continue;
      rtt = i == j ? general.local_rtt.seconds : general.other_rtt.seconds;
      if (rtt >= 0) continue;
      config_error(fmt::format(
          "{}: no round trip between {} and {}; expected `rtt: {{{}: {{{}: 90ms}}}}`, or other_rtt",
          file.string(), links.sites[i].name, links.sites[j].name, links.sites[i].name, links.sites[j].name));
    }
  }
  return links;
}

// ---- measurements of an earlier run ----

using nlohmann::json;

double positive_or_zero(const json& value) {
  const double out = value.is_number() ? value.get<double>() : 0;
  return std::isfinite(out) && out > 0 ? out : 0;
}

/// The newest line of a metrics file that has this key.
json newest(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file);
  json found;
  for (std::string line; std::getline(in, line);) {
    if (line.find('"' + key + '"') == std::string::npos) continue;
    auto record = json::parse(line, nullptr, false);
    if (record.is_object() && record.contains(key) && record[key].is_object() && !record[key].empty())
      found = std::move(record);
  }
  return found;
}

void add_step_times(Links& links, const std::filesystem::path& file) {
  std::ifstream in(file);
  const auto summary = json::parse(in, nullptr, false);
  if (!summary.is_object() || !summary.contains("members") || !summary["members"].is_array()) return;
  for (const auto& replica : summary["members"]) {
    if (!replica.is_object()) continue;
    const auto site = std::ranges::find(links.sites, replica.value("name", ""), &LinkSite::name);
    const double steps = positive_or_zero(replica.value("last_step", json())) -
                         positive_or_zero(replica.value("first_step", json()));
    const double seconds = positive_or_zero(replica.value("compute_seconds", json()));
    if (site != links.sites.end() && steps > 0) site->step_time.seconds = seconds / steps;
  }
}

Links from_run(const std::filesystem::path& folder) {
  constexpr std::size_t most = 1024;
  const auto file = folder / "metrics.jsonl";
  const auto record = newest(file, "round_trip_ms");
  if (record.is_null()) {
    throw Error(ErrorKind::data, file.string() +
                                     " has no round_trip_ms; expected the folder of a run in which the "
                                     "coordinator recorded the members' path measurements");
  }
  const auto& trips =
      record.contains("shortest_round_trip_ms") ? record["shortest_round_trip_ms"] : record["round_trip_ms"];
  Links links;
  links.source = file.string();
  links.packets = false;
  std::map<std::string, std::size_t> places;
  const auto add = [&](const std::string& name) {
    if (places.size() < most && places.try_emplace(name, places.size()).second)
      links.sites.push_back(named(name));
  };
  for (const auto& [from, to] : trips.items()) {
    add(from);
    if (!to.is_object()) continue;
    for (const auto& [name, value] : to.items()) add(name);
  }
  const auto count = links.sites.size();
  links.rtt.assign(count * count, 0);
  for (const auto& [from, to] : trips.items()) {
    if (!to.is_object() || !places.contains(from)) continue;
    for (const auto& [name, value] : to.items()) {
      if (places.contains(name))
        links.rtt[places[from] * count + places[name]] = positive_or_zero(value) / 1000;
    }
  }
  // All paths of a member share its link.
  const auto rates = record.value("bytes_per_second", json::object());
  for (const auto& [from, to] : rates.items()) {
    if (!to.is_object() || !places.contains(from)) continue;
    auto& up = links.sites[places[from]].up.bits_per_second;
    for (const auto& value : to) up += 8 * positive_or_zero(value);
  }
  add_step_times(links, folder / "summary.json");
  return links;
}

// ---- measurements of `isthmus doctor` ----

[[noreturn]] void no_diagnosis(const std::filesystem::path& file, const std::string& why) {
  throw Error(ErrorKind::data, file.string() + " " + why +
                                   "; expected the output of `isthmus doctor CONFIG --listen ADDRESS:PORT "
                                   "--json` with a doctor for each worker");
}

/// Pairs are measured one after the other, so a machine's fastest path shows the rate of its link.
Links from_doctor(const std::filesystem::path& file) {
  constexpr std::size_t most = 1024;
  Diagnosis diagnosis;
  try {
    diagnosis = diagnosis_of(read_text(file));
  } catch (const Error& error) {
    no_diagnosis(file, std::string("is not a diagnosis: ") + error.what());
  }
  Links links;
  links.source = file.string();
  links.packets = false;
  std::map<std::string, std::size_t> places;
  for (const auto& path : diagnosis.paths) {
    for (const auto& name : {path.from, path.to}) {
      if (places.size() < most && places.try_emplace(name, places.size()).second)
        links.sites.push_back(named(name));
    }
  }
  if (places.size() < 2) no_diagnosis(file, "contains no two machines that dialled each other");
  const auto count = links.sites.size();
  links.rtt.assign(count * count, 0);
  for (const auto& path : diagnosis.paths) {
    const auto from = places.find(path.from), to = places.find(path.to);
    if (from == places.end() || to == places.end()) continue;
    const auto sends = [&](std::size_t a, std::size_t b, double bytes_per_second) {
      auto &up = links.sites[a].up.bits_per_second, &down = links.sites[b].down.bits_per_second;
      up = std::max(up, 8 * bytes_per_second);
      down = std::max(down, 8 * bytes_per_second);
    };
    sends(from->second, to->second, path.bytes_per_second);
    sends(to->second, from->second, path.back_bytes_per_second);
    for (const auto& [a, b] : {std::pair(from->second, to->second), {to->second, from->second}}) {
      auto& rtt = links.rtt[a * count + b];
      const double seconds = path.round_trip_ms / 1000;
      if (seconds > 0) rtt = rtt > 0 ? std::min(rtt, seconds) : seconds;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (links.rtt[i * count + j] > 0) continue;
      no_diagnosis(file, "has no round trip between " + links.sites[j].name + " and " + links.sites[i].name +
                             ", which did not reach each other");
    }
  }
  return links;
}

}  // namespace

void LinkSite::serialize(config::Archive& ar) {
  ar({"replicas", &replicas, Scope::per_site, "replicas at this site, each with its own link", 1, 1024});
  ar({"up", &up, Scope::per_site, "outbound rate of the link", 1e3, 1e13});
  ar({"down", &down, Scope::per_site, "inbound rate of the link", 1e3, 1e13});
  ar({"step_time", &step_time, Scope::per_site, "time of an inner step", 1e-4, 86400});
}

std::int64_t Links::replicas() const {
  std::int64_t sum = 0;
  for (const auto& site : sites) sum += site.replicas;
  return sum;
}

bool Links::are_known() const {
  const auto is_limited = [](const LinkSite& site) {
    return site.up.bits_per_second > 0 || site.down.bits_per_second > 0;
  };
  return std::ranges::any_of(sites, is_limited) ||
         std::ranges::any_of(rtt, [](double seconds) { return seconds > 0; });
}

Links read_links(const std::filesystem::path& path) {
  auto links = std::filesystem::is_directory(path) ? from_run(path)
               : path.extension() == ".json"       ? from_doctor(path)
                                                   : from_file(path);
  constexpr std::int64_t most = 1024;
  if (links.replicas() > most)
    config_error(
        fmt::format("{} has {} replicas; expected at most {}", path.string(), links.replicas(), most));
  return links;
}

Links links_of(const Experiment& experiment) {
  Links links;
  links.packets = false;
  links.source = "network.emulate and network.rate";
  std::vector<double> one_way;
  const auto add = [&](std::string name, std::int64_t replicas, const outer_sync::NetworkConfig& network) {
    // An emulated rate applies to each path, so a replica's total is that rate times the number of its peers.
    const auto peers = static_cast<double>(std::max<std::int64_t>(1, experiment.replicas - 1));
    double up = network.emulate.rate.bits_per_second * peers;
    if (network.rate.bits_per_second > 0)
      up = up > 0 ? std::min(up, network.rate.bits_per_second) : network.rate.bits_per_second;
    links.uplinks_known = links.uplinks_known || network.rate.bits_per_second > 0;
    links.sites.push_back(
        {.name = std::move(name), .replicas = replicas, .up = {up}, .down = {}, .step_time = {}});
    // A round's last chunk is delayed by the full jitter and, after a loss, by a round trip.
    one_way.push_back(network.emulate.rtt.seconds / 2 + network.emulate.jitter.seconds +
                      network.emulate.loss * network.emulate.rtt.seconds);
  };
  if (experiment.sites.empty()) add("all", experiment.replicas, experiment.network);
  for (const auto& site : experiment.sites) {
    auto network = experiment.network;
    Source source;
    for (const auto& entry : site.settings) {
      if (entry.key.starts_with("network.")) source.put(entry);
    }
    struct Section {
      outer_sync::NetworkConfig& network;
      void serialize(config::Archive& ar) { ar.section("network", network); }
    };
    config::Reader reader(source);
    Section{network}.serialize(reader);
    add(site.name, site.replicas, network);
  }
  for (const double seconds : one_way) {
    for (std::size_t j = 0; j < one_way.size(); ++j) links.rtt.push_back(2 * seconds);
  }
  return links;
}

outer_sync::plan::Network network_of(const Links& links, std::int64_t lanes, double step_seconds) {
  using outer_sync::plan::unlimited;
  outer_sync::plan::Network network;
  std::vector<std::size_t> site_of;
  const auto rate = [&](config::Rate line) {
    if (line.bits_per_second == 0) return unlimited;
    return line.bits_per_second / 8 * (links.packets ? payload_of_line : 1.0);
  };
  for (std::size_t i = 0; i < links.sites.size(); ++i) {
    const auto& site = links.sites[i];
    const double step = site.step_time.seconds > 0 ? site.step_time.seconds : step_seconds;
    network.replicas.insert(network.replicas.end(), static_cast<std::size_t>(site.replicas),
                            {step, rate(site.up), rate(site.down)});
    site_of.insert(site_of.end(), static_cast<std::size_t>(site.replicas), i);
  }
  // Up to `few` replicas get a place each; of more replicas, those of one site share a place.
  constexpr std::size_t few = 64;
  const bool each = site_of.size() <= few;
  for (std::uint32_t m = 0; m < site_of.size(); ++m)
    network.place.push_back(each ? m : static_cast<std::uint32_t>(site_of[m]));
  std::vector<std::size_t> sites = site_of;
  if (!each) {
    sites.resize(links.sites.size());
    std::iota(sites.begin(), sites.end(), std::size_t{0});
  }
  bool bounded = false;
  for (const auto from : sites) {
    for (const auto to : sites) {
      const double rtt = links.rtt[from * links.sites.size() + to];
      network.one_way.push_back(rtt / 2);
      network.path.push_back(rtt > 0 && links.packets ? static_cast<double>(lanes) * lane_window / rtt
                                                      : unlimited);
      bounded = bounded || network.path.back() < rate(links.sites[from].up);
    }
  }
  if (!bounded) network.path.clear();  // lanes limit a path only if its link could carry more
  return network;
}

}  // namespace isthmus::app
