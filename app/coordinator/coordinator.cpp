#include "coordinator/coordinator.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <optional>
#include <system_error>
#include <vector>

#include "coordinator/display.h"
#include "coordinator/newcomer_config.h"
#include "coordinator/records/state_file.h"
#include "coordinator/replan/auto_replan.h"
#include "coordinator/wandb/wandb_process.h"
#include "isthmus/base/error.h"
#include "isthmus/base/file.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/base/time.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/link/run_secret.h"
#include "isthmus/outer_sync/protocol/shown_items.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "run/experiment/identity.h"
#include "run/experiment/live_settings.h"
#include "run/metrics/summary.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
#include "run/process/run_folder.h"
#include "run/process/signals.h"

namespace isthmus::app {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Ended;
using Clock = std::chrono::steady_clock;

namespace {

/// Higher than any view number of any coordinator before: views are formed less often than a million times
/// per second.
std::uint64_t first_view_number() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count()) << 20U;
}

/// Null unless this machine has the authority's key: in the folder of certificates, or in its parent folder.
std::unique_ptr<outer_sync::tls::EnrolmentDesk> enrolment_desk(const std::string& certs,
                                                               Experiment& experiment) {
  if (certs.empty()) return nullptr;
  const auto own = std::filesystem::absolute(certs).lexically_normal();
  for (const auto& folder : {own, own.has_filename() ? own.parent_path() : own.parent_path().parent_path()}) {
    if (!std::filesystem::exists(folder / "ca.key")) continue;
    return std::make_unique<outer_sync::tls::EnrolmentDesk>(outer_sync::tls::Authority::open(folder),
                                                            config_for_newcomers(experiment));
  }
  return nullptr;
}

void write_summary(Experiment& experiment, const Coordinator& coordinator, const Display& display,
                   double wall_seconds, JsonOutput& json) {
  RunReport report{.members = {},
                   .reducer_bytes = {},
                   .evaluations = display.evaluations(),
                   .gradients = display.gradients(),
                   .wall_seconds = wall_seconds};
  for (const auto& [name, member] : coordinator.members()) {
    if (outer_sync::protocol::trains(member.hello.member)) {
      if (member.done) report.members.push_back(report_of<MemberReport>(member.result.summary));
    } else {
      const auto done = nlohmann::json::parse(member.result.summary, nullptr, false);
      const bool says =
          done.is_object() && done.contains("total_bytes") && done["total_bytes"].is_number_unsigned();
      report.reducer_bytes[name] =
          says ? done["total_bytes"].get<std::uint64_t>() : member.heartbeat.bytes_sent;
    }
  }
  // If the run had got further before it was resumed, recalled evaluations may be of later steps.
  auto& evaluations = report.evaluations;
  evaluations.erase(evaluations.upper_bound(report.members.front().last_step), evaluations.end());
  const auto summary = summary_json(experiment, report);
  say_to(stdout, printable_lines(summary_table(summary, report.members.front().sample)));
  json.print(summary);
  replace_file(experiment.folder() / "summary.json", summary.dump(2) + "\n");
}

bool has_failed(const Ended& ended) {
  return ended.how == Ended::How::failed || ended.how == Ended::How::diverged;
}

/// Files with metrics of an older run, which a member in its folder has not moved away yet.
std::vector<std::uint64_t> inodes_of_old_metrics(const std::filesystem::path& run) {
  std::vector<std::uint64_t> inodes;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(run, none)) {
    struct stat file {};
    if (stat((entry.path() / "metrics.jsonl").c_str(), &file) == 0 && file.st_size > 0)
      inodes.push_back(file.st_ino);
  }
  return inodes;
}

/// Only what all members agree on is logged, so no path, address or secret of a site.
WandbProcess::Options wandb_options(Experiment& experiment, bool fresh) {
  nlohmann::ordered_json config;
  for (const auto& [key, value] : outer_sync::protocol::shown_items(shared_items(experiment)))
    config[key] = value;
  // `launch` kills the coordinator run.stop_grace after Ctrl-C.
  const std::chrono::duration<double> end(experiment.run.stop_grace.seconds / 2);
  return {.folder = experiment.folder(),
          .run = {{"run", experiment.run.name},
                  {"mode", experiment.run.wandb},
                  {"fresh", fresh},
                  {"old", fresh ? inodes_of_old_metrics(experiment.folder()) : std::vector<std::uint64_t>()},
                  {"config", std::move(config)}},
          .end = std::chrono::duration_cast<std::chrono::milliseconds>(end),
          .program = wandb_program()};
}

}  // namespace

void announce_port(int fd, std::uint16_t port) {
  if (fd < 0) return;
  const auto line = std::to_string(port) + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    throw Error(ErrorKind::network, "cannot pass the coordinator's port to the launcher");
  }
  close(fd);
}

outer_sync::protocol::CoordinatorOptions coordinator_options(Experiment& experiment) {
  const auto rule = closing_rule(experiment);
  outer_sync::protocol::CoordinatorOptions options;
  options.run = experiment.run.name;
  options.replicas = static_cast<std::size_t>(experiment.replicas);
  options.reducers = static_cast<std::size_t>(experiment.reducers);
  options.config = shared_items(experiment);
  options.least = std::max(rule.least, rule.quorum);
  options.leases = rule.quorum > 0;
  options.topology = {experiment.outer.topology_setting(),
                      quant::bits_per_element(experiment.outer.codec_spec())};
  options.elastic = !experiment.outer.data_parallel();
  options.owners_keep_nothing = !experiment.outer.error_feedback;
  options.warmup_rounds = static_cast<std::uint64_t>(experiment.outer.warmup_steps);
  options.steps = static_cast<std::uint64_t>(experiment.run.steps);
  options.checkpoint_interval = std::chrono::duration_cast<outer_sync::protocol::Time>(
      std::chrono::duration<double>(experiment.run.checkpoint_interval.seconds));
  options.judge = [experiment](const auto& before, const auto& items) {
    return judge_change(experiment, before, items);
  };
  return options;
}

int run_coordinator(CoordinatorRequest request) {
  JsonOutput json(request.json);
  auto& experiment = request.experiment;
  make_private_folder(experiment.folder());
  // If a run continued without its coordinator, this one takes it over. A run that is resumed has ended, so
  // its last view does not count.
  const auto last = request.recover || request.resume ? std::nullopt : read_view(experiment.folder());
  const bool goes_on = last || request.recover;
  const bool fresh = !request.resume && !goes_on;
  if (fresh) {
    for (const auto* file : {"metrics.jsonl", "summary.json"}) make_room(experiment.folder() / file);
  }
  Display display(experiment, fresh);
  if (!fresh) display.recall_evaluations();
  auto options = coordinator_options(experiment);
  options.last = last;
  options.build = request.build;
  if (!request.given_up.empty() && !request.recover) config_error("--give-up needs --recover");
  if (request.recover) {
    options.recover = first_view_number();
    options.before = read_view_if_sound(experiment.folder());
    options.given_up = std::move(request.given_up);
  }
  auto desk = enrolment_desk(experiment.network.certs, experiment);
  take_identity(outer_sync::tls::coordinator_name, experiment);
  if (!experiment.network.secret.empty()) outer_sync::make_run_secret(experiment.network.secret);
  outer_sync::CoordinatorNode node(experiment.network, std::move(options), display, std::move(desk),
                                   mailbox_place(experiment));
  const SignalThread signals([&](int, int count) {
    if (count > 1) _exit(stopped_exit);
    node.request_stop("asked to by a signal");
  });
  AutoReplan replan(
      experiment,
      [&node](const auto& items, const std::string& why) { node.propose(items, "outer.auto", why); },
      [&display](const std::string& text) { display.message(text); });
  display.plans_with(replan);
  std::optional<WandbProcess> wandb;
  if (experiment.run.logs_to_wandb()) {
    wandb.emplace(wandb_options(experiment, fresh),
                  [&display](const std::string& text) { display.message(text); });
    display.logs_to(*wandb);
  }
  display.serve();
  announce_port(request.announce_fd, node.port());
  display.message(
      fmt::format("coordinator of '{}' listens at port {}, waiting for {}", experiment.run.name, node.port(),
                  goes_on ? "the members of the run" : fmt::format("{} replicas", experiment.replicas)));
  if (!request.chosen.empty()) display.message(request.chosen);
  const auto begin = Clock::now();
  const auto ended = node.run();
  display.finish();
  display.ended(ended, node.coordinator().stopping());
  // Before the state is removed: a coordinator that is killed in between leaves the summary.
  std::exception_ptr no_summary;
  try {
    if (ended.how == Ended::How::finished)
      write_summary(experiment, node.coordinator(), display, seconds_since(begin), json);
  } catch (const Error&) {
    no_summary = std::current_exception();
  }
  // The run is over. A later run with this name starts from its own first view.
  remove_view(experiment.folder());
  if (wandb) wandb->finish(has_failed(ended));
  if (no_summary) std::rethrow_exception(no_summary);
  if (ended.how == Ended::How::finished) return node.coordinator().stopping() ? stopped_exit : 0;
  if (ended.how == Ended::How::stopped) return stopped_exit;
  // Also after a signal: `launch` sends one when a process has ended, and only the coordinator knows the
  // reason.
  throw Error(ended.how == Ended::How::diverged ? ErrorKind::divergence : ErrorKind::network, ended.reason);
}

}  // namespace isthmus::app
