#include "network_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace isthmus::outer_sync {

namespace {

const protocol::ConfigItems config_items = {{"outer.sync_every", "4"}, {"outer.codec", "int4"}};

}  // namespace

NetworkRun::Options::Options() : outer(config_of(2, 4, 1, 0.5)), layout({{0, 600}, {610, 411}}, 64) {
  outer.codec = "int4";
  outer.error_feedback = true;
  outer.warmup_steps = 2;
}

NetworkRun::Options NetworkRun::Options::packing() {
  Options options;
  options.outer.lossless = "zstd";
  options.outer.warmup_codec = "int4";
  options.layout = FragmentLayout({{0, 9000}, {9008, 4200}}, 4096);
  return options;
}

NetworkRun::Options NetworkRun::Options::lively(std::size_t members) {
  Options options;
  options.members = members;
  options.steps = for_ever;
  options.heartbeat = 0.02;
  options.pace = 0.01;
  options.outer.max_local_rounds = 1'000'000;
  return options;
}

NetworkRun::NetworkRun(Options options) : last_step(options.steps), options_(std::move(options)) {
  make_coordinator(network(0), coordinator_options());
}

NetworkRun::~NetworkRun() { finish(); }

std::string NetworkRun::coordinator_address() const { return coordinator_address_; }

protocol::CoordinatorOptions NetworkRun::coordinator_options() const {
  protocol::CoordinatorOptions options;
  options.run = "test";
  options.replicas = options_.members;
  options.config = config_items;
  options.least = options_.closing.least;
  options.topology = options_.topology;
  options.leases = options_.closing.quorum > 0;
  options.elastic = options_.elastic;
  options.warmup_rounds = codecs().warmup_rounds;
  return options;
}

void NetworkRun::make_coordinator(NetworkConfig network, const protocol::CoordinatorOptions& options) {
  if (!options_.certs.empty()) network.certs = options_.certs / "coordinator";
  coordinator_ = std::make_unique<CoordinatorNode>(network, options, *this);
  if (coordinator_address_.empty())
    coordinator_address_ = fmt::format("{}:{}", options_.host, coordinator_->port());
}

NetworkConfig NetworkRun::network(std::size_t m) const {
  NetworkConfig network;
  network.listen = options_.host + ":0";
  network.coordinator = options_.host + ":0";
  network.lanes = options_.lanes;
  network.heartbeat = {options_.heartbeat};
  network.detect_timeout = {options_.detect_timeout};
  network.join_timeout = {options_.join_timeout};
  network.emulate.rtt = {options_.rtt};
  if (!options_.certs.empty()) network.certs = options_.certs / fmt::format("r{}", m);
  if (coordinator_address_.empty()) return network;
  network.coordinator = coordinator_address_;
  if (adjust_network) adjust_network(m, network);
  return network;
}

protocol::Hello NetworkRun::hello(std::size_t m) const {
  protocol::Hello hello;
  hello.run = "test";
  hello.member.name = fmt::format("r{}", m);
  hello.member.incarnation = m + 1;
  hello.build = "test";
  hello.config = config_items;
  if (adjust_hello) adjust_hello(m, hello);
  return hello;
}

void NetworkRun::start_coordinator() {
  {
    const std::lock_guard lock(telling_);
    coordinator_runs_ = true;
  }
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([this] {
    try {
      ended_ = coordinator_->run();
    } catch (const Vanish&) {
      coordinator_.reset();
    }
    const std::lock_guard ended(telling_);
    coordinator_runs_ = false;
    kill_when_ = nullptr;
    told_.notify_all();
  });
}

void NetworkRun::kill_coordinator(std::function<bool(const protocol::Coordinator&)> when) {
  {
    const std::lock_guard lock(telling_);
    kill_when_ = when ? std::move(when) : [](const protocol::Coordinator&) { return true; };
  }
  wait_for_coordinator();
}

void NetworkRun::wait_for_coordinator() {
  std::unique_lock lock(telling_);
  told_.wait(lock, [this] { return !coordinator_runs_; });
}

void NetworkRun::wait_until(std::function<bool(const protocol::Coordinator&)> holds) {
  std::unique_lock lock(telling_);
  awaited_ = std::move(holds);
  told_.wait(lock, [this] { return !awaited_ || !coordinator_runs_; });
}

void NetworkRun::start_coordinator_again(std::optional<protocol::LastView> last,
                                         std::optional<protocol::ViewNumber> recover) {
  wait_for_coordinator();
  coordinator_.reset();
  auto options = coordinator_options();
  options.last = std::move(last);
  options.recover = recover;
  auto here = network(0);
  here.coordinator = coordinator_address_;
  make_coordinator(here, options);
  start_coordinator();
}

void NetworkRun::message(const std::string& text) {
  const std::lock_guard lock(telling_);
  said_ += text + "\n";
  std::fprintf(stderr, "  coordinator: %s\n", text.c_str());
  told_.notify_all();
}

void NetworkRun::members_changed(const protocol::Coordinator& coordinator) {
  const std::lock_guard lock(telling_);
  if (kill_when_ && kill_when_(coordinator)) throw Vanish();
  if (!awaited_ || !awaited_(coordinator)) return;
  awaited_ = nullptr;
  told_.notify_all();
}

void NetworkRun::store(const protocol::LastView& view) {
  if (on_store) on_store(view);
  const std::lock_guard lock(telling_);
  stored_ = view;
}

protocol::LastView NetworkRun::stored() const {
  const std::lock_guard lock(telling_);
  return stored_;
}

void NetworkRun::start() {
  start_coordinator();
  for (const auto& name : options_.reducers) start_reducer(name);
  // The first view holds the members present when the last trainer joins.
  for (const auto& name : options_.reducers) wait_until_said(name + " joined");
  for (std::size_t m = 0; m < options_.members; ++m) start_worker(m);
}

void NetworkRun::start_reducer(const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto& result = *(reducers_[name] = std::make_unique<ReducerResult>());
  result.incarnation = ++reducer_starts_;
  threads_.emplace_back([this, name, &result] { reduce(name, result); });
}

void NetworkRun::reduce(const std::string& name, ReducerResult& result) {
  try {
    Trace trace;
    MemberNode node(network(SIZE_MAX), static_cast<std::uint64_t>(options_.layout.chunk_elements()), codecs(),
                    options_.closing, trace, {.lossless = options_.outer.lossless_stage()});
    {
      const std::lock_guard lock(mutex_);
      result.node = &node;
    }
    auto hello = this->hello(0);
    hello.member.name = name;
    hello.member.incarnation = result.incarnation;
    hello.model = hello.tokenizer = {};
    result.problem = node.follow(hello);
    result.wire = node.status().sent;
    const std::lock_guard lock(mutex_);
    result.node = nullptr;
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    result.node = nullptr;
    result.error = error;
  }
}

void NetworkRun::let_reducer_leave(const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto* node = reducers_.at(name)->node;
  ASSERT_NE(node, nullptr) << name << " has ended";
  node->leave("was asked to");
}

void NetworkRun::start_worker(std::size_t m) {
  const std::lock_guard lock(mutex_);
  auto& result = *(results_[m] = std::make_unique<WorkerResult>());
  threads_.emplace_back([this, m, &result] {
    work(m, result);
    result.ended.set_value();
  });
}

void NetworkRun::wait_for_worker(std::size_t m) {
  std::future<void> ended;
  {
    const std::lock_guard lock(mutex_);
    ended = results_.at(m)->ended.get_future();
  }
  ended.wait();
}

void NetworkRun::finish() {
  for (;;) {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (auto& thread : threads) thread.join();
  }
}

std::string NetworkRun::said() const {
  const std::lock_guard lock(telling_);
  return said_;
}

namespace {
std::size_t count_of(std::string_view text, std::string_view in) {
  std::size_t count = 0;
  for (auto at = in.find(text); at != std::string_view::npos; at = in.find(text, at + text.size())) ++count;
  return count;
}
}  // namespace

std::size_t NetworkRun::times_said(std::string_view text) const { return count_of(text, said()); }

void NetworkRun::wait_until_said(std::string_view text, std::size_t times) const {
  std::unique_lock lock(telling_);
  told_.wait(lock, [&] { return count_of(text, said_) >= times; });
}

void NetworkRun::work(std::size_t m, WorkerResult& result) {
  try {
    Trace trace;
    MemberNode node(network(m), options_.layout, codecs(), options_.closing, trace,
                    {.lossless = options_.outer.lossless_stage(),
                     .moments = options_.moments,
                     .receipts = receipts.empty() ? nullptr : receipts.at(m)});
    try {
      take_part(m, node, result);
    } catch (const Error& error) {
      result.error = error;
      node.leave(error.what());
    }
  } catch (const Error& error) {
    result.error = error;
  } catch (const Vanish&) {
    result.error = Error(ErrorKind::network, "vanished");
  }
}

void NetworkRun::take_part(std::size_t m, MemberNode& node, WorkerResult& result) {
  if (before_join) before_join(m, node);
  const auto admission = node.join(hello(m));
  EXPECT_NE(admission.how, Admission::How::resumes);
  result.joined = admission.how == Admission::How::joins;
  Trace trace;
  PlainParameters local(initial_parameters(options_.layout));
  const auto worth = static_cast<float>(m);
  PlainMoments moments(options_.layout.buffer_size(), worth, worth * worth, 1000 + m);
  OuterLoop loop(options_.outer, options_.layout, local, node, trace);
  if (options_.moments) loop.share_moments(moments);
  for (bool trains = false, done = false; !done;) {
    try {
      if (trains) {
        train(m, node, loop, local, result);
        done = true;
      } else if (result.joined || result.evicted > 0) {
        node.catch_up(loop);
      } else {
        node.activate({.fragments = loop.fragments(), .parameters = loop.global_hash()});
      }
      trains = true;
    } catch (const Evicted&) {
      ++result.evicted;
      trains = false;
    }
  }
  result.hash = loop.global_hash();
  result.first_moment = moments.first;
  result.moment_steps = moments.count;
  result.stats = loop.stats();
  result.gossip = loop.gossip();
  node.report_evaluation(result.step, static_cast<double>(m), 1);
  result.problem = node.done("{}", result.hash);
  result.wire = node.status().sent;
}

void NetworkRun::train(std::size_t m, MemberNode& node, OuterLoop& loop, PlainParameters& local,
                       WorkerResult& result) {
  const auto status = node.status();
  result.self = status.self;
  EXPECT_EQ(status.view->members.at(status.self).name, hello(m).member.name);
  while (loop.step() < last_step) {
    const auto pause = std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.pace);
    const auto step = loop.step() + 1;
    if (before_step) before_step(m, node, step);
    result.stopped = !node.may_begin(step, step);
    if (result.stopped) break;
    if (!loop.may_train())  // a real trainer would wait
      throw Error(ErrorKind::network, "no round has committed for long, and this replica is cut off");
    mock_step(loop, local, options_.layout, options_.table, m);
    node.report({.step = loop.step(), .loss = 1.0});
    result.step = loop.step();
    std::this_thread::sleep_until(pause);
  }
  if (loop.step() >= last_step) loop.finish();
}

Digest NetworkRun::expected_hash(std::uint64_t steps, bool finished) const {
  Replicas replicas(options_.outer, options_.layout, options_.members, options_.table);
  replicas.train(steps);
  if (finished) replicas.finish();
  return replicas.global_hash();
}

void NetworkRun::expect_end_with(const Digest& hash) {
  finish();
  const auto expected = hash.hex();
  for (std::size_t m = 0; m < options_.members; ++m) {
    ASSERT_FALSE(result(m).error) << "worker " << m << ": " << result(m).error->what();
    EXPECT_EQ(result(m).hash.hex(), expected) << "worker " << m << " ends with different global parameters";
    EXPECT_EQ(result(m).problem, "");
    EXPECT_EQ(result(m).step, options_.steps);
    EXPECT_FALSE(result(m).stopped);
  }
  for (const auto& name : options_.reducers) {
    ASSERT_FALSE(reducer(name).error) << name << ": " << reducer(name).error->what();
    EXPECT_EQ(reducer(name).problem, "") << name;
  }
  EXPECT_EQ(ended().how, protocol::Ended::How::finished) << ended().reason;
}

void NetworkRun::expect_one_end(const std::vector<std::size_t>& workers) {
  finish();
  for (const auto m : workers) {
    ASSERT_FALSE(result(m).error) << "worker " << m << ": " << result(m).error->what();
    const auto& first = result(workers.front());
    EXPECT_EQ(result(m).hash.hex(), first.hash.hex())
        << "worker " << m << " ends with different global parameters";
    EXPECT_EQ(result(m).step, first.step) << "worker " << m << " ends at a different step";
    EXPECT_EQ(result(m).problem, "");
  }
  EXPECT_EQ(ended().how, protocol::Ended::How::finished) << ended().reason;
}

std::string private_address(std::size_t n) {
  const auto pid = static_cast<std::size_t>(getpid());
  return fmt::format("127.{}.{}.{}:23456", 1 + pid / 250 % 250, 1 + pid % 250, 1 + n);
}

}  // namespace isthmus::outer_sync
