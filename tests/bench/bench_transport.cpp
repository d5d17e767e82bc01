// The transport across a wide-area network, compared with what the link can carry and with Gloo (c10d) on
// the same links: real members and a real coordinator in the sites of a lab (tests/wan_lab; needs root).
//
//     bench_transport [--case NAME] ... [--json FILE] [--list] [--set KEY=VALUE] ...
//
// Each case is one lab with one coordinator and M members, which exchange rounds of fragments as the outer
// loop does, but without a trainer: contributions are ready, and members only wait for results. An exchange
// begins at all members at the same moment and lasts until the last of them has all results. `of_bound` is
// its median time divided by the bound
//
//     2 (M - 1) / M * 8 bytes / payload rate + round trip
//
// This is the time for the data that each member must send (contributions to the owners of the chunks, and
// results of its own chunks) at the link's rate without the headers of IPv4 and TCP with timestamps, rate
// (MTU - 52) / MTU, plus half a round trip for each of the two phases. In a stream, several fragments are in
// flight all the time; `of_bound` is then the link's payload rate divided by the rate of codec bytes.
// `heartbeats` is a stream of ten minutes over a slow link. It also reports how long heartbeats take for the
// member on the other side of the link from its coordinator, and the number of views: a second view would
// mean a false suspicion. `training` is a stream with pauses, and reports how much longer the first member's
// training steps take during the stream. All parts of the case share this machine's cores, so that this
// value is too high: `own_part` is the fraction of their processor time used by that member's own transport.
// `training` trains on all cores, `training_one` on one.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/outer_sync/tls/authority.h"
#include "transport_roles.h"
#include "wan_lab.h"

namespace isthmus {
namespace {

namespace tls = outer_sync::tls;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr double payload_part = (1500.0 - 52) / 1500;

double percentile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values.at(static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5));
}

std::vector<std::string> lab_options(const Case& c) {
  const auto rate = [](double bits) { return fmt::format("{:.0f}kbps", bits / 1e3); };
  std::vector<std::string> options = {"--sites", std::to_string(c.members),
                                      "--rate",  rate(std::max(c.rate, c.access)),
                                      "--rtt",   fmt::format("{}us", std::lround(c.rtt * 1e6)),
                                      "--loss",  fmt::format("{}", c.loss)};
  for (int m = 1; c.access > 0 && m <= c.members; ++m) {
    options.emplace_back("--access");
    options.push_back(fmt::format("site-{}={}", m, rate(c.access)));
  }
  return options;
}

/// Folders of certificates, removed with the object.
class Certificates {
 public:
  explicit Certificates(const Case& c) {
    if (!c.tls || c.what == "gloo") return;
    folder_ = std::filesystem::temp_directory_path() / fmt::format("isthmus-bench-{}", getpid());
    std::filesystem::remove_all(folder_);
    const auto authority = tls::Authority::create(folder_, "bench");
    static_cast<void>(authority.issue(tls::coordinator_name, 1));
    for (int m = 1; m <= c.members; ++m) static_cast<void>(authority.issue(fmt::format("m{}", m), 1));
  }
  ~Certificates() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;
  [[nodiscard]] std::string of(const std::string& name) const {
    return folder_.empty() ? "" : (folder_ / name).string();
  }

 private:
  std::filesystem::path folder_;
};

/// The output of the case's members, in their order.
std::vector<Json> run_members(const std::string& program, const Case& c, const wan_lab::WanLab& lab,
                              const Certificates& certificates) {
  const auto settings = Json(c).dump();
  const bool gloo = c.what == "gloo";
  std::vector<wan_lab::Process> processes;
  if (!gloo) {
    processes.push_back(lab.start(
        1, {program, "coordinator", settings, lab.address(1), certificates.of(tls::coordinator_name)}));
    if (processes.back().line() != "ready") throw std::runtime_error("the coordinator did not start");
  }
  for (int m = 1; m <= c.members; ++m) {
    const auto name = fmt::format("m{}", m);
    processes.push_back(lab.start(m, {program, gloo ? "gloo" : "member", settings, name, lab.address(m),
                                      lab.address(1), certificates.of(name)}));
  }
  std::vector<Json> results;
  for (std::size_t i = gloo ? 0 : 1; i < processes.size(); ++i)
    results.push_back(Json::parse(processes[i].finish()));
  return results;
}

/// Seconds of each exchange, from the common start until the last member has all results; for a stream,
/// seconds of each fragment at each member.
std::vector<double> times_of(const Case& c, const std::vector<Json>& results) {
  std::vector<double> times;
  const auto count = results.front()["times"].size();
  for (std::size_t n = 0; n < count; ++n) {
    double begin = 0, end = 0;
    for (const auto& result : results) {
      const auto& time = result["times"].at(n);
      begin = std::max(begin, time[0].get<double>());
      end = std::max(end, time[1].get<double>());
      if (c.what == "stream" || c.what == "training")
        times.push_back(time[1].get<double>() - time[0].get<double>());
    }
    if (c.what == "exchange" || c.what == "gloo") times.push_back(end - begin);
  }
  return times;
}

/// Payload rate of a member, in bits per second, without a stream's first quarter.
double goodput(const Json& result) {
  const auto& times = result["times"];
  const auto count = times.size(), from = count / 4;
  const double seconds = times[count - 1][1].get<double>() - times[from - 1][1].get<double>();
  const double each = result["payload"].get<double>() / static_cast<double>(count);
  return 8 * each * static_cast<double>(count - from) / seconds;
}

double transport_seconds(const Json& result) {
  double seconds = 0;
  for (const auto& [thread, used] : result["processor"].items()) {
    if (thread != "training") seconds += used.get<double>();
  }
  return seconds;
}

/// How much slower training steps are while the stream flows.
Json training_of(const std::vector<Json>& results, double forwarder) {
  const auto& steps = results.front()["steps"];
  const auto flowing = steps["flowing"].get<std::vector<double>>();
  const auto paused = steps["paused"].get<std::vector<double>>();
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const double slower = mean(flowing) / mean(paused) - 1;
  const double own = transport_seconds(results.at(0)), other = transport_seconds(results.at(1));
  const double own_part = own / (own + other + forwarder);
  return {{"steps", {flowing.size(), paused.size()}},
          {"paused", mean(paused)},
          {"slower", slower},
          {"own_part", own_part},
          {"slower_by_own", slower * own_part}};
}

Json measure(const std::string& program, const Case& c) {
  const wan_lab::WanLab lab(lab_options(c));
  const Certificates certificates(c);
  const auto began = Clock::now();
  const auto results = run_members(program, c, lab, certificates);
  const double wall = std::chrono::duration<double>(Clock::now() - began).count();
  auto times = times_of(c, results);
  const double cold = times.front();
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4));
  const double payload_rate = c.rate * payload_part;
  const double pairs = c.members - 1;
  const double bytes = results.front()["payload"].get<double>() / c.rounds / c.fragments;
  const double bound = 8 * bytes / (pairs * payload_rate) + c.rtt;
  Json out = {{"name", c.name},
              {"bytes", bytes},
              {"bound", bound},
              {"cold", cold},
              {"median", percentile(times, 0.5)},
              {"p99", percentile(times, 0.99)},
              {"settings", Json(c)}};
  out["of_bound"] = out["median"].get<double>() / bound;
  out["p99_of_median"] = out["p99"].get<double>() / out["median"].get<double>();
  if (c.what == "stream") {
    double slowest = 1e18;
    for (const auto& result : results) slowest = std::min(slowest, goodput(result));
    out["goodput"] = slowest;
    out["of_bound"] = pairs * payload_rate / slowest;
    out["of_link"] = slowest / (pairs * payload_rate);
  }
  for (const auto& result : results) {
    const double lasted = result["times"].back()[1].get<double>() - result["times"][0][0].get<double>();
    if (!out.contains("cores")) out["cores"] = Json::object();
    for (const auto& [thread, seconds] : result["processor"].items())
      out["cores"][thread] = std::max(out["cores"].value(thread, 0.0), seconds.get<double>() / lasted);
  }
  if (c.traced) {
    const auto beats = results.back()["heartbeats"].get<std::vector<double>>();
    out["heartbeats"] = {{"count", beats.size()},
                         {"median", percentile(beats, 0.5)},
                         {"p99", percentile(beats, 0.99)},
                         {"longest", percentile(beats, 1)},
                         {"views", results.back()["view"]}};
  }
  const auto status = Json::parse(lab.lab({"status", "--json"}));
  if (c.what == "training")
    out["training"] = training_of(results, status["forwarder"]["cpu"].get<double>() / 1e6);
  out["forwarder_cores"] = status["forwarder"]["cpu"].get<double>() / 1e6 / wall;
  for (const auto& site : status["sites"])
    out["lost_by_lab"] = out.value("lost_by_lab", 0.0) + site["device_drops"].get<double>() +
                         site["write_errors"].get<double>();
  for (const auto& rows : {status["access"], status["links"]}) {
    for (const auto& row : rows)
      for (const auto& link : row)
        out["dropped_by_queue"] =
            out.value("dropped_by_queue", 0.0) + link["queue_drops_packets"].get<double>();
  }
  return out;
}

void print_line(const Json& r) {
  fmt::print("{:24} {:7.3f} {:7.3f} {:7.3f} {:7.3f} {:8.3f} {:8.3f} {:7.3f} {:6.2f} {:6.0f}\n",
             r["name"].get<std::string>(), r["bound"].get<double>(), r["cold"].get<double>(),
             r["median"].get<double>(), r["p99"].get<double>(), r["of_bound"].get<double>(),
             r.value("of_link", 0.0), r["p99_of_median"].get<double>(), r["forwarder_cores"].get<double>(),
             r.value("dropped_by_queue", 0.0));
  if (r.contains("cores")) fmt::print("    cores of the busiest member: {}\n", r["cores"].dump());
  if (r.contains("training")) fmt::print("    training: {}\n", r["training"].dump());
  if (r.contains("heartbeats")) fmt::print("    heartbeats: {}\n", r["heartbeats"].dump());
  if (r.value("lost_by_lab", 0.0) > 0) fmt::print("    the lab itself lost packets: this does not count\n");
  std::fflush(stdout);
}

int measure_all(int argc, char** argv) {
  std::vector<std::string> wanted;
  std::string out;
  Json changes = Json::object();
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--list") {
      list = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(word + " needs a value");
    const std::string value = argv[++i];
    if (word == "--case") {
      wanted.push_back(value);
    } else if (word == "--json") {
      out = value;
    } else if (word == "--set") {
      const auto at = value.find('=');
      if (at == std::string::npos) throw std::invalid_argument("--set needs KEY=VALUE");
      auto parsed = Json::parse(value.substr(at + 1), nullptr, false);
      changes[value.substr(0, at)] = parsed.is_discarded() ? Json(value.substr(at + 1)) : parsed;
    } else {
      throw std::invalid_argument("unknown option " + word);
    }
  }
  Json results = Json::array();
  fmt::print("{:24} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>7} {:>6} {:>6}\n", "case", "bound", "cold",
             "median", "p99", "of_bound", "of_link", "p99/med", "lab", "drops");
  for (const auto& known : all_cases()) {
    if (list) fmt::print("{}\n", known.name);
    const bool is_wanted = wanted.empty() || std::ranges::count(wanted, known.name) > 0;
    if (list || !is_wanted) continue;
    auto settings = Json(known);
    settings.update(changes);
    results.push_back(measure(std::filesystem::read_symlink("/proc/self/exe"), settings.get<Case>()));
    print_line(results.back());
  }
  if (!out.empty()) std::ofstream(out) << results.dump(2) << "\n";
  return 0;
}

int run(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[1] : "";
  const auto settings = [&] { return Json::parse(argv[2]).get<Case>(); };
  if (role == "coordinator" && argc == 5) return coordinate(settings(), argv[3], argv[4]), 0;
  if (role == "member" && argc == 7) return exchange(settings(), argv[3], argv[4], argv[5], argv[6]), 0;
#ifdef ISTHMUS_BENCH_TRAINER
  if (role == "gloo" && argc == 7)
    return reduce_with_gloo(settings(), std::stoi(std::string(argv[3]).substr(1)) - 1, argv[4], argv[5]), 0;
#endif
  return measure_all(argc, argv);
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  return isthmus::wan_lab::run_program("bench_transport", [&] { return isthmus::run(argc, argv); });
}
