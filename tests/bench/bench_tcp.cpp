// The speed of plain TCP across a wide-area network, which bounds every transport over it: transfers one way
// or both ways at once, over one flow or several paced flows, in a lab (tests/wan_lab; needs root).
//
//     bench_tcp [--rate 1Gbps] [--rtt 100ms] [--bytes 33500000] [--rounds 8] [--gap SECONDS]
//                     [--mtu 1500] [--lab WORD] ... [--case "KEY=VALUE ..."] ...
//
// Keys of a case: flows, both (0, 1), cc (cubic, bbr), pace (relative to the payload rate, over all flows;
// 0: none), sndbuf, rcvbuf (SO_SNDBUF, SO_RCVBUF; 0: the kernel's own), lowat (TCP_NOTSENT_LOWAT; 0: none).
// Without --case: the first table of tests/wan_lab/README.md. --gap: a pause before each transfer except the
// first. --lab adds one word to the options of `lab up`: --lab --loss --lab 1e-4.
//
// A transfer lasts from the first write until the sender knows that everything has arrived, so its bound is
// 8 bytes / payload rate + round trip; with `both`, it lasts until both know. The payload rate is the link's
// rate without the headers of IPv4 and TCP with timestamps: rate (MTU - 52) / MTU. The first transfer of a
// connection is "cold"; for the others, over the same connections, the table has the median and the worst.
// Further columns: retransmitted segments; packets dropped by the link's queue; packets lost by the lab
// itself, which must be 0; the cores used by the forwarder; and its lateness in microseconds, on average and
// at most.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tcp_flows.h"
#include "wan_lab.h"

namespace isthmus {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int header_bytes = 20 + 20 + 12;  // IPv4, TCP, timestamps

struct Settings {
  std::string rate = "1Gbps", rtt = "100ms", mtu = "1500";
  std::vector<std::string> lab;
  Case common;
  std::vector<std::string> cases;
};

const std::vector<std::string> table = {
    "flows=1 cc=cubic",
    "flows=1 cc=bbr",
    "flows=1 cc=cubic sndbuf=16000000",
    "flows=1 cc=bbr sndbuf=16000000",
    "flows=8 cc=cubic",
    "flows=8 cc=bbr",
    "flows=8 cc=cubic pace=1",
    "flows=8 cc=bbr pace=1",
    "flows=8 cc=cubic pace=1 both=1",
    "flows=8 cc=bbr pace=1 both=1",
};

double quantity(const std::string& text, const std::vector<std::pair<std::string, double>>& units) {
  for (const auto& [unit, factor] : units) {
    if (text.ends_with(unit)) return std::stod(text) * factor;
  }
  throw std::invalid_argument(text + ": a unit is missing");
}

double bits_per_second(const std::string& text) {
  return quantity(text, {{"Gbps", 1e9}, {"Mbps", 1e6}, {"kbps", 1e3}});
}

double seconds(const std::string& text) { return quantity(text, {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1}}); }

Case read_case(const std::string& text, Case c) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto at = word.find('=');
    const auto key = word.substr(0, at);
    const auto value = at == std::string::npos ? std::string() : word.substr(at + 1);
    if (key == "cc" && value.size() < c.cc.size()) {
      c.cc.fill(0);
      std::ranges::copy(value, c.cc.begin());
      continue;
    }
    const double number = std::stod(value);
    if (key == "flows") {
      c.flows = static_cast<int>(number);
    } else if (key == "both") {
      c.both = static_cast<int>(number);
    } else if (key == "pace") {
      c.pace = number;
    } else if (key == "sndbuf") {
      c.sndbuf = static_cast<int>(number);
    } else if (key == "rcvbuf") {
      c.rcvbuf = static_cast<int>(number);
    } else if (key == "lowat") {
      c.lowat = static_cast<int>(number);
    } else {
      throw std::invalid_argument(fmt::format("--case: unknown key '{}'", key));
    }
  }
  return c;
}

// The case as command-line words for the other process, after "drive ADDRESS".
std::vector<std::string> words_of(const std::string& text, const Case& c) {
  return {text, fmt::format("{}", c.bytes), fmt::format("{}", c.payload_rate), fmt::format("{}", c.rounds),
          fmt::format("{}", c.gap)};
}

Case case_of(char** words) {
  Case common;
  common.bytes = std::stoull(words[1]);
  common.payload_rate = std::stod(words[2]);
  common.rounds = std::stoi(words[3]);
  common.gap = std::stod(words[4]);
  return read_case(words[0], common);
}

/// The lab's counters: the cost of a measurement, and whether the lab itself distorted it.
struct LabCounters {
  double cpu;              // processor seconds of the forwarder
  double late, late_most;  // microseconds by which packets were delivered late: mean and maximum
  std::uint64_t queue_drops, lost_by_lab;
};

LabCounters counters(const wan_lab::WanLab& lab) {
  const auto status = nlohmann::json::parse(lab.lab({"status", "--json"}));
  const auto& forwarder = status["forwarder"];
  const double deliveries = std::max(1.0, forwarder["deliveries"].get<double>());
  LabCounters result{forwarder["cpu"].get<double>() / 1e6,
                     forwarder["late_total"].get<double>() / deliveries / 1e3,
                     forwarder["late_most"].get<double>() / 1e3, 0, 0};
  for (const auto& row : status["links"]) {
    for (const auto& link : row) result.queue_drops += link["queue_drops_packets"].get<std::uint64_t>();
  }
  for (const auto& site : status["sites"]) {
    result.lost_by_lab +=
        site["device_drops"].get<std::uint64_t>() + site["write_errors"].get<std::uint64_t>();
  }
  return result;
}

void measure(const std::string& program, const std::string& text, const Settings& settings) {
  std::vector<std::string> options{"--sites", "2",          "--rate", settings.rate,
                                   "--rtt",   settings.rtt, "--mtu",  settings.mtu};
  options.insert(options.end(), settings.lab.begin(), settings.lab.end());
  const wan_lab::WanLab lab(
      options);  // a new lab per case, since the kernel caches what it learns about a peer

  auto server = lab.start(2, {program, "serve"});
  if (server.line() != "ready") throw std::runtime_error("the server did not start");
  std::vector<std::string> drive_words{program, "drive", lab.address(2)};
  for (auto& word : words_of(text, settings.common)) drive_words.push_back(std::move(word));
  const auto start = Clock::now();
  auto client = lab.start(1, drive_words);
  std::istringstream output(client.finish());
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  server.finish();

  std::vector<double> times(static_cast<std::size_t>(settings.common.rounds));
  for (auto& time : times) output >> time;
  std::uint32_t again = 0;
  output >> again;
  const auto flows = static_cast<std::uint64_t>(read_case(text, settings.common).flows);
  const auto bytes = static_cast<double>(settings.common.bytes / flows * flows);
  const double bound = bytes * 8 / settings.common.payload_rate + seconds(settings.rtt);
  if (const double best = std::ranges::min(times); best < bound) {
    throw std::runtime_error(fmt::format(
        "{}: {} s is less than the bound, {} s: the lab lets through too much", text, best, bound));
  }
  const double cold = times[0];
  std::sort(times.begin() + 1, times.end());
  const double warm = times[(times.size() + 1) / 2];
  const auto used = counters(lab);
  fmt::print("{:44} {:7.3f} {:7.3f} {:7.3f} {:7.3f} {:5.3f} {:7} {:7} {:5} {:5.2f} {:5.0f} {:5.0f}\n", text,
             bound, cold, warm, times.back(), bound / warm, again, used.queue_drops, used.lost_by_lab,
             used.cpu / wall, used.late, used.late_most);
  std::fflush(stdout);
}

Settings read_settings(int argc, char** argv) {
  Settings s;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--rate") {
      s.rate = value;
    } else if (key == "--rtt") {
      s.rtt = value;
    } else if (key == "--mtu") {
      s.mtu = value;
    } else if (key == "--lab") {
      s.lab.push_back(value);
    } else if (key == "--bytes") {
      s.common.bytes = std::stoull(value);
    } else if (key == "--rounds") {
      s.common.rounds = std::max(2, std::stoi(value));
    } else if (key == "--gap") {
      s.common.gap = std::stod(value);
    } else if (key == "--case") {
      s.cases.push_back(value);
    } else {
      throw std::invalid_argument("unknown option " + key);
    }
  }
  if (argc % 2 == 0) throw std::invalid_argument(fmt::format("{}: needs a value", argv[argc - 1]));
  if (s.cases.empty()) s.cases = table;
  const double mtu = std::stod(s.mtu);
  s.common.payload_rate = bits_per_second(s.rate) * (mtu - header_bytes) / mtu;
  return s;
}

int run(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "serve") return serve(), 0;
  if (role == "drive" && argc == 8) return drive(argv[2], case_of(argv + 3)), 0;
  const auto settings = read_settings(argc, argv);
  fmt::print("{} bytes at {} and {}: payload rate {:.2f} Mbit/s; seconds\n", settings.common.bytes,
             settings.rate, settings.rtt, settings.common.payload_rate / 1e6);
  fmt::print("{:44} {:>7} {:>7} {:>7} {:>7} {:>5} {:>7} {:>7} {:>5} {:>5} {:>5} {:>5}\n", "case", "bound",
             "cold", "warm", "worst", "ratio", "resent", "dropped", "lab's", "cores", "late", "most");
  for (const auto& text : settings.cases)
    measure(std::filesystem::read_symlink("/proc/self/exe"), text, settings);
  return 0;
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  return isthmus::wan_lab::run_program("bench_tcp", [&] { return isthmus::run(argc, argv); });
}
