#include "coordinator/events/run_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>

#include "isthmus/base/time.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/trainer/checkpoint_folder.h"

namespace isthmus::app {

using outer_sync::protocol::Coordinator;
using outer_sync::protocol::Ended;

RunEvents::RunEvents(const Experiment& experiment, EventHook& hook, EventHook::Say say, EventHook::Say note)
    : experiment_(experiment), hook_(hook), say_(std::move(say)), note_(std::move(note)) {}

void RunEvents::fire(const std::string& kind, nlohmann::ordered_json event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  event["run"] = experiment_.run.name;
  event["step"] = event.value("step", step_);
  event["time"] = seconds(now);
  const auto name = event.find("name");
  note_(fmt::format("event {}, step {}{}", kind, event["step"].dump(),
                    name != event.end() && name->is_string() ? ", " + name->get<std::string>() : ""));
  hook_.fire(kind, std::move(event));
}

void RunEvents::look(const Coordinator& coordinator) {
  for (const auto& [name, member] : coordinator.members()) step_ = std::max(step_, member.heartbeat.step);
  look_for_losses(coordinator);
  look_for_obstacles(coordinator);
  look_for_checkpoints(coordinator);
  for (const auto& [name, member] : coordinator.members()) {
    const auto& beat = member.heartbeat;
    if (std::isfinite(beat.loss)) {
      not_finite_.erase(name);
    } else if (not_finite_.insert(name).second) {
      say_(fmt::format("{}: the loss of step {} is not finite", name, beat.step));
      fire("non_finite", {{"name", name}, {"step", beat.step}});
    }
    if (beat.disk_free > 0) look_at_disk(name, beat.disk_free);
  }
  std::error_code none;
  const auto own = std::filesystem::space(experiment_.folder(), none);
  if (!none) look_at_disk(outer_sync::tls::coordinator_name, own.available);
}

/// Also reports members that left in order: they are gone, even if an operator asked them to leave.
void RunEvents::look_for_losses(const Coordinator& coordinator) {
  std::map<std::string, std::string> here;
  for (const auto& [name, member] : coordinator.members()) {
    if (member.role != Coordinator::Role::joining) here[name] = member.hello.site;
  }
  for (const auto& [name, site] : sites_) {
    if (coordinator.members().contains(name)) continue;
    const auto left =
        std::ranges::count_if(here, [&site = site](const auto& entry) { return entry.second == site; });
    fire("member_lost", {{"name", name}, {"site", site}, {"site_left", left}});
  }
  sites_ = std::move(here);
}

void RunEvents::look_for_obstacles(const Coordinator& coordinator) {
  const auto obstacle = coordinator.obstacle();
  if (!obstacle.empty() && obstacle_.empty()) fire("suspended", {{"reason", obstacle}});
  if (obstacle.empty() && !obstacle_.empty()) fire("resumed", {{"after", "suspension"}});
  obstacle_ = obstacle;
}

/// The checkpoint from which the run was resumed is not a new one. The path of a member's checkpoint is known
/// in full only on that member's machine.
void RunEvents::look_for_checkpoints(const Coordinator& coordinator) {
  if (const auto step = coordinator.resumed_from(); step > resumed_from_ && coordinator.participating() > 0) {
    resumed_from_ = step;
    checkpoint_ = std::max(checkpoint_, step);
    fire("resumed", {{"after", "stop"}, {"step", step}});
  }
  const auto step = coordinator.common_checkpoint();
  if (step <= checkpoint_) return;
  checkpoint_ = step;
  auto checkpoints = nlohmann::ordered_json::array();
  for (const auto& [name, member] : coordinator.members()) {
    if (member.role != Coordinator::Role::member || !outer_sync::protocol::trains(member.hello.member))
      continue;
    const auto in_folder = std::filesystem::path(name) / "checkpoints";
    const auto file = trainer::checkpoint_file(in_folder, step, 0);
    nlohmann::ordered_json one{
        {"name", name}, {"site", member.hello.site}, {"file", (experiment_.run.name / file).string()}};
    std::error_code none;
    const auto here = std::filesystem::absolute(experiment_.folder() / file, none);
    if (std::filesystem::exists(here, none)) one["path"] = here.string();
    checkpoints.push_back(std::move(one));
  }
  fire("checkpoint_written", {{"step", step}, {"checkpoints", std::move(checkpoints)}});
}

void RunEvents::look_at_disk(const std::string& name, std::uint64_t free_bytes) {
  const auto least = static_cast<std::uint64_t>(experiment_.run.disk_low.bytes);
  if (free_bytes >= least) {
    low_.erase(name);
  } else if (low_.insert(name).second) {
    say_(fmt::format("{}: {:.2f} GB are free on the disk of its run folder, less than run.disk_low", name,
                     static_cast<double>(free_bytes) / 1e9));
    fire("disk_low", {{"name", name}, {"free_bytes", free_bytes}});
  }
}

void RunEvents::gathering_stopped(const std::string& why) {
  say_(why);
  fire("gathering_stopped", {{"reason", why}});
}

void RunEvents::ended(const Ended& ended, bool stopped) {
  const bool well = ended.how == Ended::How::finished || ended.how == Ended::How::stopped;
  const char* kind = well                                ? (stopped ? "stopped" : "finished")
                     : ended.how == Ended::How::diverged ? "diverged"
                                                         : "failed";
  fire(kind, {{"reason", ended.reason}});
}

}  // namespace isthmus::app
