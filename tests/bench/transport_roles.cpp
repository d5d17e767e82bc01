#include "transport_roles.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "isthmus/outer_sync/log/chain.h"
#include "isthmus/outer_sync/net/coordinator/coordinator_node.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#ifdef ISTHMUS_BENCH_TRAINER
#include "isthmus/trainer/gloo.h"
#include "isthmus/trainer/replica.h"
#endif

namespace isthmus {

using namespace outer_sync;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

namespace {

constexpr std::uint16_t coordinator_port = 7000, member_port = 7001;
#ifdef ISTHMUS_BENCH_TRAINER
constexpr std::uint16_t gloo_port = 7100;
#endif

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

/// Seconds of processor time of this process, by thread name.
Json processor_time() {
  Json seconds = Json::object();
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream stat(task.path() / "stat"), comm(task.path() / "comm");
    std::string name, text;
    std::getline(comm, name);
    std::getline(stat, text);
    if (name.empty() || text.empty()) continue;  // it has ended meanwhile
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
    node_->activate({.fragments = state_});
  }

  void run() {
    meet();
    const auto before = processor_time();
    const auto sent = node_->status().sent.payload;
    Json times, steps;
    {
      const Training training(case_, node_->status().self, start_, steps);
      times = case_.what == "exchange" ? exchange() : stream();
    }
    const auto after = processor_time();
    const auto status = node_->status();
    Json result = {{"times", times}, {"payload", status.sent.payload - sent}, {"total", status.sent.total}};
    for (const auto& [thread, used] : after.items())
      result["processor"][thread] = used.get<double>() - before.value(thread, 0.0);
    if (!steps.is_null()) result["steps"] = steps;
    result["view"] = status.view->number;
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
    std::optional<std::string> own;
    if (node_->status().self == 0) own = fmt::format("{:.6f}", seconds_since_boot() + 1.5);
    start_ = std::stod(node_->announced(own));
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

}  // namespace

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

void exchange(const Case& c, const std::string& name, const std::string& host, const std::string& coordinator,
              const std::string& certs) {
  Exchanger(c, name, host, coordinator, certs).run();
}

#ifdef ISTHMUS_BENCH_TRAINER
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

}  // namespace isthmus
