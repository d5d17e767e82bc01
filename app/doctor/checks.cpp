#include "doctor/checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <map>

#include "doctor/corpus_size.h"
#include "doctor/object_store_check.h"
#include "doctor/ranks_check.h"
#include "isthmus/data/corpus.h"
#include "isthmus/data/tokenizer.h"
#include "isthmus/outer_sync/core/address.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "isthmus/outer_sync/tls/authority.h"
#include "isthmus/outer_sync/tls/certificate_state.h"
#include "isthmus/trainer/parameter_table.h"
#include "run/experiment/identity.h"

namespace isthmus::app {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using outer_sync::NetworkConfig;

namespace {

constexpr double gb = 1e9;
// Bytes per parameter: of a checkpoint (docs/how-to/checkpoints-and-resume.md) and of a replica.
constexpr double checkpoint_bytes = 20;
constexpr double training_bytes = 16;  ///< parameters, gradients and two moments in fp32
constexpr double outer_bytes = 8;

bool is_member(const DoctorPlace& place) { return place.role != DoctorRole::coordinator; }
bool trains(const DoctorPlace& place) { return is_member(place) && place.role != DoctorRole::reducer; }
double workers_here(const DoctorPlace& place) {
  return place.role == DoctorRole::everything ? static_cast<double>(place.experiment.replicas) : 1;
}
std::string amount(double bytes) { return fmt::format("{:.3g} GB", bytes / gb); }

double parameters_of(const Experiment& experiment, std::int64_t vocab, Digest* fingerprint = nullptr) {
  const trainer::ParameterTable table({experiment.model, vocab}, experiment.outer.num_fragments,
                                      static_cast<std::uint64_t>(experiment.outer.chunk_elements));
  if (fingerprint != nullptr) *fingerprint = table.fingerprint();
  return static_cast<double>(table.parameters());
}
double parameters_of(const Experiment& experiment) {
  return parameters_of(experiment, data::make_tokenizer(experiment.data.tokenizer)->vocab_size());
}

// ---- names and ports ----

void check_name_of(const std::string& host, const std::string& key, MachineReport& report) {
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (found != nullptr) ::freeaddrinfo(found);
  if (problem != 0)
    report.add(
        {"names", Level::fail,
         fmt::format("{} is at '{}', which has no address: {}", key, host, ::gai_strerror(problem)),
         "correct the name, add it to the name server or to /etc/hosts, or give an IP address instead"});
}

void check_names(const DoctorPlace& place, MachineReport& report) {
  const auto& network = place.experiment.network;
  const auto each = [&](const std::string& text, const char* key) {
    if (text.empty() || text == NetworkConfig::no_port) return;
    for (const auto& address : outer_sync::parse_addresses(text, key))
      if (!outer_sync::is_mailbox_host(address.host)) check_name_of(address.host, key, report);
  };
  each(network.coordinator, "network.coordinator");
  if (is_member(place)) {
    each(network.listen, "network.listen");
    each(network.advertise, "network.advertise");
  }
  report.add({"names"});
}

void check_ports(const DoctorPlace& place, MachineReport& report) {
  const auto& network = place.experiment.network;
  if (place.role == DoctorRole::everything)
    outer_sync::check_listen_address(network.coordinator, "network.coordinator");
  if (is_member(place) && network.listens())
    outer_sync::check_listen_address(network.listen, "network.listen");
  report.add({"ports"});
}

// ---- certificates ----

void check_certificate(const DoctorPlace& place, const std::string& name, MachineReport& report) {
  const auto& experiment = place.experiment;
  const auto folder = own_certificates(experiment.network.certs, name);
  const auto state = outer_sync::tls::certificate_state(folder);
  const auto add = [&](Level level, const std::string& says, const std::string& todo) {
    report.add({"certificates", level, folder + ": " + says, todo});
  };
  report.authority = state.authority.hex();
  if (state.name != name)
    add(Level::fail, "the certificate was issued to '" + state.name + "', not to '" + name + "'",
        "isthmus certs issue " + state.run + " " + name);
  if (state.run != experiment.run.name)
    add(Level::warn,
        "the certificate is for run '" + state.run + "', but run.name is '" + experiment.run.name + "'",
        "fine if all members have certificates for '" + state.run + "'; otherwise: isthmus certs init " +
            experiment.run.name);
  if (const auto left = state.ends - std::chrono::system_clock::now(); left < 7 * 24h)
    add(Level::warn,
        fmt::format("it expires in {} hours", std::chrono::duration_cast<std::chrono::hours>(left).count()),
        "isthmus certs issue " + state.run + " " + name + "; running processes pick up the new certificate");
  if (state.others_read_key)
    add(Level::warn, "others on this machine can read the private key in cert.pem",
        "chmod 600 " + folder + "/cert.pem");
  if (state.has_authority_key && place.role == DoctorRole::worker)
    add(Level::warn,
        "the authority's key (ca.key) is on this machine; anyone with that key can admit members",
        "keep it only where certificates are issued");
}

void check_certificates(const DoctorPlace& place, MachineReport& report) {
  const auto& network = place.experiment.network;
  if (network.certs.empty()) {
    const auto open = network.reachable();
    const bool bare = !open.empty();
    report.add({"certificates", bare ? Level::warn : Level::ok,
                bare ? "no certificates, although " + open + ", which other machines can reach" : "",
                bare
                    ? "isthmus certs init; without certificates, anyone on the network path can alter the run"
                    : ""});
    return;
  }
  std::vector<std::string> names;
  if (!place.name.empty()) names.push_back(place.name);
  if (place.role == DoctorRole::everything) names = worker_names(place.experiment);
  if (place.name.empty()) names.emplace_back(outer_sync::tls::coordinator_name);
  for (const auto& name : names) check_certificate(place, name, report);
  report.add({"certificates"});
}

// ---- data and model ----

void check_data(const DoctorPlace& place, MachineReport& report) {
  const auto& experiment = place.experiment;
  if (experiment.data.is_stream()) {
    const auto tokenizer = data::make_tokenizer(experiment.data.tokenizer);
    report.tokenizer = tokenizer->fingerprint().hex();
    report.add({"data", Level::ok, "a stream; it is opened only when the run starts"});
    return;
  }
  const data::Corpus corpus(experiment.data);
  Digest model;
  (void)parameters_of(experiment, corpus.vocab_size(), &model);
  report.model = model.hex();
  report.tokenizer = corpus.tokenizer_fingerprint().hex();
  report.corpus = corpus.fingerprint().hex();
  for (const auto& note : corpus.notes()) report.add({"data", Level::warn, note});
  for (auto& finding : judge_sizes(experiment, corpus)) report.add(std::move(finding));
  report.add({"data", Level::ok,
              fmt::format("{} tokens to train on, {} held out", corpus.tokens(data::Split::train),
                          corpus.tokens(data::Split::heldout))});
}

void check_memory(const DoctorPlace& place, MachineReport& report) {
  const auto& experiment = place.experiment;
  double available = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key;) {
    if (key == "MemAvailable:" && info >> available) break;
    std::getline(info, unit);
  }
  available *= 1024;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  if (double most = 0, now = 0; limit >> most && used >> now) available = std::min(available, most - now);
  const auto& outer = experiment.outer;
  const double each = training_bytes + outer_bytes + (outer.error_feedback ? 4 : 0) +
                      (outer.sender_feedback() ? 4 : 0) + (outer.warmup_steps > 0 ? 4 : 0) +
                      (experiment.run.writes_checkpoints_meanwhile() ? checkpoint_bytes : 0);
  const double need = workers_here(place) * parameters_of(experiment) * each;
  const bool on_gpu = experiment.device.device == "cuda";
  const auto says = fmt::format(
      "training here on the CPU needs {} ({:.0f} bytes per parameter of each replica) plus activations; {} "
      "are free",
      amount(need), each, amount(available));
  const auto level = need > available ? Level::fail : need > 0.7 * available ? Level::warn : Level::ok;
  if (on_gpu)
    return report.add({"memory", Level::ok, amount(available) + " are free; GPU memory is not checked"});
  report.add({"memory", level, says,
              level == Level::ok ? "" : "use a smaller model, fewer replicas here, or more memory"});
}

// ---- disk ----

struct Space {
  double free = 0;
  dev_t device = 0;
  bool writable = false;
};

/// Space at the folder or, if it does not exist, at its nearest existing parent.
Space space_at(fs::path folder) {
  folder = fs::absolute(folder).lexically_normal();
  while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs system {};
  struct stat file {};
  if (::statvfs(folder.c_str(), &system) != 0 || ::stat(folder.c_str(), &file) != 0)
    throw Error(ErrorKind::data, "cannot read the free space at " + folder.string());
  return {.free = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize),
          .device = file.st_dev,
          .writable = ::access(folder.c_str(), W_OK) == 0};
}

double checkpoints_kept(const RunConfig& run) {
  if (!run.writes_checkpoints_meanwhile()) return 1;
  const auto whole = [](std::int64_t steps, std::int64_t every) { return steps / every; };
  const auto sparse = run.keep_every > 0 ? static_cast<double>(whole(run.steps, run.keep_every)) : 0;
  // Old checkpoints are deleted only after all replicas have written a newer one.
  const auto kept = static_cast<double>(run.keep_checkpoints) + 2 + sparse;
  if (run.checkpoint_every == 0) return kept;  // the number written by time is unknown
  const auto made = static_cast<double>(whole(run.steps, run.checkpoint_every) + 1);
  return run.keep_checkpoints == 0 ? made : std::min(made, kept);
}

void check_disk(const DoctorPlace& place, MachineReport& report) {
  const auto& experiment = place.experiment;
  struct Use {
    double bytes = 0;
    Space space;
    std::string paths;
  };
  std::map<dev_t, Use> uses;
  const auto add = [&](const fs::path& folder, double bytes) {
    const auto space = space_at(folder);
    if (!space.writable)
      report.add({"disk", Level::fail, folder.string() + " is not writable by this user",
                  "set another run.out, or fix the permissions (chown, chmod)"});
    auto& use = uses[space.device];
    use.space = space;
    use.bytes += bytes;
    use.paths += (use.paths.empty() ? "" : " and ") + folder.string();
  };
  const double replicas = trains(place) ? workers_here(place) : 0;
  const double parameters = trains(place) ? parameters_of(experiment) : 0;
  constexpr double small_files = 50e6;  // traces, metrics
  add(experiment.folder(),
      small_files + replicas * parameters * checkpoint_bytes * checkpoints_kept(experiment.run));
  if (!experiment.outer.log.empty() && trains(place))
    add(experiment.outer.log, replicas * static_cast<double>(experiment.outer.log_budget.bytes));
  for (const auto& [device, use] : uses) {
    const auto says =
        fmt::format("{} needs {}, and {} are free", use.paths, amount(use.bytes), amount(use.space.free));
    const auto level = use.bytes > use.space.free         ? Level::fail
                       : use.bytes > 0.8 * use.space.free ? Level::warn
                                                          : Level::ok;
    report.add({"disk", level, says,
                level == Level::ok ? ""
                                   : "make room, or set run.out to a larger disk; run.keep_checkpoints and "
                                     "outer.log_budget bound what is kept"});
  }
}

void check_object_store(const DoctorPlace& place, MachineReport& report) {
  if (place.experiment.object_store.is_used())
    check_object_store_of(place, parameters_of(place.experiment) * checkpoint_bytes, report);
}

// ---- the machine ----

void check_device(const DoctorPlace& place, MachineReport& report) {
  if (place.device) return report.add(place.device(place.experiment));
  if (place.experiment.device.device == "cuda" && !fs::exists("/dev/nvidiactl"))
    return report.add({"device", Level::fail, "device is cuda, but no NVIDIA GPU is visible on this machine",
                       "install the driver, pass the GPU into the container, or set device: cpu"});
  report.add({"device", Level::ok,
              "isthmus-coordinator does not train and only looked for the GPU driver; `isthmus doctor` "
              "checks everything that training needs"});
}

void check_files(const DoctorPlace& place, MachineReport& report) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto& experiment = place.experiment;
  constexpr std::int64_t others = 256;  // unauthenticated connections, data, logs
  const auto peers =
      std::max<std::int64_t>(static_cast<std::int64_t>(worker_names(experiment).size()) - 1, 1);
  const auto need = static_cast<rlim_t>(others + 2 * peers * experiment.network.lanes);
  const auto says =
      fmt::format("{} open files are allowed, and up to {} may be needed", limit.rlim_cur, need);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < need)
    return report.add(
        {"open files", Level::fail, says, fmt::format("ulimit -n {}, before the worker starts", need)});
  report.add({"open files", Level::ok, says});
}

void check_congestion(const DoctorPlace& place, MachineReport& report) {
  const auto& network = place.experiment.network;
  const auto missing =
      network.reachable().empty() ? std::nullopt : outer_sync::missing_congestion(network.congestion);
  if (!missing) return report.add({"congestion", Level::ok, "", ""});
  report.add({"congestion", Level::warn, missing->first, "as root: " + missing->second});
}

// ---- all of them ----

struct Check {
  const char* name;
  void (*run)(const DoctorPlace&, MachineReport&);
  std::chrono::seconds limit;
  bool for_all;  ///< otherwise only where a replica trains
  const char* todo;
};

constexpr std::array<Check, 11> checks = {{
    {"names", check_names, 20s, true, "check the name server (/etc/resolv.conf)"},
    {"ports", check_ports, 10s, true, "stop the process that uses the port, or choose another port"},
    {"certificates", check_certificates, 10s, true,
     "isthmus certs issue RUN NAME, and copy the folder here; or `isthmus join`"},
    {"disk", check_disk, 10s, true, "check that the disk is mounted and responds"},
    {"object store", check_object_store, 60s, false, "check the network, and the keys of object_store"},
    {"data", check_data, 120s, false,
     "correct data.path for this site (under sites:, or with --set data.path=...)"},
    {"memory", check_memory, 20s, false, ""},
    {"device", check_device, 60s, false, "set device: cpu, repair the driver, or use another build"},
    {"ranks", check_ranks_of, 40s, false,
     "give the address of this machine on the network of its ranks first in replica.machines"},
    {"open files", check_files, 5s, true, ""},
    {"congestion", check_congestion, 5s, true, ""},
}};

/// Runs in the child process. An exception becomes a failed check.
std::string outcome_of(const Check& check, const DoctorPlace& place) {
  MachineReport report{.name = "here"};
  try {
    check.run(place, report);
  } catch (const std::exception& error) {
    report.add({check.name, Level::fail, error.what(), check.todo});
  }
  return to_json(report).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

MachineReport examine_machine(const DoctorPlace& place) {
  MachineReport all{.name = place.name, .build = place.build};
  all.versions = fmt::format("protocol {}, numerics {}", outer_sync::protocol::protocol_version,
                             outer_sync::protocol::numerics_version);
  auto experiment = place.experiment;
  all.config = shared_items(experiment);
  all.add({"config"});
  for (const auto& check : checks) {
    if (!check.for_all && !trains(place)) continue;
    const auto outcome = within(check.limit, [&] { return outcome_of(check, place); });
    if (!outcome) {
      all.add(
          {check.name, Level::fail, fmt::format("no answer within {} s", check.limit.count()), check.todo});
      continue;
    }
    auto found = machine_report(*outcome);
    for (auto& finding : found.findings) all.add(std::move(finding));
    for (const auto& [to, from] : {std::pair(&all.model, &found.model),
                                   {&all.tokenizer, &found.tokenizer},
                                   {&all.corpus, &found.corpus},
                                   {&all.authority, &found.authority}}) {
      if (!from->empty()) *to = *from;
    }
  }
  return all;
}

std::optional<std::string> within(std::chrono::milliseconds limit, const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const auto text = work();
    for (std::size_t done = 0; done < text.size();) {
      const auto n = ::write(ends[1], text.data() + done, text.size() - done);
      if (n <= 0) ::_exit(1);
      done += static_cast<std::size_t>(n);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  const auto until = Clock::now() + limit;
  bool whole = false;
  while (child > 0 && text.size() <= outer_sync::longest_preflight_report) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waits{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&waits, 1, static_cast<int>(left)) == 0) break;
    char piece[4096];
    const auto n = ::read(ends[0], piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) whole = true;
    if (n <= 0) break;
    text.append(piece, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  if (child <= 0) return std::nullopt;
  if (!whole) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return whole && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? std::optional(std::move(text))
                                                                : std::nullopt;
}

}  // namespace isthmus::app
