#include "audit/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "audit/records.h"
#include "audit/rerun.h"
#include "audit/verdict.h"
#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "isthmus/trainer/checkpoint.h"
#include "isthmus/trainer/checkpoint_folder.h"
#include "participant/replica_folder.h"
#include "run/output/exit_codes.h"
#include "run/output/json_output.h"
#include "run/output/lines.h"
#include "run/process/scratch_folder.h"
#include "worker/setup/machine_traits.h"
#include "worker/training/checkpoints.h"

namespace isthmus::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* config_name = "config.yaml";

/// Folders of members with audit records; a restarted worker may have several.
std::vector<fs::path> folders_in(const fs::path& run) {
  std::vector<fs::path> folders;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run, none)) {
    if (fs::exists(entry.path() / audit_file)) folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  if (folders.empty())
    data_error(run.string() + ": no member has audit records (MEMBER/" + audit_file +
               "); expected the folder of a run with run.audit true");
  return folders;
}

/// A part of a member's training that can be run again.
struct Task {
  fs::path folder;  ///< of its checkpoints
  AuditInterval interval;
};

bool same_config(const AuditInterval& a, const AuditInterval& b) {
  const auto config_of = [](const AuditInterval& interval) {
    const auto section = interval.end.sections.find(trainer::config_section);
    return section == interval.end.sections.end() ? Digest() : section->second;
  };
  return config_of(a) == config_of(b);
}

/// The config of the member's machine.
Experiment config_in(const trainer::Checkpoint& saved, const std::vector<std::string>& assignments) {
  return load_experiment(trainer::config_of(saved), assignments, std::nullopt, Purpose::training);
}

/// Steps that can be run again.
struct Tasks {
  std::vector<Task> all;
  std::vector<std::string> without;  ///< folders of members that applied rounds, but have no tasks
};

/// Takes the tasks of a folder, between checkpoints that are still there; deleted ones lie inside an
/// interval.
void take_tasks(const fs::path& member_folder, const std::vector<std::string>& assignments, Tasks& tasks) {
  Journal journal;
  bool trained = false;
  const auto skipped = read_audit_file(member_folder / audit_file, [&](const AuditLine& line) {
    trained = trained || std::holds_alternative<AuditApplied>(line);
    journal.add(line);
  });
  if (skipped > 0)
    say_error(fmt::format("isthmus: {} lines of {} are of another form and skipped", skipped,
                          (member_folder / audit_file).string()));
  const auto folder = checkpoints_in(member_folder);
  const auto exists = [&](const AuditCheckpoint& checkpoint) {
    return fs::exists(trainer::checkpoint_file(folder, checkpoint.step, 0));
  };
  if (trained) tasks.without.push_back(member_folder.filename().string());
  const auto before = tasks.all.size();
  std::vector<AuditInterval> open;
  std::optional<std::uint64_t> warmup;  // steps; their rounds are in no log
  for (const auto& interval : journal.intervals()) {
    if (!is_folder_of(interval.member, member_folder.filename().string())) {
      say_error(fmt::format("isthmus: {} has records of {}, which are not read", member_folder.string(),
                            printable(interval.member)));
      break;
    }
    // Processes with different configs trained in them.
    const bool follows =
        !open.empty() && open.back().end == interval.begin && same_config(open.back(), interval);
    if (!follows) open.clear();
    if (open.empty()) {
      if (!exists(interval.begin)) continue;
      if (!warmup) {
        const auto saved = trainer::read_checkpoint(trainer::checkpoint_file(folder, interval.begin.step, 0));
        warmup = static_cast<std::uint64_t>(config_in(saved, assignments).outer.warmup_steps);
      }
      if (interval.begin.step < *warmup) continue;
    }
    open.push_back(interval);
    if (!exists(interval.end)) continue;
    tasks.all.push_back({folder, joined(open)});
    open.clear();
  }
  if (trained && tasks.all.size() > before) tasks.without.pop_back();
}

Tasks all_tasks(const AuditRequest& request) {
  Tasks found;
  auto& tasks = found.all;
  for (const auto& folder : folders_in(request.run)) {
    try {
      take_tasks(folder, request.assignments, found);
    } catch (const std::exception& error) {  // one member's files must not prevent the audit of others
      say_error(fmt::format("isthmus: {} cannot be audited: {}", folder.string(), error.what()));
    }
  }
  std::erase_if(found.without, [&](const std::string& folder) {
    return std::ranges::any_of(tasks,
                               [&](const Task& task) { return is_folder_of(task.interval.member, folder); });
  });
  if (!request.member.empty()) {
    std::set<std::string> others;
    for (const auto& task : tasks) others.insert(task.interval.member);
    std::erase_if(tasks, [&](const Task& task) { return task.interval.member != request.member; });
    found.without.clear();
    if (tasks.empty() && !others.empty())
      data_error(fmt::format("{}: no steps of {} can be run again; expected one of: {}", request.run.string(),
                             request.member, fmt::join(others, ", ")));
  }
  if (tasks.empty())
    data_error(
        fmt::format("{}: no steps can be run again: that needs two checkpoints of a member after the "
                    "warm-up; raise run.keep_checkpoints, set run.keep_every, or fetch older ones with "
                    "`isthmus fetch`",
                    request.run.string()));
  return found;
}

/// The intervals in which a member may have sent its contribution to this round: after it had applied the
/// round before, and before it applied this one.
std::vector<Task> with_round(std::vector<Task> tasks, const AuditRequest& request) {
  std::erase_if(tasks, [&](const Task& task) {
    return std::ranges::none_of(task.interval.events, [&](const AuditEvent& event) {
      const auto* applied = std::get_if<AuditApplied>(&event);
      return applied != nullptr && applied->fragment == request.fragment &&
             (applied->round == *request.round || applied->round + 1 == *request.round);
    });
  });
  if (tasks.empty())
    data_error(fmt::format("round {} of fragment {} lies between no two checkpoints that are there",
                           *request.round, request.fragment));
  return tasks;
}

std::vector<Task> sampled(const std::vector<Task>& tasks, double share, std::uint64_t seed) {
  std::vector<std::uint64_t> rounds;
  rounds.reserve(tasks.size());
  for (const auto& task : tasks) rounds.push_back(task.interval.rounds());
  std::vector<Task> out;
  for (const auto drawn : draw_intervals(rounds, share, seed)) out.push_back(tasks[drawn]);
  return out;
}

/// Receipts and ledgers for the rounds of these intervals, and for the next rounds, which were sent in them.
Receipts receipts_for(const fs::path& run, const std::vector<Task>& tasks) {
  using Rounds =
      std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>>;  // by fragment: first, last
  std::vector<Rounds> wanted;
  for (const auto& task : tasks) {
    auto& rounds = wanted.emplace_back();
    for (const auto& event : task.interval.events) {
      const auto* applied = std::get_if<AuditApplied>(&event);
      if (applied == nullptr) continue;
      const std::pair only{applied->round, applied->round};
      rounds.try_emplace(applied->fragment, only).first->second.second = applied->round;
    }
  }
  const auto fits = [&](std::uint32_t fragment, std::uint64_t round) {
    return std::ranges::any_of(wanted, [&](const Rounds& rounds) {
      const auto place = rounds.find(fragment);
      if (place == rounds.end()) return true;  // its first round may have been sent there
      const auto [first, last] = place->second;
      return round >= first && round <= last + 1;
    });
  };
  Receipts receipts;
  for (const auto& folder : folders_in(run)) {
    read_audit_file(folder / audit_file, [&](AuditLine line) {
      const auto member = folder.filename().string();
      if (auto* receipt = std::get_if<AuditReceipts>(&line)) {
        if (fits(receipt->fragment, receipt->round)) receipts.add(member, std::move(*receipt));
      } else if (const auto* applied = std::get_if<AuditApplied>(&line)) {
        if (fits(applied->fragment, applied->round)) receipts.add(member, *applied);
      }
    });
  }
  return receipts;
}

/// Logs of members that are not under audit come first.
std::vector<fs::path> logs_for(const AuditRequest& request, const Experiment& experiment,
                               const std::string& member) {
  if (!request.log.empty()) return {request.log};
  std::vector<fs::path> logs;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(experiment.outer.log, none)) {
    if (fs::exists(entry.path() / outer_sync::log::header_name)) logs.push_back(entry.path());
  }
  std::ranges::sort(logs);
  std::stable_partition(logs.begin(), logs.end(), [&](const auto& log) { return log.filename() != member; });
  if (logs.empty())
    data_error(
        fmt::format("there is no round log in {}; expected one of any member: give its folder with --log",
                    experiment.outer.log));
  return logs;
}

/// The config of the process that made the steps and wrote the last checkpoint. Keys that all share must have
/// the values in the run's config.
Experiment experiment_of(const AuditRequest& request, const Task& task, const trainer::Checkpoint& end) {
  const auto& assigned = request.assignments;
  auto experiment = config_in(end, assigned);
  const auto run_config = request.run / config_name;
  if (fs::exists(run_config)) {
    auto of_run = load_experiment(run_config, assigned, std::nullopt, Purpose::inference);
    if (!of_run.outer.log.empty()) experiment.outer.log = of_run.outer.log;  // on this machine
    const auto expected = shared_items(of_run), found = shared_items(experiment);
    const auto differs = std::ranges::mismatch(expected, found);
    if (differs.in1 != expected.end() || differs.in2 != found.end()) {
      const auto& item = differs.in1 != expected.end() ? *differs.in1 : *differs.in2;
      data_error(
          fmt::format("the config in {} has another {} than the run's, which has {}; if the run was resumed "
                      "with other settings, audit these steps with --set",
                      end.file.string(), item.first, item.second));
    }
  }
  const bool sets_threads = std::ranges::any_of(
      assigned, [](const auto& assignment) { return assignment.starts_with("trainer.threads="); });
  const auto threads = task.interval.machine.find(threads_trait);
  constexpr long long most = 1024;
  const auto count = threads == task.interval.machine.end() ? 0 : std::atoll(threads->second.c_str());
  if (!sets_threads && count > 0 && count <= most) experiment.trainer.threads = count;
  return experiment;
}

AuditVerdict audit(const AuditRequest& request, const Task& task, const Receipts& receipts) {
  AuditVerdict verdict{.member = task.interval.member,
                       .begin = task.interval.begin.step,
                       .end = task.interval.end.step,
                       .machine = task.interval.machine};
  const auto end = trainer::checkpoint_file(task.folder, verdict.end, 0);
  try {
    const ScratchFolder work("audit");
    RerunRequest again{.member = task.interval.member,
                       .interval = task.interval,
                       .begin = trainer::checkpoint_file(task.folder, verdict.begin, 0),
                       .end = end,
                       .work = work.path(),
                       .build = request.build,
                       .program = request.program};
    {
      const auto saved = trainer::read_checkpoint(end);
      again.experiment = experiment_of(request, task, saved);
      again.experiment.replica.machines.clear();  // all ranks run here
      again.settings = checkpoint_settings(saved);
    }
    again.logs = logs_for(request, again.experiment, task.interval.member);
    verdict.made = rerun(again, receipts);
  } catch (const std::exception& error) {
    verdict.made.problem = Error(ErrorKind::data, error.what());
  }
  return verdict;
}

}  // namespace

int run_audit(const AuditRequest& request) {
  JsonOutput json(request.json);
  auto [tasks, without] = all_tasks(request);
  const auto seed = request.seed.value_or(std::random_device()());
  if (request.round) {
    tasks = with_round(std::move(tasks), request);
  } else {
    const auto count = tasks.size();
    tasks = sampled(tasks, request.sample, seed);
    fmt::print("{}", in_lines(fmt::format("{} of {} intervals between checkpoints, drawn with --seed {}",
                                          tasks.size(), count, seed),
                              2));
  }
  const auto receipts = receipts_for(request.run, tasks);
  auto findings = nlohmann::ordered_json::array();
  auto owners = nlohmann::ordered_json::array();
  OwnerAudit results;
  int status = without.empty() ? 0 : exit_status(ErrorKind::data);
  for (const auto& name : without)
    fmt::print("{}",
               in_lines(fmt::format("not audited: {}, since none of its steps can be run again", name), 2));
  bool found = false;
  for (const auto& task : tasks) {
    const auto verdict = audit(request, task, receipts);
    results.add(verdict.made.owners);
    fmt::print("{}", text_of(verdict));
    findings.push_back(json_of(verdict));
    status = std::max(status, status_of(verdict));
    found = found || (request.round && verdict.has(request.fragment, *request.round));
  }
  std::set<std::string> known;
  for (const auto& folder : folders_in(request.run)) known.insert(folder.filename().string());
  for (const auto& verdict : results.verdicts(known)) {
    fmt::print("{}", text_of(verdict));
    owners.push_back(json_of(verdict));
    status = std::max(status, status_of(verdict));
  }
  if (request.round && !found) {
    fmt::print("{}",
               in_lines(fmt::format("round {} of fragment {} was not compared: it was sent before the oldest "
                                    "checkpoint, or its contributions were late",
                                    *request.round, request.fragment),
                        2));
    status = std::max(status, exit_status(ErrorKind::data));
  }
  json.print({{"seed", seed}, {"intervals", findings}, {"owners", owners}, {"not_audited", without}});
  return status;
}

}  // namespace isthmus::app
