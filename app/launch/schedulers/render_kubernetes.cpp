// Manifests for Kubernetes: a ConfigMap for the site, and a Job and a Service for each worker.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/schedulers/render.h"
#include "launch/sites/ssh_command.h"
#include "run/process/joined.h"

namespace isthmus::app {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* coordinator_name = outer_sync::tls::coordinator_name;

/// A valid Kubernetes name: letters, digits and '-', at most 63.
std::string object_name(const std::string& run, const std::string& part) {
  auto name = run + "-" + part;
  for (auto& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) c = '-';
  }
  if (name.front() >= '0' && name.front() <= '9') name.insert(0, "run-");
  if (name.size() <= 63 && name.back() != '-') return name;
  config_error(
      fmt::format("run.name and {} give the Kubernetes name '{}'; expected at most 63 letters, "
                  "digits and '-' together, ending with a letter or digit",
                  part, name));
}

/// One process of the site: a worker, or the coordinator.
struct Pod {
  std::string name, object;
  std::vector<std::string> arguments;
  std::uint16_t port = 0;  ///< dialled by others; 0: none
  std::int64_t gpus = 0;
  bool from_outside = false;  ///< dialled by other sites
  std::int64_t tries = 0;
  std::string kept{};  ///< a worker's folder on the site's volume; empty: nothing outlives its pod
};

/// Identifies a pod's Job. It changes when the manifests are deleted and applied again.
constexpr const char* job_label = "batch.kubernetes.io/controller-uid";

Json labels(const Pod& pod) {
  return {{"app.kubernetes.io/name", "isthmus"}, {"app.kubernetes.io/instance", pod.object}};
}

/// Sets $again: a later pod of a Job offers the checkpoints written since the first pod began. The run needs
/// them if all replicas have lost its state.
std::string script_that_sets_again(const std::string& folder) {
  return fmt::format("folder={} again=\n", shell_word(folder)) +
         R"~(if [ -z "$JOB" ] || [ "$(cat "$folder.job" 2>/dev/null)" != "$JOB" ]; then
  (umask 077; mkdir -p "${folder%/*}") || exit 3
  { echo "$JOB"; } >"$folder.job" || exit 3
elif [ "$folder/checkpoints" -nt "$folder.job" ]; then
  again=--resume
fi
)~";
}

std::string script_of(const RenderedSite& site, const Pod& pod) {
  std::string script = "set -e\n";
  for (const auto& line : site.site.launch.setup) script += line + "\n";
  std::vector<std::string> words;
  for (const auto& word : pod.arguments) words.push_back(shell_word(word));
  const auto command = fmt::format("{} {}", shell_word(site.site.launch.program), joined(words, " "));
  // A coordinator that receives SIGTERM stops the run for all. When its machine is drained, kill it instead:
  // the next pod continues the run if the volume has kept its state.
  if (pod.name == coordinator_name)
    return script + fmt::format("{} &\nchild=$!\ntrap 'kill -KILL $child' TERM\nwait $child\n", command);
  if (pod.kept.empty()) return script + fmt::format("exec {}\n", command);
  return script + script_that_sets_again(pod.kept) + fmt::format("exec {} $again\n", command);
}

Json volumes(const RenderedSite& site, const Pod& pod) {
  Json list = Json::array();
  list.push_back(
      {{"name", "config"}, {"configMap", {{"name", object_name(site.there.run.name, site.site.name)}}}});
  if (site.site.launch.volume.empty())
    list.push_back({{"name", "data"}, {"emptyDir", Json::object()}});
  else
    list.push_back({{"name", "data"}, {"persistentVolumeClaim", {{"claimName", site.site.launch.volume}}}});
  list.push_back({{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}}}});  // for NCCL, between ranks
  if (!site.there.network.certs.empty())
    list.push_back({{"name", "certs"}, {"secret", {{"secretName", pod.object}, {"defaultMode", 0400}}}});
  return list;
}

Json job(const RenderedSite& site, const Pod& pod) {
  Json container;
  container["name"] = "isthmus";
  container["image"] = site.site.launch.image.empty() ? "isthmus" : site.site.launch.image;
  container["command"] = {"/bin/sh", "-c", script_of(site, pod)};
  for (const auto& [name, value] : site.site.launch.environment)
    container["env"].push_back({{"name", name}, {"value", value}});
  if (!pod.kept.empty())
    container["env"].push_back(
        {{"name", "JOB"},
         {"valueFrom", {{"fieldRef", {{"fieldPath", fmt::format("metadata.labels['{}']", job_label)}}}}}});
  if (pod.port > 0) container["ports"].push_back({{"containerPort", pod.port}});
  if (pod.gpus > 0) container["resources"]["limits"]["nvidia.com/gpu"] = std::to_string(pod.gpus);
  container["volumeMounts"] = {{{"name", "config"}, {"mountPath", "/config"}},
                               {{"name", "data"}, {"mountPath", "/data"}},
                               {{"name", "shm"}, {"mountPath", "/dev/shm"}}};
  if (!site.there.network.certs.empty())
    container["volumeMounts"].push_back({{"name", "certs"}, {"mountPath", "/certs"}, {"readOnly", true}});
  Json json;
  json["apiVersion"] = "batch/v1";
  json["kind"] = "Job";
  json["metadata"] = {
      {"name", pod.object}, {"namespace", site.site.launch.cluster_namespace}, {"labels", labels(pod)}};
  json["spec"]["backoffLimit"] = pod.tries;
  // Preemptions and drained machines do not count as failures. A wrong config or a divergence fails the Job
  // at once.
  const std::vector<int> for_good = {exit_status(ErrorKind::config), exit_status(ErrorKind::divergence)};
  json["spec"]["podFailurePolicy"]["rules"] = {
      {{"action", "Ignore"}, {"onPodConditions", {{{"type", "DisruptionTarget"}, {"status", "True"}}}}},
      {{"action", "FailJob"}, {"onExitCodes", {{"operator", "In"}, {"values", for_good}}}}};
  json["spec"]["template"]["metadata"]["labels"] = labels(pod);
  auto& spec = json["spec"]["template"]["spec"];
  spec["restartPolicy"] = "Never";
  spec["terminationGracePeriodSeconds"] = grace_seconds;
  spec["containers"].push_back(std::move(container));
  spec["volumes"] = volumes(site, pod);
  return json;
}

Json service(const RenderedSite& site, const Pod& pod) {
  Json json;
  json["apiVersion"] = "v1";
  json["kind"] = "Service";
  json["metadata"] = {
      {"name", pod.object}, {"namespace", site.site.launch.cluster_namespace}, {"labels", labels(pod)}};
  json["spec"]["type"] = pod.from_outside ? "LoadBalancer" : "ClusterIP";
  // Otherwise all peers connect from one address and share its limit for unauthenticated connections.
  if (pod.from_outside) json["spec"]["externalTrafficPolicy"] = "Local";
  json["spec"]["selector"] = labels(pod);
  json["spec"]["ports"].push_back({{"name", "isthmus"}, {"port", pod.port}, {"targetPort", pod.port}});
  return json;
}

Json config_map(const RenderedSite& site) {
  auto there = with_stored_names(site.there);
  there.sites.clear();
  if (!there.network.certs.empty()) there.network.certs = "/certs";
  Json json;
  json["apiVersion"] = "v1";
  json["kind"] = "ConfigMap";
  json["metadata"] = {{"name", object_name(there.run.name, site.site.name)},
                      {"namespace", site.site.launch.cluster_namespace}};
  json["data"]["run.yaml"] = to_yaml(there);
  return json;
}

Pod coordinator_pod(const RenderedSite& site) {
  const auto port = outer_sync::parse_addresses(site.coordinator, "network.coordinator").front().port;
  return {.name = coordinator_name,
          .object = object_name(site.there.run.name, coordinator_name),
          .arguments = {"coordinator", "--config", "/config/run.yaml", "--listen",
                        fmt::format("0.0.0.0:{}", port)},
          .port = port,
          .from_outside = true,
          .tries = std::max<std::int64_t>(site.there.run.restarts, 1)};
}

Pod worker_pod(const RenderedSite& site, const std::string& name) {
  const auto& there = site.there;
  Pod pod{.name = name,
          .object = object_name(there.run.name, name),
          .arguments = {"worker", "--quiet", "--config", "/config/run.yaml", "--coordinator",
                        site.coordinator, "--name", name},
          .gpus = there.device.device == "cpu" ? 0 : there.replica.ranks_per_machine(),
          .tries = std::max<std::int64_t>(there.run.restarts, 1)};
  if (!site.site.launch.volume.empty()) pod.kept = (there.folder() / name).string();
  if (!there.network.listens()) return pod;
  const auto listen = outer_sync::parse_address(there.network.listen, "network.listen");
  pod.port = listen.port == 0 ? usual_port : listen.port;
  pod.from_outside = !there.network.advertise.empty();
  const auto workers = site.site.workers();
  const auto index = static_cast<std::size_t>(std::ranges::find(workers, name) - workers.begin());
  const auto advertise = pod.from_outside ? nth_address(there.network.advertise, index)
                                          : fmt::format("{}.{}.svc.cluster.local:{}", pod.object,
                                                        site.site.launch.cluster_namespace, pod.port);
  if (pod.from_outside) pod.port = outer_sync::parse_address(advertise, "network.advertise").port;
  pod.arguments.insert(pod.arguments.end(),
                       {"--listen", fmt::format("0.0.0.0:{}", pod.port), "--advertise", advertise});
  return pod;
}

std::vector<Pod> pods(const RenderedSite& site, bool with_coordinator) {
  std::vector<Pod> out;
  if (with_coordinator) out.push_back(coordinator_pod(site));
  for (const auto& name : site.site.workers()) out.push_back(worker_pod(site, name));
  return out;
}

/// Block style, as in hand-written manifests; strings in double quotes, several lines as a block.
void append_yaml(std::string& out, const Json& json, std::size_t depth) {
  const std::string indent(2 * depth, ' ');
  for (const auto& [key, value] : json.items()) {
    if (json.is_array()) {
      std::string item;
      if (value.is_structured()) {
        append_yaml(item, value, depth + 1);
        item.replace(indent.size(), 2, "- ");
        out += item;
      } else {
        out += fmt::format("{}- {}\n", indent, value.dump());
      }
    } else if (value.is_structured() && !value.empty()) {
      out += fmt::format("{}{}:\n", indent, key);
      append_yaml(out, value, depth + 1);
    } else if (value.is_string() && value.get<std::string>().ends_with('\n')) {
      out += fmt::format("{}{}: |\n", indent, key);
      std::string text = value;
      for (std::size_t begin = 0; begin < text.size();) {
        const auto end = text.find('\n', begin);
        out += end == begin ? "\n" : fmt::format("{}  {}\n", indent, text.substr(begin, end - begin));
        begin = end + 1;
      }
    } else {
      out += fmt::format("{}{}: {}\n", indent, key, value.dump());
    }
  }
}

}  // namespace

std::vector<RenderedFile> kubernetes_files(const RenderedSite& site, bool with_coordinator) {
  std::string text = fmt::format("# Site {} of the run {}.\n", site.site.name, site.there.run.name);
  const auto add = [&](const Json& object) {
    text += "---\n";
    append_yaml(text, object, 0);
  };
  add(config_map(site));
  for (const auto& pod : pods(site, with_coordinator)) {
    if (pod.port > 0) add(service(site, pod));
    add(job(site, pod));
  }
  return {{site.site.name + ".manifests.yaml", text}};
}

std::vector<std::string> secret_commands(const RenderedSite& site, const std::string& certs,
                                         bool with_coordinator) {
  std::vector<std::string> commands;
  if (site.there.network.certs.empty()) return commands;
  for (const auto& pod : pods(site, with_coordinator))
    commands.push_back(
        fmt::format("kubectl create secret generic {} --namespace {} --from-file={}", pod.object,
                    site.site.launch.cluster_namespace,
                    shell_word(fmt::format("{}/{}", certs.empty() ? "certs" : certs, pod.name))));
  return commands;
}

}  // namespace isthmus::app
