#include "doctor/doctor.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "coordinator/coordinator.h"
#include "doctor/everywhere.h"
#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/say.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/protocol/shown_items.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "plan/choose.h"
#include "run/experiment/identity.h"
#include "run/output/json_output.h"

namespace isthmus::app {

using outer_sync::PathTest;
using outer_sync::PreflightGuest;
using outer_sync::protocol::shown_items;

namespace {

// Seconds. Certificates are valid from one day before they are issued, so smaller clock errors do no harm.
constexpr double worst_clock = 12 * 3600, bad_clock = 5;

void say(const std::string& text) { say_error(text); }

// ---- what is compared ----

void compare(const MachineReport& own, MachineReport& other) {
  const auto equal = [&](const char* check, const char* what, const std::string& ours,
                         const std::string& theirs, Level level, const char* todo) {
    if (ours.empty() || theirs.empty() || ours == theirs) return;
    other.add({check, level,
               fmt::format("{} {}; {} has {}", what, theirs.substr(0, 60), own.name, ours.substr(0, 60)),
               todo});
  };
  equal("build", "its versions are", own.versions, other.versions, Level::fail,
        "use the same build on all machines");
  equal("build", "its build is", own.build, other.build, Level::warn,
        "different builds may compute different bits; use the same build on all machines");
  equal("certificates", "its authority's fingerprint is", own.authority, other.authority, Level::fail,
        "issue all certificates of a run with the same authority");
  const auto differs =
      config::first_difference(shown_items(own.config), own.name, shown_items(other.config), other.name);
  if (!differs.empty()) other.add({"config", Level::fail, differs, "use the same config file everywhere"});
  other.add({"build"});
}

/// Compares the trainers' models and data with those of the first trainer.
void compare_models(std::vector<MachineReport>& machines) {
  const MachineReport* first = nullptr;
  for (auto& machine : machines) {
    if (machine.model.empty() && machine.tokenizer.empty()) continue;
    if (first == nullptr) {
      first = &machine;
      continue;
    }
    if (machine.tokenizer != first->tokenizer) {
      machine.add({"data", Level::fail, "its tokenizer differs from that of " + first->name,
                   "copy the tokenizer file there, and set data.tokenizer to it"});
    } else if (!machine.model.empty() && !first->model.empty() && machine.model != first->model) {
      machine.add(
          {"data", Level::fail, "its model differs from that of " + first->name, "compare the config files"});
    }
    if (!machine.corpus.empty() && !first->corpus.empty() && machine.corpus != first->corpus)
      machine.add({"data", Level::warn, "its data differ from those of " + first->name,
                   "fine if each site has its own data on purpose; otherwise copy one of them"});
  }
}

MachineReport of_guest(const PreflightGuest& guest, const MachineReport& own) {
  MachineReport report{.name = guest.name};
  try {
    report = machine_report(guest.report);
    report.name = guest.name;
  } catch (const Error& error) {
    report.add({"here", Level::fail, error.what(), "use the same build on all machines"});
    return report;
  }
  if (guest.lost.empty()) {
    report.add({"here", Level::ok});
  } else {
    report.add({"here", Level::fail, guest.lost, "start `isthmus doctor` there again, and read its output"});
  }
  compare(own, report);
  const double off = std::abs(guest.clock_offset);
  // The clock offset is known only to half a round trip.
  const auto level = off > worst_clock                              ? Level::fail
                     : off > bad_clock + guest.round_trip_ms / 2000 ? Level::warn
                                                                    : Level::ok;
  report.add({"clock", level, fmt::format("{:+.1f} s against {}", guest.clock_offset, own.name),
              level == Level::ok
                  ? ""
                  : "the validity of certificates depends on the clock: timedatectl set-ntp true"});
  return report;
}

// ---- paths ----

bool works(const std::vector<PathTest>& paths, const std::string& from, const std::string& to) {
  return std::ranges::any_of(paths, [&](const PathTest& path) {
    return path.from == from && path.to == to && path.problem.empty() && !path.address.empty();
  });
}
bool connected(const std::vector<PathTest>& paths, const std::string& a, const std::string& b) {
  return works(paths, a, b) || works(paths, b, a);
}

bool is_mailbox(const std::string& text) {
  const auto address = outer_sync::address_in(text);
  return address && outer_sync::is_mailbox_host(address->host);
}

/// Measured in both directions, without the mailbox; 0: not measured.
struct Hop {
  double round_trip_ms = 0, bytes_per_second = 0;
};
Hop hop_between(const std::vector<PathTest>& paths, const std::string& a, const std::string& b) {
  Hop hop;
  for (const auto& path : paths) {
    const bool is_theirs = (path.from == a && path.to == b) || (path.from == b && path.to == a);
    if (!is_theirs || !path.problem.empty() || path.address.empty() || is_mailbox(path.address)) continue;
    hop.round_trip_ms = std::max(hop.round_trip_ms, path.round_trip_ms);
    for (const auto rate : {path.bytes_per_second, path.back_bytes_per_second}) {
      if (rate > 0)
        hop.bytes_per_second = hop.bytes_per_second > 0 ? std::min(hop.bytes_per_second, rate) : rate;
    }
  }
  return hop;
}

/// A run prefers a relay to the mailbox, which is wrong if the relay's line is thin.
void compare_with_relays(const PathTest& path, const std::vector<PathTest>& paths,
                         const std::vector<PreflightGuest>& guests, Finding& finding) {
  if (hop_between(paths, path.from, path.to).bytes_per_second > 0) return;  // the run needs neither
  const auto from = std::ranges::find(guests, path.from, &PreflightGuest::name);
  if (from == guests.end() || !is_mailbox(from->address)) return;  // relays are for pairs without ports
  for (const auto& other : guests) {
    const auto one = hop_between(paths, path.from, other.name), two = hop_between(paths, other.name, path.to);
    const auto rate = std::min(one.bytes_per_second, two.bytes_per_second);
    if (rate == 0 || rate >= path.bytes_per_second) continue;
    finding.level = Level::warn;
    finding.says = fmt::format(
        "{} may relay between them, at {} and with a round trip of {:.0f} ms; the mailbox carries {} and "
        "takes {:.0f} ms",
        other.name, format_rate(8 * rate), one.round_trip_ms + two.round_trip_ms,
        format_rate(8 * path.bytes_per_second), path.round_trip_ms);
    finding.todo = fmt::format(
        "if that is too much data for its line, start {} with network.listen none and network.mailbox true: "
        "then it is not a relay",
        other.name);
    return;
  }
}

Finding judge_path(const PathTest& path, const std::vector<PathTest>& paths,
                   const std::vector<PreflightGuest>& guests) {
  Finding finding{.check = path.from + " -> " + path.to};
  if (path.problem.empty() && is_mailbox(path.address)) compare_with_relays(path, paths, guests, finding);
  if (path.problem.empty()) return finding;
  finding.says = path.address.empty() ? path.problem : path.address + ": " + path.problem;
  if (connected(paths, path.from, path.to)) {
    finding.level = Level::warn;
    finding.todo = path.to + " dials " + path.from +
                   ", which is enough; to repair this direction, check the firewall and --advertise of " +
                   path.to;
    return finding;
  }
  const auto relay = std::ranges::find_if(guests, [&](const PreflightGuest& other) {
    return other.name != path.from && other.name != path.to && connected(paths, path.from, other.name) &&
           connected(paths, path.to, other.name);
  });
  finding.level = relay == guests.end() ? Level::fail : Level::warn;
  finding.todo = relay == guests.end() ? "open or forward the port of one of them and set --advertise to the "
                                         "address that reaches it; or add a reducer that both can reach"
                                       : "their traffic goes through " + relay->name + " and uses its link";
  return finding;
}

/// One line; invalid UTF-8 from other machines is replaced.
std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int show(const Diagnosis& diagnosis, JsonOutput& output) {
  print(diagnosis, output);
  return exit_status_of(diagnosis);
}

// ---- the roles of a process ----

std::string be_hub(const DoctorRequest& request, const MachineReport& own) {
  const auto& experiment = *request.experiment;
  auto network = experiment.network;
  network.certs = own_certificates(network.certs, outer_sync::tls::coordinator_name);
  const auto expected = request.expected.empty() ? worker_names(experiment) : request.expected;
  outer_sync::PreflightHub hub(
      network,
      {.expected = expected, .wait = request.wait, .say = say, .mailbox = mailbox_place(experiment)});
  announce_port(request.announce_fd, hub.port());
  std::string names;
  for (const auto& name : expected) names += (names.empty() ? "" : ", ") + name;
  say(fmt::format("doctor of '{}' listens at port {}, waiting for {} at most {} s", experiment.run.name,
                  hub.port(), names, request.wait.count()));
  return hub.run([&](const auto& guests, const auto& paths) {
    const auto diagnosis = judge(own, expected, guests, paths);
    return json_line(to_json(diagnosis));
  });
}

std::string be_guest(const DoctorRequest& request, const MachineReport& own) {
  auto network = request.experiment->network;
  network.certs = own_certificates(network.certs, request.name);
  auto report = json_line(to_json(own));
  if (report.size() > outer_sync::longest_preflight_report)
    throw Error(ErrorKind::config, "the report on this machine is too long to send");
  return outer_sync::be_preflight_guest(network, {.name = request.name,
                                                  .report = std::move(report),
                                                  .wait = request.wait,
                                                  .mailbox = mailbox_place(*request.experiment)});
}

}  // namespace

Diagnosis judge(const MachineReport& own, const std::vector<std::string>& expected,
                const std::vector<PreflightGuest>& guests, const std::vector<PathTest>& paths) {
  Diagnosis diagnosis{.machines = {own}, .paths = paths};
  for (const auto& guest : guests) diagnosis.machines.push_back(of_guest(guest, own));
  for (const auto& name : expected) {
    if (std::ranges::find(guests, name, &PreflightGuest::name) != guests.end()) continue;
    MachineReport missing{.name = name};
    missing.add({"here", Level::fail, "it has not connected",
                 "start `isthmus doctor CONFIG --name " + name +
                     " --coordinator HOST:PORT` there; if it is running, read its output"});
    diagnosis.machines.push_back(std::move(missing));
  }
  compare_models(diagnosis.machines);
  for (const auto& path : paths) {
    auto finding = judge_path(path, paths, guests);
    if (finding.level != Level::ok) diagnosis.between.push_back(std::move(finding));
  }
  return diagnosis;
}

int run_doctor(const DoctorRequest& request) {
  JsonOutput output(request.json);
  const auto shown = !request.name.empty() ? request.name
                     : request.role == DoctorRole::coordinator
                         ? std::string(outer_sync::tls::coordinator_name)
                         : std::string("this machine");
  if (!request.experiment) {
    MachineReport report{.name = shown};
    report.add({"config", Level::fail, request.problem, "isthmus config prints every key with its range"});
    return show({.machines = {report}}, output);
  }
  const auto found = examine_machine({.experiment = *request.experiment,
                                      .role = request.role,
                                      .name = request.name,
                                      .build = request.build,
                                      .device = request.device});
  // Parsed like the guests' reports, which cuts texts, so that equal values compare equal.
  auto own = machine_report(json_line(to_json(found)));
  own.name = shown;
  if (request.alone) return show({.machines = {own}}, output);
  try {
    const auto verdict =
        request.role == DoctorRole::coordinator ? be_hub(request, own) : be_guest(request, own);
    return show(diagnosis_of(verdict), output);
  } catch (const Error& error) {
    own.add(
        {"doctors", Level::fail, error.what(), "fix the failures here first; then start all doctors again"});
    return show({.machines = {own}}, output);
  }
}

namespace {

struct DoctorFlags : ConfigOptions {
  std::string name, site;
  std::vector<std::string> expected;
  int wait = 60, announce_fd = -1;
  bool json = false, reduces = false;
};

int run_doctor_verb(DoctorFlags flags, const CommandLine& commands, const DeviceProbe& device) {
  const bool worker = !flags.name.empty();
  if (!worker && !flags.coordinator.empty())
    throw Error(ErrorKind::config, "--coordinator is for a worker's doctor; expected a --name with it");
  const bool hub = !worker && !flags.listen.empty();
  if (!worker) flags.coordinator = std::exchange(flags.listen, {});
  DoctorRequest request{.experiment = {},
                        .problem = {},
                        .role = flags.reduces ? DoctorRole::reducer
                                : worker      ? DoctorRole::worker
                                : hub         ? DoctorRole::coordinator
                                              : DoctorRole::everything,
                        .alone = !worker && !hub,
                        .name = flags.name,
                        .build = commands.build(),
                        .device = device,
                        .expected = flags.expected,
                        .wait = std::chrono::seconds(flags.wait),
                        .json = flags.json,
                        .announce_fd = flags.announce_fd};
  try {
    const auto place =
        worker && !flags.reduces ? std::optional(WorkerPlace{flags.name, flags.site}) : std::nullopt;
    request.experiment =
        load_and_choose(flags.config, flags.assignments(), place, Purpose::training).experiment;
  } catch (const Error& error) {
    request.problem = error.what();
  }
  if (request.alone && request.experiment && has_remote_sites(*request.experiment)) {
    return examine_everywhere({.config = {flags.config, flags.assignments()},
                               .wait = request.wait,
                               .json = request.json,
                               .program = commands.program()});
  }
  return run_doctor(request);
}

}  // namespace

void add_doctor(CommandLine& commands, DeviceProbe device) {
  const auto flags = std::make_shared<DoctorFlags>();
  auto* verb = commands.app().add_subcommand(
      "doctor", "check machines and links before a run: at all sites over ssh, or on each machine");
  add_config_file(*verb, flags->config)->required();
  auto* name = verb->add_option("--name", flags->name, "check as the worker of this name");
  verb->add_flag("--reduce-only", flags->reduces, "check as a reducer of that name")->needs(name);
  verb->add_option("--coordinator", flags->coordinator,
                   "HOST:PORT of the doctor that checks as the coordinator");
  verb->add_option("--site", flags->site,
                   "site that provides the settings; by default the site of the worker's name");
  verb->add_option("--listen", flags->listen,
                   "ADDRESS:PORT to listen on; without --name it checks as the coordinator there");
  verb->add_option("--advertise", flags->advertise, "HOST:PORT that peers dial");
  verb->add_option("--wait", flags->wait, "seconds to wait for the others")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  add_json(*verb, flags->json);
  verb->add_option("--announce-fd", flags->announce_fd)->group("");
  verb->add_option("--expect", flags->expected)->allow_extra_args(false)->group("");
  add_security(*verb, *flags);
  add_set(*verb, flags->set);
  verb->footer("Example: isthmus doctor two_sites.yaml");
  commands.on(*verb, [&commands, flags, device = std::move(device)] {
    return run_doctor_verb(*flags, commands, device);
  });
}

}  // namespace isthmus::app
