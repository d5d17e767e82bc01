#include "run/experiment/launcher_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"

namespace isthmus::app {

using config::Scope;

namespace {

constexpr std::string_view environment_prefix = "environment.";

struct List {
  std::string_view name;
  std::vector<std::string> LauncherConfig::*values;
  std::string_view doc;
};
constexpr List lists[] = {
    {"options", &LauncherConfig::options, "ssh options, as for ssh -o: [ProxyJump=gate.example]"},
    {"slurm", &LauncherConfig::slurm,
     "sbatch options; Slurm then starts the site's workers, and `launch --render slurm` writes the script"},
    {"setup", &LauncherConfig::setup, "shell lines that run there before the program"},
};

bool is_variable(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, fits) && !(name.front() >= '0' && name.front() <= '9');
}

/// A YAML flow sequence; a JSON array is one.
std::string yaml_list(const std::vector<std::string>& values) { return nlohmann::json(values).dump(); }

}  // namespace

std::string_view to_string(LauncherConfig::Kind kind) {
  using Kind = LauncherConfig::Kind;
  switch (kind) {
    case Kind::ssh:
      return "ssh";
    case Kind::slurm:
      return "slurm";
    case Kind::kubernetes:
      return "kubernetes";
    case Kind::by_hand:
      return "hand";
    case Kind::local:
      break;
  }
  return "local";
}

void LauncherConfig::serialize(config::Archive& ar) {
  ar({"ssh", &ssh, Scope::per_site,
      "USER@HOST, or a name from the ssh config, on which `launch` starts the site's workers; empty: the "
      "machine of `launch`"});
  ar({"port", &port, Scope::per_site, "ssh port; 0: ssh's own choice", 0, 65535});
  ar({"identity", &identity, Scope::per_site, "private key for ssh; empty: ssh's own choice"});
  ar({"program", &program, Scope::per_site, "isthmus program there: a path, ~/PATH, or a name in PATH"});
  ar({"folder", &folder, Scope::per_site,
      "parent of the run's folder there, relative to the user's home; relative paths that the site sets "
      "start from it"});
  ar({"coordinator", &coordinator, Scope::per_site, "run the coordinator there instead of next to `launch`"});
  ar({"by_hand", &by_hand, Scope::per_site,
      "the site's workers are started there by other means: by hand, a service, or `isthmus join`; `launch` "
      "waits for them"});
  ar({"image", &image, Scope::per_site,
      "container image with isthmus; Kubernetes then starts the site's workers, and `launch --render "
      "kubernetes` writes the manifests"});
  ar({"namespace", &cluster_namespace, Scope::per_site, "Kubernetes namespace"});
  ar({"volume", &volume, Scope::per_site,
      "Kubernetes persistent volume claim, mounted at /data, that holds the run's folder; empty: the run is "
      "lost with its pod"});
}

bool LauncherConfig::take(const config::Source::Entry& entry, const std::string& key) {
  if (key.starts_with(environment_prefix)) {
    auto name = key.substr(environment_prefix.size());
    if (!is_variable(name) || entry.is_list || entry.by_step)
      config_error(fmt::format("{}: {}; expected variables like environment: {{NCCL_DEBUG: warn}}",
                               entry.place, entry.key));
    environment.emplace_back(std::move(name), entry.values.front());
    return true;
  }
  const auto* list = std::ranges::find(lists, key, &List::name);
  if (list == std::end(lists)) return false;
  if (!entry.is_list)
    config_error(fmt::format("{}: {} is '{}'; expected a list like [{}]", entry.place, entry.key,
                             entry.values.front(), entry.values.front()));
  this->*list->values = entry.values;
  return true;
}

LauncherConfig::Kind LauncherConfig::kind() const {
  if (!ssh.empty()) return Kind::ssh;
  if (!slurm.empty()) return Kind::slurm;
  if (!image.empty()) return Kind::kubernetes;
  return by_hand ? Kind::by_hand : Kind::local;
}

void LauncherConfig::check(const std::string& site) const {
  const auto key = [&](std::string_view name) { return fmt::format("sites.{}.launch.{}", site, name); };
  if (!ssh.empty() + !slurm.empty() + !image.empty() + by_hand > 1)
    config_error(fmt::format("{} has more than one of ssh, slurm, image and by_hand; expected one launcher",
                             key("").substr(0, key("").size() - 1)));
  if (by_hand && coordinator)
    config_error(
        fmt::format("{} is true at a site with by_hand; expected a site with ssh or image, or no "
                    "coordinator: it then runs next to `launch`",
                    key("coordinator")));
  for (const auto& [name, value] : {std::pair("ssh", &ssh), {"program", &program}, {"folder", &folder}}) {
    if (!value->starts_with('-') && value->find_first_of(std::string_view("\n\r\0", 3)) == value->npos)
      continue;
    config_error(
        fmt::format("{} is '{}'; expected one line that does not begin with '-'", key(name), *value));
  }
  if (program.empty() || folder.empty())
    config_error(
        fmt::format("{} is empty; expected a path there", key(program.empty() ? "program" : "folder")));
  for (const auto* values : {&options, &slurm, &setup}) {
    for (const auto& value : *values) {
      if (value.find_first_of(std::string_view("\n\r\0", 3)) == value.npos && !value.empty()) continue;
      config_error(fmt::format("{} holds '{}'; expected lists of single lines",
                               key("options, slurm or setup"), value));
    }
  }
  for (const auto& option : slurm) {
    if (!option.starts_with("--"))
      config_error(fmt::format("{} holds '{}'; expected options of sbatch like --partition=gpu", key("slurm"),
                               option));
  }
}

std::vector<config::Item> LauncherConfig::items(bool everything) const {
  auto own = *this;
  LauncherConfig untouched;
  auto items = config::list(own);
  const auto defaults = config::list(untouched);
  if (!everything)
    std::erase_if(items, [&](const config::Item& item) {
      return std::ranges::find(defaults, item.key, &config::Item::key)->value == item.value;
    });
  for (const auto& list : lists) {
    const auto& values = this->*list.values;
    if (everything || !values.empty())
      items.push_back({std::string(list.name), yaml_list(values), Scope::per_site, std::string(list.doc),
                       "list of texts", config::Kind::list});
  }
  for (const auto& [name, value] : environment)
    items.push_back(
        {std::string(environment_prefix) + name, value, Scope::per_site, "", "", config::Kind::text});
  if (everything)
    items.push_back({std::string(environment_prefix) + "NAME", "", Scope::per_site,
                     "environment variable of the program there; it is stored in the run's folder, so do not "
                     "put secrets here",
                     "text", config::Kind::text});
  return items;
}

}  // namespace isthmus::app
