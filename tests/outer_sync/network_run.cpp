#include "network_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace isthmus::outer_sync {

namespace {

const protocol::ConfigItems config_items = {{"outer.sync_every", "4"}, {"outer.codec", "int4"}};

protocol::CoordinatorOptions coordinator_options(std::size_t replicas) {
  protocol::CoordinatorOptions options;
  options.run = "test";
  options.replicas = replicas;
  options.config = config_items;
  return options;
}

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

NetworkRun::NetworkRun(Options options) : options_(std::move(options)) {
  coordinator_ = std::make_unique<CoordinatorNode>(network(0), coordinator_options(options_.members), *this);
}

NetworkRun::~NetworkRun() { finish(); }

std::string NetworkRun::coordinator_address() const {
  return fmt::format("127.0.0.1:{}", coordinator_->port());
}

NetworkConfig NetworkRun::network(std::size_t m) const {
  NetworkConfig network;
  network.listen = "127.0.0.1:0";
  network.lanes = options_.lanes;
  network.heartbeat = {0.1};
  network.detect_timeout = {options_.detect_timeout};
  network.join_timeout = {options_.join_timeout};
  network.emulate.rtt = {options_.rtt};
  if (coordinator_) network.coordinator = coordinator_address();
  if (coordinator_ && adjust_network) adjust_network(m, network);
  return network;
}

protocol::Hello NetworkRun::hello(std::size_t m) const {
  protocol::Hello hello;
  hello.run = "test";
  hello.member.name = fmt::format("r{}", m);
  hello.build = "test";
  hello.config = config_items;
  if (adjust_hello) adjust_hello(m, hello);
  return hello;
}

void NetworkRun::start_coordinator() {
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([this] { ended_ = coordinator_->run(); });
}

void NetworkRun::start() {
  start_coordinator();
  for (std::size_t m = 0; m < options_.members; ++m) start_worker(m);
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

std::string NetworkRun::said() const { return said_; }

void NetworkRun::work(std::size_t m, WorkerResult& result) {
  try {
    Trace trace;
    MemberNode node(network(m), options_.layout, codecs(), trace, options_.outer.lossless_stage());
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
  EXPECT_EQ(node.join(hello(m)), 0U);
  Trace trace;
  PlainParameters local(initial_parameters(options_.layout));
  OuterLoop loop(options_.outer, options_.layout, local, node, trace);
  const auto view = node.activate(loop.fragments(), loop.global_hash());
  result.self = node.self();
  EXPECT_EQ(view.members.at(node.self()).name, hello(m).member.name);
  for (std::uint64_t step = 1; step <= options_.steps; ++step) {
    if (before_step) before_step(m, node, step);
    if (!node.may_begin(step)) break;
    mock_step(loop, local, options_.layout, random_step, m);
    node.report({.step = step, .loss = 1.0});
    result.step = step;
  }
  loop.finish();
  result.hash = loop.global_hash();
  result.stopped = node.stopped_early();
  node.report_evaluation(result.step, static_cast<double>(m), 1);
  result.problem = node.done("{}", result.hash);
  result.wire = node.wire();
}

Digest NetworkRun::expected_hash(std::uint64_t steps) const {
  Replicas replicas(options_.outer, options_.layout, options_.members, random_step);
  replicas.train(steps);
  replicas.finish();
  return replicas.global_hash();
}

void NetworkRun::expect_good_end() {
  finish();
  const auto expected = expected_hash(options_.steps).hex();
  for (std::size_t m = 0; m < options_.members; ++m) {
    ASSERT_FALSE(result(m).error) << "worker " << m << ": " << result(m).error->what();
    EXPECT_EQ(result(m).hash.hex(), expected) << "worker " << m << " ends with other global parameters";
    EXPECT_EQ(result(m).problem, "");
    EXPECT_EQ(result(m).step, options_.steps);
    EXPECT_FALSE(result(m).stopped);
  }
  EXPECT_EQ(ended().how, protocol::Ended::How::finished) << ended().reason;
}

std::string private_address(std::size_t n) {
  const auto pid = static_cast<std::size_t>(getpid());
  return fmt::format("127.{}.{}.{}:23456", 1 + pid / 250 % 250, 1 + pid % 250, 1 + n);
}

}  // namespace isthmus::outer_sync
