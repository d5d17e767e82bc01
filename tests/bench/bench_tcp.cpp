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

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "wan_lab.h"

namespace isthmus {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint16_t control_port = 7000;
constexpr std::size_t buffer_bytes = 256 << 10;
constexpr int header_bytes = 20 + 20 + 12;  // IPv4, TCP, timestamps

/// Parameters of a measurement; sent to the other end over the control connection as raw bytes.
struct Case {
  int flows = 1;
  int both = 0;
  std::array<char, 16> cc{};
  double pace = 0;  // part of the payload rate, for all flows together
  int sndbuf = 0, rcvbuf = 0, lowat = 0;
  std::uint64_t bytes = 33'500'000;  // for all flows together, in each direction
  double payload_rate = 0;           // bit/s
  int rounds = 8;
  double gap = 0;  // seconds without traffic before each transfer except the first
};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

long checked(long result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

class Socket {
 public:
  explicit Socket(int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) : fd_(fd) {
    checked(fd, "socket");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

  template <typename T>
  void set(int level, int option, const T& value, const char* what) const {
    checked(setsockopt(fd_, level, option, &value, sizeof value), what);
  }

  template <typename T>
  void write_all(const T& value) const {
    checked(send(fd_, &value, sizeof value, MSG_NOSIGNAL), "send");
  }

  template <typename T>
  T read_all() const {
    T value;
    if (checked(recv(fd_, &value, sizeof value, MSG_WAITALL), "recv") != sizeof value) {
      throw std::runtime_error("the other end went away");
    }
    return value;
  }

 private:
  int fd_;
};

sockaddr_in endpoint(const char* address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  if (inet_pton(AF_INET, address, &result.sin_addr) != 1) throw std::invalid_argument("no address");
  return result;
}

Socket connected(Socket socket, const char* address, std::uint16_t port) {
  const auto to = endpoint(address, port);
  checked(connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), "connect");
  return socket;
}

Socket listening(Socket socket, std::uint16_t port) {
  const auto at = endpoint("0.0.0.0", port);
  socket.set(SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  checked(bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), "bind");
  checked(listen(socket.get(), 64), "listen");
  return socket;
}

// Set before connect and listen, because the handshake announces the size of the receive buffer.
Socket flow_socket(const Case& c) {
  Socket flow;
  if (c.cc[0]) {
    checked(setsockopt(flow.get(), IPPROTO_TCP, TCP_CONGESTION, c.cc.data(),
                       static_cast<socklen_t>(std::strlen(c.cc.data()))),
            c.cc.data());
  }
  if (c.sndbuf) flow.set(SOL_SOCKET, SO_SNDBUF, c.sndbuf, "SO_SNDBUF");
  if (c.rcvbuf) flow.set(SOL_SOCKET, SO_RCVBUF, c.rcvbuf, "SO_RCVBUF");
  if (c.lowat) flow.set(IPPROTO_TCP, TCP_NOTSENT_LOWAT, c.lowat, "TCP_NOTSENT_LOWAT");
  if (c.pace > 0) {
    const auto rate = static_cast<std::uint64_t>(c.pace * c.payload_rate / 8 / c.flows);
    flow.set(SOL_SOCKET, SO_MAX_PACING_RATE, rate, "SO_MAX_PACING_RATE");
  }
  return flow;
}

struct Flow {
  Socket socket;
  std::uint64_t to_send = 0, to_receive = 0;
};

// Sends and receives as much as one flow can without blocking. The bytes have no meaning.
void move(Flow& flow, short events, std::vector<char>& buffer) {
  if (events & POLLIN) {
    const auto most = std::min<std::uint64_t>(buffer.size(), flow.to_receive);
    const auto n = recv(flow.socket.get(), buffer.data(), most,
                        MSG_DONTWAIT | MSG_TRUNC);  // MSG_TRUNC counts without copying
    if (n == 0) throw std::runtime_error("a flow was closed");
    if (n < 0 && errno != EAGAIN) fail("recv");
    flow.to_receive -= static_cast<std::uint64_t>(std::max<long>(0, n));
  }
  if (events & POLLOUT) {
    const auto most = std::min<std::uint64_t>(buffer.size(), flow.to_send);
    const auto n = send(flow.socket.get(), buffer.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) fail("send");
    flow.to_send -= static_cast<std::uint64_t>(std::max<long>(0, n));
  }
}

// Sends and receives everything; notifies the other end when all has arrived.
void transfer(std::vector<Flow>& flows, const Socket& control, bool receives, std::vector<char>& buffer) {
  std::vector<pollfd> polled(flows.size());
  bool told = !receives;
  for (;;) {
    bool busy = false, receiving = false;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      const auto& flow = flows[i];
      const auto events = static_cast<short>((flow.to_send ? POLLOUT : 0) | (flow.to_receive ? POLLIN : 0));
      polled[i] = {events ? flow.socket.get() : -1, events, 0};
      busy |= events != 0;
      receiving |= flow.to_receive != 0;
    }
    if (!told && !receiving) control.write_all('d'), told = true;
    if (!busy) return;
    checked(poll(polled.data(), polled.size(), -1), "poll");
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (polled[i].fd >= 0) move(flows[i], polled[i].revents & (POLLIN | POLLOUT), buffer);
    }
  }
}

void load(std::vector<Flow>& flows, const Case& c, bool sends, bool receives) {
  const auto part = c.bytes / flows.size();
  for (auto& flow : flows) flow.to_send = sends ? part : 0, flow.to_receive = receives ? part : 0;
}

// The server's end: transfers for one client, which signals the start of each.
void serve() {
  const auto listener = listening(Socket(), control_port);
  fmt::print("ready\n");
  std::fflush(stdout);
  const Socket control(
      static_cast<int>(checked(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept")));
  control.set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  const auto c = control.read_all<Case>();
  const auto flow_listener = listening(flow_socket(c), control_port + 1);
  control.write_all('r');
  std::vector<Flow> flows;
  for (int i = 0; i < c.flows; ++i) {
    flows.push_back({Socket(static_cast<int>(
                         checked(accept4(flow_listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept"))),
                     0, 0});
  }
  std::vector<char> buffer(buffer_bytes);
  for (int round = 0; round < c.rounds; ++round) {
    if (c.both) control.read_all<char>();
    load(flows, c, c.both, true);
    transfer(flows, control, true, buffer);
    if (c.both) control.read_all<char>();
  }
  control.read_all<char>();
}

std::uint32_t retransmissions(const std::vector<Flow>& flows) {
  std::uint32_t sum = 0;
  for (const auto& flow : flows) {
    tcp_info info{};
    socklen_t size = sizeof info;
    getsockopt(flow.socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size);
    sum += info.tcpi_total_retrans;
  }
  return sum;
}

// The client's end: prints the seconds of each transfer and finally the number of retransmitted segments.
void drive(const char* address, const Case& c) {
  const auto control = connected(Socket(), address, control_port);
  control.set(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  control.write_all(c);
  control.read_all<char>();
  std::vector<Flow> flows;
  for (int i = 0; i < c.flows; ++i)
    flows.push_back({connected(flow_socket(c), address, control_port + 1), 0, 0});
  std::vector<char> buffer(buffer_bytes);
  for (int round = 0; round < c.rounds; ++round) {
    if (round > 0 && c.gap > 0) std::this_thread::sleep_for(std::chrono::duration<double>(c.gap));
    const auto start = Clock::now();
    if (c.both) control.write_all('g');
    load(flows, c, true, c.both);
    transfer(flows, control, c.both, buffer);
    control.read_all<char>();
    fmt::print("{:.6f}\n", std::chrono::duration<double>(Clock::now() - start).count());
  }
  fmt::print("{}\n", retransmissions(flows));
  control.write_all('e');
}

// ---- outside the lab ----

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
