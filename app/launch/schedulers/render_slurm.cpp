// Batch scripts for Slurm: a job for each site, with a task for each of its workers.

#include <fmt/format.h>

#include <algorithm>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/core/address.h"
#include "launch/schedulers/render.h"
#include "launch/sites/ssh_command.h"
#include "run/process/joined.h"

namespace isthmus::app {

namespace {

bool has_option(const std::vector<std::string>& options, std::initializer_list<std::string_view> names) {
  return std::ranges::any_of(options, [&](const std::string& option) {
    const auto name = std::string_view(option).substr(0, option.find_first_of("= "));
    return std::ranges::find(names, name) != names.end();
  });
}

std::string directives(const RenderedSite& site) {
  const auto& given = site.site.launch.slurm;
  std::string text;
  const auto add = [&](const std::string& option) {
    if (!has_option(given, {std::string_view(option).substr(0, option.find('='))}))
      text += "#SBATCH " + option + "\n";
  };
  add(fmt::format("--job-name={}-{}", site.there.run.name, site.site.name));
  add(fmt::format("--ntasks={}", site.site.replicas));
  add(fmt::format("--output={}-%j.log", site.site.name));
  add("--open-mode=append");
  add("--requeue");
  add(fmt::format("--signal=B:USR1@{}", grace_seconds));
  const bool asks_for_gpus = has_option(
      given, {"--gpus", "--gres", "--gpus-per-task", "--gpus-per-node", "--gpus-per-socket", "-G"});
  if (site.there.device.device != "cpu" && !asks_for_gpus)
    add(fmt::format("--gpus-per-task={}", site.there.replica.ranks_per_machine()));
  for (const auto& option : given) text += "#SBATCH " + option + "\n";
  return text;
}

/// Escapes a text for double quotes, so that the shell changes nothing in it.
std::string quotable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\"$`\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// Flags for the address that a task's worker listens at and advertises. Only the node knows its host name,
/// unless the site sets one.
std::string ports(const RenderedSite& site) {
  const auto& network = site.there.network;
  if (!network.listens()) return {};
  const auto listen = outer_sync::parse_address(network.listen, "network.listen");
  const auto port = listen.port == 0 ? usual_port : listen.port;
  const auto host = listen.is_loopback() ? std::string("0.0.0.0") : listen.host;
  const auto with_port = [](const std::string& text, std::uint16_t first) {
    const auto zero = outer_sync::Address{text, 0}.to_string();
    return quotable(zero.substr(0, zero.rfind(':'))) + fmt::format(":$(({} + SLURM_PROCID))", first);
  };
  auto words = fmt::format(" \\\n  --listen \"{}\"", with_port(host, port));
  if (network.advertise.empty())
    return words + fmt::format(" --advertise \"$(hostname -f):$(({} + SLURM_PROCID))\"", port);
  const auto advertised = outer_sync::parse_address(network.advertise, "network.advertise");
  return words + fmt::format(" --advertise \"{}\"", with_port(advertised.host, advertised.port));
}

/// Slurm signals only the batch shell (--signal=B:USR1), because srun kills its tasks when it receives
/// SIGTERM itself. On TERM the script sends nothing: Slurm has signalled the workers already, and a second
/// SIGTERM would end them at once. Slurm requeues the job after a preemption; after scancel it stays ended.
constexpr auto stays_until_they_have_left = R"(time_is_over=no woken=yes
trap 'woken=yes time_is_over=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap 'woken=yes' TERM
# The end of one worker does not end the others.
srun --kill-on-bad-exit=0 --label bash -c "$task" &
while [[ $woken = yes ]]; do
  woken=no status=0
  wait "$!" || status=$?
done
if [[ $time_is_over = yes && $status -ne 0 ]]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
)";

}  // namespace

std::vector<RenderedFile> slurm_files(const RenderedSite& site) {
  const auto& launcher = site.site.launch;
  const auto workers = site.site.workers();
  std::string script = "#!/bin/bash\n";
  script += fmt::format(
      "# The workers of site {} of the run {}: {}. Submit this script in its folder. Before its time is "
      "over,\n"
      "# the workers write a checkpoint and leave, the job is requeued, and they join the run again.\n",
      site.site.name, site.there.run.name, joined(workers, ", "));
  script += directives(site);
  script += "set -euo pipefail\ncd \"${SLURM_SUBMIT_DIR:?expected to be submitted with sbatch}\"\n";
  script += export_lines(launcher);
  for (const auto& line : launcher.setup) script += line + "\n";
  std::vector<std::string> quoted;
  quoted.reserve(workers.size());
  for (const auto& worker : workers) quoted.push_back(shell_word(worker));
  script += "# The command of each task, expanded by the task's own shell.\n";
  script += fmt::format("task=$(\n  cat <<'TASK'\nnames=({})\nname=${{names[$SLURM_PROCID]}}\n",
                        joined(quoted, " "));
  script += fmt::format(
      "again=()  # offer checkpoints after a requeue: needed if all replicas have left the run\n"
      "if [[ -n ${{SLURM_RESTART_COUNT:-}} && -d {}/$name/checkpoints ]]; then again=(--resume); fi\n",
      shell_word(site.there.folder().string()));
  script += fmt::format(
      "exec {} worker --quiet --config {} --coordinator {} --name \"$name\" \"${{again[@]}}\"{}\n",
      path_word(launcher.program), shell_word(site.site.name + ".yaml"), shell_word(site.coordinator),
      ports(site));
  script += "TASK\n)\n";
  script += stays_until_they_have_left;
  auto config = with_stored_names(site.there);
  config.sites.clear();
  return {{site.site.name + ".sbatch", script}, {site.site.name + ".yaml", to_yaml(config)}};
}

std::string slurm_coordinator(const Experiment& experiment) {
  const auto command = fmt::format("isthmus coordinator --config FILE --listen {}",
                                   coordinator_listen(experiment.network.coordinator));
  return fmt::format("{0}; while [ $? -eq {1} ]; do {0} --resume; done", command,
                     exit_status(ErrorKind::network));
}

}  // namespace isthmus::app
