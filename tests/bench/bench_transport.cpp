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

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/tls/authority.h"
#ifdef ISTHMUS_BENCH_TRAINER
#include "isthmus/trainer/gloo.h"
#include "isthmus/trainer/replica.h"
#endif
#include "wan_lab.h"

namespace isthmus {
namespace {

using namespace outer_sync;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr double payload_part = (1500.0 - 52) / 1500;
constexpr std::uint16_t coordinator_port = 7000, member_port = 7001, gloo_port = 7100;

/// Parameters of a case, for all its processes.
struct Case {
  std::string name;
  std::string what = "exchange";  ///< exchange, stream, training, gloo
  int members = 2;
  double rate = 1e9;  ///< bits per second, each direction of each pair
  double rtt = 0.1;   ///< seconds
  double loss = 0;
  std::uint64_t parameters = 8'375'000;  ///< per fragment
  std::string codec = "fp32";
  std::uint64_t chunk = 65536;  ///< parameters
  int fragments = 1;            ///< a stream has all of them in flight
  int rounds = 12;              ///< exchanges; in a stream, rounds of each fragment
  bool tls = true;
  std::string congestion = "bbr", network_rate = "auto";
  int lanes = 8;
  double heartbeat = 1;  ///< seconds between two heartbeats
  bool traced = false;   ///< reports how long each heartbeat took
  int threads = 0;       ///< threads for training; 0: one per core
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Case, name, what, members, rate, rtt, loss, parameters, codec, chunk,
                                   fragments, rounds, tls, congestion, network_rate, lanes, heartbeat, traced,
                                   threads)

void stream(Case& c, double rate, double rtt) {
  c.what = "stream";
  c.rate = rate;
  c.rtt = rtt;
  c.parameters = static_cast<std::uint64_t>(rate / 1e9 * 8.375e6);  // .28 s of the link in each direction
  c.chunk = 16384;  // 64 KiB in fp32; a chunk of the default size has 32 KiB in 4 bits
  c.fragments = 4;
  c.rounds = 30;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, auto change) {
    Case c{.name = name};
    change(c);
    cases.push_back(c);
  };
  add("exchange", [](Case&) {});
  add("exchange_plain", [](Case& c) { c.tls = false; });
  add("exchange_gloo", [](Case& c) { c.what = "gloo"; });
  // Four members share a link of 200 Mbit/s each: each pair gets a third of it.
  const auto four = [](Case& c) {
    c.members = 4;
    c.rate = 200e6 / 3;
    c.parameters = 100'000'000;
    c.rounds = 4;
  };
  add("four", [&](Case& c) {
    four(c);
    c.codec = "lloyd4";
  });
  add("four_gloo", [&](Case& c) {
    four(c);
    c.what = "gloo";
    c.rounds = 2;
  });
  add("training", [](Case& c) {
    stream(c, 200e6, 0.02);
    c.what = "training";
    c.rounds = 100;
  });
  add("training_one", [](Case& c) {
    stream(c, 200e6, 0.02);
    c.what = "training";
    c.rounds = 100;
    c.threads = 1;
  });
  add("heartbeats", [](Case& c) {
    stream(c, 10e6, 0.1);
    c.rounds = 530;
    c.heartbeat = 0.25;
    c.traced = true;
  });
  for (const double rate : {100e6, 1e9}) {
    for (const int rtt : {0, 20, 100, 200}) {
      for (const double loss : {0.0, 1e-4}) {
        const auto name = fmt::format("stream_{:.0f}M_{}ms{}", rate / 1e6, rtt, loss > 0 ? "_lossy" : "");
        add(name, [&](Case& c) {
          stream(c, rate, rtt / 1e3);
          c.loss = loss;
        });
      }
    }
  }
  return cases;
}

// ---- processes in the lab ----

std::string address(const std::string& host, int port) { return fmt::format("{}:{}", host, port); }

NetworkConfig network_of(const Case& c, const std::string& coordinator, const std::string& certs) {
  NetworkConfig network;
  network.coordinator = address(coordinator, coordinator_port);
  network.lanes = c.lanes;
  network.heartbeat = {c.heartbeat};
  network.congestion = c.congestion;
  if (c.network_rate != "auto") network.rate = {std::stod(c.network_rate)};
  network.certs = certs;
  network.insecure = certs.empty();
  network.join_timeout = {30};
  return network;
}

class Quiet final : public CoordinatorObserver {
 public:
  void message(const std::string& text) override { fmt::print(stderr, "coordinator: {}\n", text); }
  void members_changed(const protocol::Coordinator&) override {}
  void evaluated(std::uint64_t, double) override {}
  void round_judged(const protocol::RoundJudged&) override {}
  void store(const protocol::LastView&) override {}
};

void coordinate(const Case& c, const std::string& host, const std::string& certs) {
  Quiet observer;
  protocol::CoordinatorOptions options;
  options.run = "bench";
  options.replicas = static_cast<std::size_t>(c.members);
  CoordinatorNode node(network_of(c, host, certs), std::move(options), observer);
  fmt::print("ready\n");
  std::fflush(stdout);
  static_cast<void>(node.run());
}

/// Seconds of processor time of this process, by thread name.
Json processor_time() {
  Json seconds = Json::object();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat"), comm(task.path() / "comm");
    std::string name, text;
    std::getline(comm, name);
    std::getline(stat, text);
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::vector<std::string> field(std::istream_iterator<std::string>(fields), {});
    const auto ticks = std::stod(field.at(11)) + std::stod(field.at(12));
    if (task.path().filename() == std::to_string(getpid())) name = "main";
    seconds[name] = seconds.value(name, 0.0) + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return seconds;
}

double seconds_since_boot() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

FragmentLayout layout_of(const Case& c) {
  constexpr std::uint64_t alignment = 4096;
  std::vector<Range> fragments;
  std::uint64_t begin = 0;
  for (int p = 0; p < c.fragments; ++p) {
    fragments.push_back({begin, c.parameters});
    begin += (c.parameters + alignment - 1) / alignment * alignment;
  }
  return {fragments, c.chunk};
}

/// With training, a stream flows for this many seconds and then pauses for as many.
constexpr double flows_for = 4;
bool flows(double start, double now) { return std::fmod(now - start, 2 * flows_for) < flows_for; }
/// The next moment at which the stream flows.
double flows_from(double start, double now) {
  return flows(start, now) ? now : start + (std::floor((now - start) / (2 * flows_for)) + 1) * 2 * flows_for;
}

/// Trains on a separate thread at the first member while the object exists. Appends the seconds of each step
/// to `steps`, {"flowing": [], "paused": []}, except for steps during which the stream starts or stops.
class Training {
 public:
  Training(const Case& c, std::size_t self, double start, Json& steps) {
    if (c.what != "training" || self != 0) return;
#ifdef ISTHMUS_BENCH_TRAINER
    thread_ = std::jthread([start, &steps, threads = c.threads](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), "training");
      trainer::prepare_process({.threads = threads});
      train(start, steps, stop);
    });
#else
    static_cast<void>(start), static_cast<void>(steps);
    throw std::runtime_error("this was built without libtorch, so it cannot train");
#endif
  }

 private:
#ifdef ISTHMUS_BENCH_TRAINER
  static void train(double start, Json& steps, const std::stop_token& stop) {
    constexpr std::int64_t vocab = 256, sequence = 256, sequences = 2;
    trainer::ModelConfig model;
    model.dim = 256;
    model.resolve(sequence);
    trainer::Replica replica({{model, vocab}, 1, 65536}, {.inner = {}, .longest_sequence = sequence});
    std::vector<std::uint16_t> tokens((sequence + 1) * sequences);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * 7 % vocab);
    data::Batch batch;
    batch.seq_len = sequence;
    std::vector<const std::byte*> rows;
    for (std::size_t i = 0; i < sequences; ++i)
      rows.push_back(reinterpret_cast<const std::byte*>(tokens.data()) + i * batch.row_bytes());
    batch.rows = rows;
    while (!stop.stop_requested()) {
      const double begin = seconds_since_boot();
      replica.forward_backward(batch);
      replica.inner_step(1e-3);
      const double end = seconds_since_boot();
      // Data in flight at the end of a flow arrives at most a second later.
      const bool flowed = flows(start, begin - 1), flowing = flows(start, begin);
      if (flowed != flowing || flowing != flows(start, end) || begin < start) continue;
      steps[flowing ? "flowing" : "paused"].push_back(end - begin);
    }
  }
#endif
  std::jthread thread_;
};

class Exchanger {
 public:
  Exchanger(const Case& c, const std::string& name, const std::string& host, const std::string& coordinator,
            const std::string& certs)
      : case_(c), layout_(layout_of(c)) {
    if (c.traced) {
      trace_file_ = std::filesystem::temp_directory_path() / fmt::format("isthmus-bench-trace-{}", getpid());
      trace_ = std::make_unique<Trace>(trace_file_, name, 10'000'000);
    }
    OuterConfig outer;
    outer.codec = c.codec;
    outer.resolve();
    auto network = network_of(c, coordinator, certs);
    network.listen = address(host, member_port);
    node_ =
        std::make_unique<MemberNode>(network, layout_, codec_plan(outer), protocol::ClosingRule{}, *trace_);
    protocol::Hello hello;
    hello.run = "bench";
    hello.member.name = name;
    hello.member.incarnation = 1;
    static_cast<void>(node_->join(hello));
    state_.resize(layout_.fragment_count());
    encode(codec_plan(outer));
    node_->activate(state_, {});
  }

  void run() {
    meet();
    const auto before = processor_time();
    const auto sent = node_->wire().payload;
    Json times, steps;
    {
      const Training training(case_, node_->self(), start_, steps);
      times = case_.what == "exchange" ? exchange() : stream();
    }
    const auto after = processor_time();
    Json result = {
        {"times", times}, {"payload", node_->wire().payload - sent}, {"total", node_->wire().total}};
    for (const auto& [thread, used] : after.items())
      result["processor"][thread] = used.get<double>() - before.value(thread, 0.0);
    if (!steps.is_null()) result["steps"] = steps;
    result["view"] = node_->view().number;
    const auto problem = node_->done("{}", {});
    if (!problem.empty()) throw std::runtime_error(problem);
    if (case_.traced) result["heartbeats"] = heartbeats();
    fmt::print("{}\n", result.dump());
  }

 private:
  /// Encodes the contributions, which are the same in every round; their values do not matter here.
  void encode(const protocol::CodecPlan& codecs) {
    const auto size = layout_.chunk_elements();
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = std::sin(static_cast<float>(i));
    for (ChunkId k = 0; k < layout_.chunk_count(); ++k) {
      const auto elements = layout_.chunk(k).size;
      auto bytes = node_->reducer().buffers().take(quant::encoded_size(codecs.of(1), elements));
      static_cast<void>(quant::encode(codecs.of(1), std::span(values).first(elements), {}, {}, *bytes));
      contributions_.push_back(bytes);
    }
  }

  /// Seconds that each heartbeat took to the coordinator and back.
  Json heartbeats() {
    node_.reset();
    trace_->close();
    std::ifstream file(trace_file_);
    std::map<std::string, double> begun;
    Json times = Json::array();
    for (const auto& event : Json::parse(file)) {
      if (event.value("name", "") != "heartbeat") continue;
      const auto id = event["id"].get<std::string>();
      const double at = event["ts"].get<double>() * 1e-6;
      if (event["ph"] == "b") begun[id] = at;
      if (event["ph"] == "e") times.push_back(at - begun.at(id));
    }
    std::filesystem::remove(trace_file_);
    return times;
  }

  /// Agrees on the start of the first exchange; all members share one machine's clock.
  void meet() {
    if (node_->self() == 0) node_->announce(fmt::format("{:.6f}", seconds_since_boot() + 1.5));
    start_ = std::stod(node_->announced());
  }

  void contribute(FragmentId p) {
    const auto chunks = layout_.chunks_of(p);
    for (auto k = chunks.first; k < chunks.last; ++k)
      node_->contribute(k, state_[p].round + 1, contributions_[k], 1, {});
  }
  /// Waits for the results; returns the time at which they were there.
  double finish(FragmentId p) {
    const auto result = node_->wait(p, state_[p].round + 1, false).result;
    if (!result) throw std::runtime_error("a round did not commit");
    const auto end = seconds_since_boot();
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& chunk : result->chunks) bytes.emplace_back(*chunk);
    ++state_[p].round;
    state_[p].chain = log::next_chain(state_[p].chain, p, state_[p].round, bytes);
    node_->applied(p, state_[p].round, state_[p].chain, {});
    return end;
  }
  void wait_until(double moment) const {
    std::this_thread::sleep_for(std::chrono::duration<double>(moment - seconds_since_boot()));
  }

  /// Exchanges one after another, each starting at an agreed time.
  Json exchange() {
    const double wire = 8.0 * static_cast<double>(contributions_.front()->size()) /
                        static_cast<double>(layout_.chunk(0).size) * static_cast<double>(case_.parameters) *
                        2 * (case_.members - 1) / case_.members / case_.rate;
    const double period = 1.5 * (wire + case_.rtt) + 0.3;
    Json times = Json::array();
    for (int round = 0; round < case_.rounds; ++round) {
      const double begin = start_ + round * period;
      wait_until(begin);
      contribute(0);
      times.push_back({begin, finish(0)});
    }
    return times;
  }

  Json stream() {
    wait_until(start_);
    std::vector<double> begun(layout_.fragment_count());
    Json times = Json::array();
    for (FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      begun[p] = seconds_since_boot();
      contribute(p);
    }
    const auto fragments = static_cast<int>(layout_.fragment_count());
    for (int n = 0; n < case_.rounds * fragments; ++n) {
      const auto p = static_cast<FragmentId>(n % fragments);
      const double end = finish(p);
      times.push_back({begun[p], end});
      if (n >= (case_.rounds - 1) * fragments) continue;
      if (case_.what == "training") wait_until(flows_from(start_, seconds_since_boot()));
      begun[p] = seconds_since_boot();
      contribute(p);
    }
    return times;
  }

  Case case_;
  FragmentLayout layout_;
  std::filesystem::path trace_file_;
  std::unique_ptr<Trace> trace_ = std::make_unique<Trace>();
  std::unique_ptr<MemberNode> node_;
  std::vector<protocol::FragmentState> state_;
  std::vector<protocol::SharedBytes> contributions_;
  double start_ = 0;
};

#ifdef ISTHMUS_BENCH_TRAINER
/// The mean of the same number of fp32 values, by Gloo's own choice of algorithm.
void reduce_with_gloo(const Case& c, int rank, const std::string& host, const std::string& store) {
  trainer::GlooAllReduce gloo(
      {.store_host = store, .store_port = gloo_port, .listen_host = host, .rank = rank, .world = c.members});
  std::vector<float> values(c.parameters, 1);
  Json times = Json::array();
  std::vector<float> token(1);
  for (int round = 0; round < c.rounds; ++round) {
    gloo.mean(token);  // waits until all are here
    const auto begin = seconds_since_boot();
    gloo.mean(values);
    times.push_back({begin, seconds_since_boot()});
  }
  fmt::print("{}\n",
             Json{{"times", times}, {"payload", gloo.sent_bytes()}, {"processor", Json::object()}}.dump());
}
#endif

// ---- outside the lab ----

double percentile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values.at(static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5));
}

std::vector<std::string> lab_options(const Case& c) {
  return {"--sites", std::to_string(c.members),
          "--rate",  fmt::format("{:.0f}kbps", c.rate / 1e3),
          "--rtt",   fmt::format("{}us", std::lround(c.rtt * 1e6)),
          "--loss",  fmt::format("{}", c.loss)};
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
  for (const auto& row : status["links"]) {
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
  if (role == "member" && argc == 7)
    return Exchanger(settings(), argv[3], argv[4], argv[5], argv[6]).run(), 0;
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
