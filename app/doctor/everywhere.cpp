#include "doctor/everywhere.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "isthmus/base/error.h"
#include "isthmus/base/say.h"
#include "isthmus/base/text.h"
#include "isthmus/base/text_file.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "launch/processes/local_run.h"
#include "launch/sites/site_links.h"
#include "plan/choose.h"
#include "run/metrics/diagnosis.h"
#include "run/output/json_output.h"
#include "run/process/joined.h"
#include "run/process/scratch_folder.h"
#include "run/process/signals.h"

namespace isthmus::app {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Kind = LauncherConfig::Kind;
namespace fs = std::filesystem;
namespace tls = outer_sync::tls;

namespace {

/// Time for the other doctors to receive and print the verdict after the hub has ended.
constexpr auto farewell = 5s;

/// The JSON document in a doctor's output; nullopt if it has none.
std::optional<Diagnosis> document_in(const std::string& said) {
  std::istringstream lines(said);
  std::string document;
  for (std::string line; std::getline(lines, line);) {
    if (line == "{") document.clear();
    if (line == "{" || !document.empty()) document += line + "\n";
    if (line == "}") break;
  }
  try {
    if (!document.empty()) return diagnosis_of(document);
  } catch (const Error&) {  // it died while printing
  }
  return std::nullopt;
}

class Everywhere final : public LocalRun {
 public:
  explicit Everywhere(const EverywhereRequest& request)
      : request_(request),
        output_(request.json),
        experiment_(load_and_choose(request.config.file, request.config.assignments).experiment),
        links_(
            experiment_,
            [this](const Site& site, const SiteFacts& facts) {
              return files_of(request_.config, experiment_, site, facts, {});
            },
            [](const std::string&, const std::string&) {}) {
    check_reach(request.config, experiment_);
    links_.use_own_agents(".doctor");
  }
  ~Everywhere() override { close_links(); }

  int run() {
    std::atomic<int> interrupts = 0;
    const SignalThread signals([&](int, int count) { interrupts = count; });
    say("checking {}", joined(names_of_sites(), ", "));
    try {
      if (!links_.connect(interrupts)) return 130;
    } catch (const Error& error) {
      print(unreachable(), output_);
      return error.exit_status();
    }
    if (start_hub(interrupts)) start_guests();
    wait_for_verdict(interrupts);
    if (interrupts > 0) return 130;
    const auto diagnosis = verdict();
    close_links();
    print(diagnosis, output_);
    return exit_status_of(diagnosis);
  }

 private:
  template <class... Parts>
  static void say(fmt::format_string<Parts...> text, Parts&&... parts) {
    say_error(fmt::format(text, std::forward<Parts>(parts)...));
  }

  [[nodiscard]] std::vector<std::string> names_of_sites() const {
    std::vector<std::string> names;
    for (const auto& site : experiment_.sites)
      names.push_back(site.launch.ssh.empty() ? site.name : site.name + " (" + site.launch.ssh + ")");
    return names;
  }

  void close_links() {
    processes_.clear();
    links_.leave();
  }

  [[nodiscard]] Diagnosis unreachable() const {
    Diagnosis diagnosis;
    for (const auto& site : experiment_.sites) {
      if (site.launch.kind() != Kind::ssh) continue;
      MachineReport report{.name = site.name};
      const auto loss = links_.loss(site);
      if (loss.empty()) {
        report.add({"ssh", Level::ok});
      } else {
        report.add({"ssh", Level::fail, loss, "nothing else was checked; fix this first"});
      }
      diagnosis.machines.push_back(std::move(report));
    }
    return diagnosis;
  }

  // ---- starting ----

  [[nodiscard]] std::vector<std::string> flags_of_all() const {
    return {"--json", "--wait", std::to_string(request_.wait.count())};
  }

  /// Returns false if the hub does not listen; the reason is in its log.
  bool start_hub(const std::atomic<int>& interrupts) {
    const auto* site = coordinator_site(experiment_);
    const auto listen = coordinator_listen(experiment_.network.coordinator);
    std::vector<std::string> words = flags_of_all();
    for (const auto& name : worker_names(experiment_)) words.insert(words.end(), {"--expect", name});
    for (const auto& name : reducer_names(experiment_)) words.insert(words.end(), {"--expect", name});
    const auto log = log_of(tls::coordinator_name);
    if (site == nullptr) {
      auto command = local_command(words);
      if (!start_coordinator(std::move(command), listen, log)) return false;
      port_ = outer_sync::parse_address(address(), "the coordinator").port;
      return true;
    }
    const auto link = links_.to(*site);
    SiteStart start{.name = tls::coordinator_name,
                    .folder = experiment_.run.name + "/doctor",
                    .arguments = {"doctor", config_there(links_.facts(*site), experiment_.run.name, *site),
                                  "--listen", listen},
                    .log = log,
                    .coordinates = true};
    start.arguments.insert(start.arguments.end(), words.begin(), words.end());
    processes_.push_back(link->start(start));
    port_ = link->await_port(*processes_.front(), interrupts).value_or(0);
    return port_ != 0;
  }

  [[nodiscard]] std::vector<std::string> local_command(const std::vector<std::string>& flags) const {
    auto command = request_.program;
    command.insert(command.end(), {"doctor", request_.config.file.string()});
    for (const auto& assignment : request_.config.assignments)
      command.insert(command.end(), {"--set", assignment});
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  void start_guests() {
    for (const auto& name : reducer_names(experiment_)) {
      auto command = local_command(flags_of_all());
      command.insert(command.end(), {"--name", name, "--reduce-only", "--coordinator",
                                     address_at(experiment_, nullptr, port_)});
      processes_.push_back(std::make_unique<Process>(
          Process::Options{.name = name, .command = std::move(command), .log = log_of(name)}));
    }
    for (const auto& site : experiment_.sites) {
      const auto names = site.workers();
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (site.launch.kind() == Kind::ssh) {
          processes_.push_back(guest_there(site, i));
        } else if (site.launch.kind() == Kind::local) {
          processes_.push_back(guest_here(site, i));
        } else {
          say("{} is started by {}; run there: isthmus doctor CONFIG --name {} --coordinator {}", names[i],
              to_string(site.launch.kind()), names[i], address_at(experiment_, &site, port_));
        }
      }
    }
  }

  std::unique_ptr<RunProcess> guest_there(const Site& site, std::size_t index) {
    const auto link = links_.to(site);
    auto start =
        start_there({"doctor"}, request_.config, experiment_.run.name, site, index, links_.facts(site));
    start.arguments.insert(start.arguments.end(), {"--coordinator", address_at(experiment_, &site, port_)});
    const auto flags = flags_of_all();
    start.arguments.insert(start.arguments.end(), flags.begin(), flags.end());
    start.folder = experiment_.run.name + "/doctor/" + start.name;
    start.log = log_of(start.name);
    return link->start(start);
  }

  std::unique_ptr<RunProcess> guest_here(const Site& site, std::size_t index) {
    const auto name = site.workers()[index];
    auto command = local_command(flags_of_all());
    command.insert(command.end(), {"--name", name, "--coordinator", address_at(experiment_, &site, port_)});
    const auto own =
        load_experiment(request_.config.file, request_.config.assignments, WorkerPlace{name, site.name});
    add_ports(command, own.network, index);
    return std::make_unique<Process>(
        Process::Options{.name = name, .command = std::move(command), .log = log_of(name)});
  }

  // ---- results ----

  /// Returns when all doctors have ended, `farewell` after the hub has ended, or on an interrupt.
  void wait_for_verdict(const std::atomic<int>& interrupts) const {
    const auto all_ended = [&] {
      return std::ranges::all_of(processes_, [](const auto& process) { return !process->running(); });
    };
    std::optional<Clock::time_point> until;
    while (interrupts == 0 && !all_ended() && (!until || Clock::now() < *until)) {
      if (!until && !processes_.front()->running()) until = Clock::now() + farewell;
      std::this_thread::sleep_for(20ms);
    }
  }

  [[nodiscard]] fs::path log_of(const std::string& name) const { return scratch_.path() / (name + ".log"); }

  [[nodiscard]] std::string said_by(const std::string& name) const { return text_if_there(log_of(name)); }

  /// Last line of the hub's output.
  [[nodiscard]] std::string last_words() const {
    std::istringstream lines(said_by(tls::coordinator_name));
    const auto* site = coordinator_site(experiment_);
    std::string last = site == nullptr ? "" : links_.loss(*site);
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) last = line;
    }
    return printable(std::move(last), 300);
  }

  [[nodiscard]] Diagnosis verdict() const {
    auto diagnosis = document_in(said_by(tls::coordinator_name));
    if (!diagnosis) {
      throw Error(ErrorKind::network,
                  "the coordinator's doctor ended without a verdict; its last output: " + last_words());
    }
    for (auto& machine : diagnosis->machines) {
      // A doctor that did not reach the hub has the reason in its own output.
      const auto own = machine.failed("here") ? document_in(said_by(machine.name)) : std::nullopt;
      if (own && own->machines.size() == 1) machine = own->machines.front();
    }
    return *std::move(diagnosis);
  }

  const EverywhereRequest& request_;
  JsonOutput output_;  ///< first, because it redirects standard output
  Experiment experiment_;
  ScratchFolder scratch_{"doctor"};
  std::uint16_t port_ = 0;  ///< of the hub
  SiteLinks links_;
};

}  // namespace

bool has_remote_sites(const Experiment& experiment) {
  return std::ranges::any_of(experiment.sites, [](const Site& site) {
    return site.launch.kind() == Kind::ssh || site.launch.kind() == Kind::by_hand;
  });
}

int examine_everywhere(const EverywhereRequest& request) { return Everywhere(request).run(); }

}  // namespace isthmus::app
