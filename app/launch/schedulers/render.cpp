#include "launch/schedulers/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/outer_sync/core/address.h"
#include "plan/choose.h"
#include "run/output/json_output.h"
#include "run/process/joined.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using Kind = LauncherConfig::Kind;

namespace {

/// Placeholder for a folder that only its own machine knows; paths in it become relative to the config.
constexpr const char* unknown_folder = "/isthmus-folder";

/// Sites with a launcher of that kind. If no site has any launcher: all sites, or without sites one with all
/// replicas.
std::vector<Site> sites_to_render(const Experiment& experiment, Kind kind) {
  auto sites = experiment.sites;
  if (sites.empty())
    sites.push_back(Site{.name = "replica", .replicas = experiment.replicas, .settings = {}, .launch = {}});
  const auto is_local = [](const Site& site) { return !site.is_elsewhere(); };
  if (!std::ranges::all_of(sites, is_local))
    std::erase_if(sites, [&](const Site& site) { return site.launch.kind() != kind; });
  if (!sites.empty()) return sites;
  config_error(fmt::format("no site is started by {}; expected a site with launch: {{{}}}", to_string(kind),
                           kind == Kind::slurm ? "slurm: [--partition=gpu]" : "image: NAME"));
}

/// The scripts need a fixed address.
std::string fixed_coordinator(const Experiment& experiment) {
  const auto& text = experiment.network.coordinator;
  const auto address = outer_sync::parse_addresses(text, "network.coordinator").front();
  if (address.port != 0 && !address.is_loopback()) return text;
  config_error(
      fmt::format("network.coordinator is '{}'; expected a fixed HOST:PORT at which all sites reach "
                  "the coordinator: it is written into the scripts",
                  text));
}

/// Replaces the placeholder, so that paths are relative to the files.
std::string without_folder(const std::string& text) {
  std::string out;
  std::size_t begin = 0;
  for (auto at = text.find(unknown_folder); at != std::string::npos; at = text.find(unknown_folder, begin)) {
    out.append(text, begin, at - begin).push_back('.');
    begin = at + std::string_view(unknown_folder).size();
  }
  return out.append(text, begin);
}

Experiment rendered(const LaunchConfig& config, const Experiment& all, const Site& site,
                    const fs::path& folder) {
  if (!all.sites.empty()) return experiment_there(config, site, folder, all.run.name);
  auto there = all;
  there.run.out = folder.string();
  if (!there.network.certs.empty()) there.network.certs = (folder / all.run.name / "certs").string();
  return there;
}

std::string certificates_hint(const Experiment& all, const RenderedSite& site) {
  if (site.there.network.certs.empty() || all.network.certs.empty()) return {};
  return fmt::format(
      "copy {}/{{{}}} to {}/certs/ in {} there", all.network.certs, joined(site.site.workers(), ","),
      all.run.name,
      site.site.launch.folder.starts_with('/') ? site.site.launch.folder : "the script's folder");
}

void write_files(const fs::path& folder, const std::vector<RenderedFile>& files) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) data_error("cannot make the folder " + folder.string() + ": " + error.message());
  for (const auto& file : files) replace_file(folder / file.name, file.text);
}

}  // namespace

int run_render(const RenderRequest& request) {
  const bool slurm = request.kind == "slurm";
  auto all = load_and_choose(request.config.file, request.config.assignments).experiment;
  const auto sites = sites_to_render(all, slurm ? Kind::slurm : Kind::kubernetes);
  const auto coordinator = fixed_coordinator(all);
  const auto folder = request.to.empty() ? fs::path(all.run.name + "-" + request.kind) : request.to;
  std::vector<RenderedFile> files;
  std::vector<std::string> steps;
  // If all sites are rendered and none has the coordinator, it runs at the first one.
  const bool alone = sites.size() == std::max<std::size_t>(1, all.sites.size()) &&
                     std::ranges::none_of(sites, [](const Site& site) { return site.launch.coordinator; });
  for (const auto& site : sites) {
    const bool coordinates = site.launch.coordinator || (alone && &site == &sites.front());
    const auto there_folder = !slurm                                ? fs::path("/data")
                              : site.launch.folder.starts_with('/') ? fs::path(site.launch.folder)
                                                                    : fs::path(unknown_folder);
    RenderedSite one{site, rendered(request.config, all, site, there_folder), coordinator};
    auto own = slurm ? slurm_files(one) : kubernetes_files(one, coordinates);
    for (auto& file : own) {
      file.text = without_folder(file.text);
    }
    files.insert(files.end(), own.begin(), own.end());
    if (slurm) {
      if (const auto hint = certificates_hint(all, one); !hint.empty()) steps.push_back(hint);
      if (coordinates) steps.push_back("on the machine at " + coordinator + ": " + slurm_coordinator(all));
      steps.push_back(fmt::format("cd {} && sbatch {}.sbatch", folder.string(), site.name));
    } else {
      for (auto& command : secret_commands(one, all.network.certs, coordinates))
        steps.push_back(std::move(command));
      steps.push_back(
          fmt::format("kubectl apply -f {}", (folder / (site.name + ".manifests.yaml")).string()));
    }
  }
  write_files(folder, files);
  if (request.json) {
    nlohmann::ordered_json json = {
        {"run", all.run.name}, {"kind", request.kind}, {"folder", folder.string()}};
    for (const auto& file : files) json["files"].push_back((folder / file.name).string());
    json["steps"] = steps;
    JsonOutput(true).print(json);
    return 0;
  }
  for (const auto& file : files) fmt::print("wrote {}\n", (folder / file.name).string());
  fmt::print("then:\n");
  for (const auto& step : steps) fmt::print("  {}\n", step);
  return 0;
}

}  // namespace isthmus::app
