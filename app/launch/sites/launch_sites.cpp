#include "launch/sites/launch_sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "plan/choose.h"
#include "run/experiment/identity.h"
#include "run/process/machine.h"

namespace isthmus::app {

namespace fs = std::filesystem;
using outer_sync::Address;
using outer_sync::parse_address;
using outer_sync::parse_addresses;

namespace {

constexpr const char* certs_name = "certs";

std::string certificate_file_text(const fs::path& file) {
  auto text = text_if_there(file);
  if (text.empty())
    data_error("cannot read the certificate " + file.string() +
               "; issue it with `isthmus certs issue RUN NAME`, or set network.certs to its folder");
  return text;
}

void add_certificate(std::vector<SiteFile>& files, const std::string& certs, const std::string& run,
                     const std::string& name) {
  const fs::path own = own_certificates(certs, name);
  for (const auto* part : {"ca.pem", "cert.pem", "ca.crl"}) {
    if (std::string_view(part) == "ca.crl" && !may_be_there(own / part)) continue;  // none is revoked
    files.push_back(
        {fmt::format("{}/{}/{}/{}", run, certs_name, name, part), certificate_file_text(own / part), true});
  }
}

std::string host_of(const std::string& ssh) { return ssh.substr(ssh.rfind('@') + 1); }

}  // namespace

Experiment experiment_there(const LaunchConfig& config, const Site& site, const fs::path& folder,
                            const std::string& run) {
  auto source = config::Source::from_file(config.file);
  for (const auto& assignment : config.assignments) source.set(assignment);
  const auto prefix = fmt::format("sites.{}.", site.name);
  for (auto entry : std::vector(source.entries())) {
    if (!entry.key.starts_with(prefix)) continue;
    entry.base = folder;
    source.put(std::move(entry));
  }
  auto there = load_and_choose(std::move(source), {}, WorkerPlace{site.workers().front(), site.name},
                               Purpose::training)
                   .experiment;
  there.sites.clear();
  there.run.out = folder.string();
  there.run.name = run;
  if (site.find("network.secret") == nullptr) there.network.secret.clear();  // it is in the run's folder
  if (!there.network.certs.empty())
    there.network.certs =
        (site.find("network.certs") != nullptr ? folder / there.network.certs : folder / run / certs_name)
            .string();
  if (!there.outer.log.empty() && site.find("outer.log") == nullptr)
    there.outer.log = (folder / run / "log").string();
  return there;
}

std::vector<SiteFile> files_of(const LaunchConfig& config, const Experiment& here, const Site& site,
                               const SiteFacts& facts, const std::string& secret) {
  const auto& run = here.run.name;
  auto there = with_stored_names(experiment_there(config, site, facts.folder, run));
  if (there.trainer.threads == 0)
    there.trainer.threads = threads_each(site.replicas * there.replica.ranks_per_machine(), facts.cores);
  std::vector<SiteFile> files = {{fmt::format("{}/{}.yaml", run, site.name), to_yaml(there), false}};
  if (!secret.empty() && there.network.certs.empty() && !there.network.insecure)
    files.push_back({fmt::format("{}/{}", run, secret_file), secret, true});
  if (there.network.certs.empty() || site.find("network.certs") != nullptr) return files;
  for (const auto& worker : site.workers()) add_certificate(files, here.network.certs, run, worker);
  if (site.launch.coordinator)
    add_certificate(files, here.network.certs, run, outer_sync::tls::coordinator_name);
  return files;
}

std::string config_there(const SiteFacts& facts, const std::string& run, const Site& site) {
  return (facts.folder / run / (site.name + ".yaml")).string();
}

SiteStart start_there(std::vector<std::string> verb, const LaunchConfig& config, const std::string& run,
                      const Site& site, std::size_t index, const SiteFacts& facts) {
  const auto names = site.workers();
  const auto there = load_experiment(config.file, config.assignments, WorkerPlace{names[index], site.name});
  const std::vector ranks(names.size(), there.replica.ranks_per_machine());
  const auto gpus = there.device.device == "cpu" ? std::vector<std::string>() : facts.gpus;
  SiteStart start{.name = names[index],
                  .folder = run + "/" + names[index],
                  .arguments = std::move(verb),
                  .environment = gpu_environment(assign_gpus(gpus, names, ranks)[index])};
  start.arguments.insert(start.arguments.end(), {config_there(facts, run, site), "--name", names[index]});
  add_ports(start.arguments, there.network, index);
  return start;
}

void add_ports(std::vector<std::string>& command, const outer_sync::NetworkConfig& network,
               std::size_t index) {
  if (index == 0) return;
  command.insert(command.end(), {"--listen", nth_address(network.listen, index)});
  if (!network.advertise.empty())
    command.insert(command.end(), {"--advertise", nth_address(network.advertise, index)});
}

std::string nth_address(const std::string& address, std::size_t index) {
  if (address.empty() || address == outer_sync::NetworkConfig::no_port) return address;
  auto parsed = parse_address(address, "network.listen");
  if (parsed.port == 0) return address;
  const auto port = parsed.port + index;
  if (port > 65535)
    config_error(fmt::format("worker {} of a site would get port {}; choose a port lower than {}", index + 1,
                             port, parsed.port));
  parsed.port = static_cast<std::uint16_t>(port);
  return parsed.to_string();
}

std::string coordinator_listen(const std::string& coordinator) {
  auto address = parse_addresses(coordinator, "network.coordinator").front();
  if (!address.is_loopback()) address.host = address.host.find(':') == std::string::npos ? "0.0.0.0" : "::";
  return address.to_string();
}

std::string coordinator_address(const std::string& coordinator, std::uint16_t port) {
  const auto addresses = parse_addresses(coordinator, "network.coordinator");
  if (addresses.front().port != 0) return coordinator;
  return Address{addresses.front().host, port}.to_string();
}

const Site* coordinator_site(const Experiment& experiment) {
  for (const auto& site : experiment.sites) {
    if (site.launch.coordinator && site.launch.kind() == LauncherConfig::Kind::ssh) return &site;
  }
  return nullptr;
}

std::string address_at(const Experiment& experiment, const Site* site, std::uint16_t port) {
  const auto& coordinator = experiment.network.coordinator;
  const auto* home = coordinator_site(experiment);
  const bool same = home == (site != nullptr && site->is_elsewhere() ? site : nullptr);
  if (!same) return coordinator_address(coordinator, port);
  const auto listen = coordinator_listen(coordinator);
  if (listen.starts_with("0.0.0.0:")) return fmt::format("127.0.0.1:{}", port);
  if (listen.starts_with("[::]:")) return fmt::format("[::1]:{}", port);
  return coordinator_address(listen, port);
}

void check_reach(const LaunchConfig& config, const Experiment& experiment) {
  for (const auto& site : experiment.sites) {
    if (!site.is_elsewhere()) continue;
    const auto at = fmt::format("site {} is on another machine{}", site.name,
                                site.launch.ssh.empty() ? "" : " (" + site.launch.ssh + ")");
    if (site.find("run.out") != nullptr)
      config_error(fmt::format(
          "run.out is set at site {0}, which is on another machine; set sites.{0}.launch.folder instead",
          site.name));
    if (!site.launch.ssh.empty() && Address{host_of(site.launch.ssh), 0}.is_loopback()) continue;
    const auto there = load_experiment(config.file, config.assignments, WorkerPlace{{}, site.name});
    const auto coordinator = parse_addresses(there.network.coordinator, "network.coordinator").front();
    if (coordinator.is_loopback() && !site.launch.coordinator)
      config_error(
          fmt::format("network.coordinator is '{}', and {}; expected a HOST:PORT "
                      "at which that machine reaches the coordinator",
                      there.network.coordinator, at));
    if (!there.network.listens() || experiment.replicas == 1) continue;
    if (parse_address(there.network.listen, "network.listen").is_loopback())
      config_error(
          fmt::format("network.listen is '{}', and {}; expected ADDRESS:PORT, for example 0.0.0.0:7001, and "
                      "the address that the others dial as network.advertise; or none",
                      there.network.listen, at));
  }
}

}  // namespace isthmus::app
