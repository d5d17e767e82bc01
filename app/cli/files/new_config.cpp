#include "cli/files/new_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/role.h"
#include "run/experiment/experiment.h"
#include "run/process/names.h"

namespace isthmus::app {

namespace {

using config::Item;
using config::Source;
using Lines = std::vector<std::string>;

constexpr int first_port = 7001;
constexpr std::string_view recipe_note = "# This file is a recipe";
constexpr std::string_view recipe_folder = "configs/recipes/", file_end = ".yaml";

constexpr std::string_view sites_note =
    "# One replica at each site. Keys of class per_site may differ between sites: `isthmus config` lists\n"
    "# the classes.\n";
constexpr std::string_view ssh_note =
    "# launch.program and launch.folder name the isthmus binary and the parent of the run's folder there; "
    "by\n"
    "# default `isthmus` in PATH, and `runs` in the home folder.\n";
constexpr std::string_view by_hand_note =
    "# launch.by_hand: you start the site's worker there, with `isthmus worker FILE --name SITE`. Without a\n"
    "# port (network.listen: none) it only dials others.\n";
constexpr std::string_view ports_note =
    "# Each worker listens at network.listen, and the others dial it at network.advertise: open that\n"
    "# port. For a site that can only dial others set network.listen to none, and no network.advertise.\n";
constexpr std::string_view reducer_note =
    "# The machine of `isthmus launch` runs the coordinator and, since no site opens a port, a reducer\n"
    "# through which sites, newcomers and observers reach each other. The sites must reach both: at\n"
    "# network.coordinator and network.advertise.\n";
constexpr std::string_view network_note =
    "# The machine of `isthmus launch` runs the coordinator; all sites must reach it at this address.\n";

Item text_item(std::string key, std::string value) {
  return {std::move(key), std::move(value), config::Scope::per_site, "", "", config::Kind::text};
}
Item number_item(std::string key, std::int64_t value) {
  return {std::move(key), std::to_string(value), config::Scope::per_site, "", "", config::Kind::integer};
}

Lines lines_of(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// A section of a recipe: its "NAME:" at the start of a line, and the indented or empty lines after it.
struct Section {
  Lines::iterator begin, end;
};

Section section_of(Lines& lines, std::string_view name) {
  const auto start = fmt::format("{}:", name);
  const auto begin = std::ranges::find_if(lines, [&](const auto& line) { return line.starts_with(start); });
  if (begin == lines.end()) return {begin, begin};
  const auto end = std::find_if(begin + 1, lines.end(),
                                [](const auto& line) { return !line.empty() && line.front() != ' '; });
  return {begin, end};
}

/// Removes a section and the comment above it.
void remove_section(Lines& lines, std::string_view name) {
  auto [begin, end] = section_of(lines, name);
  while (begin != lines.begin() && begin != lines.end() && (begin - 1)->starts_with('#')) --begin;
  lines.erase(begin, end);
}

/// Makes the head comment one of the new file: its command names no recipe, and its end is removed.
void change_head(Lines& lines) {
  for (auto& line : lines) {
    const auto begin = line.find(recipe_folder), end = line.find(file_end, begin);
    if (line.starts_with('#') && end != line.npos) line.replace(begin, end + file_end.size() - begin, "FILE");
  }
  const auto note =
      std::ranges::find_if(lines, [](const auto& line) { return line.starts_with(recipe_note); });
  if (note == lines.end() || note == lines.begin()) return;
  lines.erase(note - 1, std::find_if(note, lines.end(), [](const auto& line) { return line.empty(); }));
}

/// Replaces the value of "SECTION.NAME" and keeps the comment next to it.
void put_value(Lines& lines, Item item) {
  const auto dot = item.key.find('.');
  const auto [begin, end] = section_of(lines, item.key.substr(0, dot));
  item.key.erase(0, dot + 1);
  const auto start = fmt::format("  {}: ", item.key);
  const auto line = std::find_if(begin, end, [&](const auto& one) { return one.starts_with(start); });
  if (line == end) return;  // `check_values` reports it
  const auto comment = line->find(" # ");
  const auto kept = comment == std::string::npos ? std::string() : line->substr(comment);
  *line = fmt::format("  {}{}", trimmed(config::yaml_of(std::span(&item, 1))), kept);
}

std::string joined_lines(const Lines& lines) {
  std::string text;
  bool was_empty = false;
  for (const auto& line : lines) {
    if (!(line.empty() && was_empty)) text += line + '\n';
    was_empty = line.empty();
  }
  return text;
}

/// Throws unless each item reads back: the file is YAML, and the texts in it come from a command line.
void check_values(const Source& source, const std::vector<Item>& items) {
  for (const auto& item : items) {
    const auto* entry = source.find(item.key);
    if (entry == nullptr || entry->is_list || entry->values != std::vector{item.value})
      config_error(
          fmt::format("{} is '{}', which does not read back from YAML as the same text; expected plain "
                      "text in UTF-8",
                      item.key, printable(item.value, 200)));
  }
}

Source source_of_recipe(const Recipe& recipe) {
  return Source::from_text(recipe.text, fmt::format("recipe {}", recipe.name));
}

/// The batch of one site. The total over all sites is the recipe's, as far as micro batches divide it.
std::int64_t batch_of_site(const Recipe& recipe, std::size_t sites) {
  const auto experiment = load_experiment(source_of_recipe(recipe), {}, std::nullopt, Purpose::own_data);
  const auto total = experiment.inner.batch * experiment.replicas;
  const auto unit = std::max<std::int64_t>(experiment.trainer.micro_batch, 1);
  const auto parts = unit * static_cast<std::int64_t>(sites);
  return std::max((total + parts / 2) / parts, std::int64_t{1}) * unit;
}

/// An IPv6 address as it is written before a port; any other host is unchanged.
std::string in_brackets(const std::string& host) {
  return host.find(':') != host.npos && !host.starts_with('[') ? fmt::format("[{}]", host) : host;
}

/// Where a process listens that others dial at this host.
std::string all_addresses(const std::string& host, int port) {
  return fmt::format("{}:{}", host.starts_with('[') ? "[::]" : "0.0.0.0", port);
}

std::vector<Item> site_items(const NewRun& run) {
  std::vector<Item> items;
  const auto here = outer_sync::parse_address(run.coordinator, "--coordinator");
  std::map<std::string, std::set<int>> taken;  // ports of each host
  taken[in_brackets(here.host)].insert(here.port);
  for (const auto& site : run.sites) {
    if (site.port != 0) taken[site.host].insert(site.port);
  }
  const bool shared = any_elsewhere(run.sites);
  for (const auto& site : run.sites) {
    const auto key = [&](std::string_view name) { return fmt::format("sites.{}.{}", site.name, name); };
    items.push_back(number_item(key("replicas"), 1));
    if (site.by_hand) {
      items.push_back({key("launch.by_hand"), "true", config::Scope::per_site, "", "", config::Kind::flag});
    } else if (site.is_elsewhere()) {
      items.push_back(text_item(key("launch.ssh"), site.ssh));
    }
    if (site.is_elsewhere()) items.push_back(text_item(key("data.path"), run.data));
    if (site.by_hand) {
      items.push_back(text_item(key("network.listen"), "none"));
      if (needs_reducer(run.sites)) items.push_back(text_item(key("network.advertise"), ""));
      continue;
    }
    if (!shared) continue;  // all workers are on one machine, and use its loopback
    const auto host = site.is_elsewhere() ? site.host : in_brackets(here.host);
    auto port = site.port != 0 ? site.port : first_port;
    while (site.port == 0 && !taken[host].insert(port).second) ++port;
    items.push_back(text_item(key("network.listen"), all_addresses(host, port)));
    items.push_back(text_item(key("network.advertise"), fmt::format("{}:{}", host, port)));
  }
  return items;
}

void add_reducer(std::vector<Item>& network, const std::string& coordinator) {
  const auto here = outer_sync::parse_address(coordinator, "--coordinator");
  const auto port = here.port == first_port ? first_port + 1 : first_port;
  const auto host = in_brackets(here.host);
  network.insert(network.begin(), number_item("reducers", 1));  // in no section, so not between its keys
  network.push_back(text_item("network.listen", all_addresses(host, port)));
  network.push_back(text_item("network.advertise", fmt::format("{}:{}", host, port)));
}

std::string notes_on(const std::vector<NewSite>& sites) {
  const bool by_hand = std::ranges::any_of(sites, &NewSite::by_hand);
  const bool ssh = std::ranges::any_of(sites, [](const NewSite& site) { return !site.ssh.empty(); });
  return fmt::format("{}{}{}{}", sites_note, ssh ? ssh_note : "", by_hand ? by_hand_note : "",
                     any_elsewhere(sites) && !needs_reducer(sites) ? ports_note : "");
}

/// Removes ":PORT" from "USER@HOST:PORT" and returns the port; 0 without a port.
int take_port(const std::string& site, std::string& target) {
  const auto host = target.substr(target.rfind('@') + 1);  // npos + 1 is 0
  // An IPv6 address without brackets has several colons, and no port.
  const bool has_port =
      host.starts_with('[') ? host.find("]:") != host.npos : std::ranges::count(host, ':') == 1;
  if (!has_port) return 0;
  const auto colon = target.rfind(':');
  const auto text = target.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 1024 || port > 65535)
    config_error(fmt::format(
        "--sites: the port of {} is '{}'; expected the port at which its worker listens, from 1024 to "
        "65535. The port of ssh is sites.{}.launch.port in the file that init writes",
        site, printable(text, 200), site));
  target.erase(colon);
  return port;
}

/// A site at "USER@HOST" or "USER@HOST:PORT".
NewSite site_at(const std::string& name, std::string target) {
  const auto expected = fmt::format(
      "--sites: the ssh target of {} is '{}'; expected USER@HOST or a name of your ssh config, of visible "
      "characters and not beginning with '-'",
      name, printable(target, 200));
  const bool visible = std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7f; });
  if (target.empty() || !visible || target.starts_with('-') || target.find("://") != target.npos)
    config_error(expected);
  const auto port = take_port(name, target);
  auto host = in_brackets(target.substr(target.rfind('@') + 1));
  if (host.starts_with('-') || !outer_sync::address_in(fmt::format("{}:{}", host, first_port)))
    config_error(expected);
  return {.name = name, .ssh = std::move(target), .host = std::move(host), .port = port};
}

}  // namespace

std::vector<NewSite> parse_new_sites(std::string_view text) {
  std::vector<NewSite> sites;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto part = trimmed(text.substr(begin, end - begin));
    const auto equals = part.find('=');
    NewSite site{.name = std::string(part.substr(0, equals)), .ssh = {}, .host = {}, .port = 0};
    check_site_name("--sites", printable(site.name, 200));
    check_member_name("a site of --sites", site.name);
    if (site.name == watcher_name || outer_sync::tls::usual_role(site.name) != outer_sync::tls::Role::trainer)
      config_error(
          fmt::format("--sites: a site is named '{}', which is the name of another certificate of the "
                      "run; choose another name",
                      site.name));
    if (std::ranges::find(sites, site.name, &NewSite::name) != sites.end())
      config_error(fmt::format("--sites has the site {} twice; give each site a name of its own", site.name));
    if (equals != part.npos && part.substr(equals + 1) == by_hand_target) {
      site.by_hand = true;
    } else if (equals != part.npos) {
      site = site_at(site.name, std::string(part.substr(equals + 1)));
    }
    const auto has_its_address = [&](const NewSite& other) {
      return site.port != 0 && other.host == site.host && other.port == site.port;
    };
    if (const auto other = std::ranges::find_if(sites, has_its_address); other != sites.end())
      config_error(fmt::format("--sites: {} and {} are both at {}:{}; give each a port of its own",
                               other->name, site.name, site.host, site.port));
    sites.push_back(std::move(site));
    begin = end + 1;
  }
  return sites;
}

bool any_elsewhere(const std::vector<NewSite>& sites) {
  return std::ranges::any_of(sites, &NewSite::is_elsewhere);
}

bool needs_reducer(const std::vector<NewSite>& sites) {
  return std::ranges::all_of(sites, &NewSite::by_hand);
}

std::string check_new_coordinator(const std::string& text, const std::vector<NewSite>& sites) {
  const auto address = outer_sync::parse_address(text, "--coordinator");
  if (address.port == 0)
    config_error(fmt::format("--coordinator is '{}'; expected a port other than 0", text));
  const bool is_wildcard = address.host == "0.0.0.0" || address.host == "::";
  if (is_wildcard || (any_elsewhere(sites) && address.is_loopback()))
    config_error(
        fmt::format("--coordinator is '{}', which other machines cannot reach; expected the HOST:PORT "
                    "at which the sites reach this machine",
                    text));
  for (const auto& site : sites) {
    if (site.port == address.port && site.host == in_brackets(address.host))
      config_error(
          fmt::format("--coordinator is '{}', where the worker of {} listens; give one of them another port",
                      text, site.name));
  }
  return text;
}

std::string check_new_data(const std::string& text) {
  const bool one_line =
      std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 0x7f; });
  if (text.empty() || !one_line)
    config_error(
        fmt::format("--data is '{}'; expected the path of the data on one line", printable(text, 200)));
  return text;
}

bool is_reachable(const NewRun& run) {
  return any_elsewhere(run.sites) ||
         !outer_sync::parse_address(run.coordinator, "--coordinator").is_loopback();
}

std::string data_of(const Recipe& recipe) {
  return source_of_recipe(recipe).find("data.path")->values.front();
}

std::string new_config(const NewRun& run) {
  check_name("--name", run.name);
  auto lines = lines_of(run.recipe.text);
  for (const auto* section : {"sites", "network", "replicas"}) remove_section(lines, section);
  change_head(lines);
  std::vector<Item> items = {text_item("run.name", run.name), text_item("data.path", run.data),
                             number_item("inner.batch", batch_of_site(run.recipe, run.sites.size()))};
  for (const auto& item : items) put_value(lines, item);
  const auto sites = site_items(run);
  std::vector<Item> network = {text_item("network.coordinator", run.coordinator)};
  if (needs_reducer(run.sites)) add_reducer(network, run.coordinator);
  if (std::ranges::any_of(run.sites, &NewSite::by_hand))  // people need longer than `launch`
    network.push_back(text_item("network.join_timeout", "1h"));
  if (!run.certs.empty()) network.push_back(text_item("network.certs", run.certs));

  auto text =
      fmt::format("# Written by `isthmus init` from the recipe {}.\n#\n{}\n\n{}{}\n{}{}", run.recipe.name,
                  trimmed(joined_lines(lines), "\n"), notes_on(run.sites), config::yaml_of(sites),
                  needs_reducer(run.sites) ? reducer_note : network_note, config::yaml_of(network));
  items.insert(items.end(), sites.begin(), sites.end());
  items.insert(items.end(), network.begin(), network.end());
  const auto source = Source::from_text(text, "the new config");
  check_values(source, items);
  (void)load_experiment(source, {}, std::nullopt, Purpose::training);
  return text;
}

}  // namespace isthmus::app
