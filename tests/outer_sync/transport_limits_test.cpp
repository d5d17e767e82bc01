// What runs out: an io thread that has ended, members that do not read, rounds that nobody has, a full disk.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <future>
#include <thread>

#include "network_run.h"
#include "raw_peer.h"
#include "transport/network_side.h"
#include "transport/spawn.h"
#include "transport/state_frames.h"
#include "transport/state_giver.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::Round;
using testing::HasSubstr;

// ---- an io thread that has ended ----

TEST(Limits, WhoWaitsForAnIoThreadThatHasFailedIsToldWhy) {
  const FragmentLayout layout = NetworkRun::Options().layout;
  NetworkConfig network;
  network.coordinator = private_address(71);
  network.listen = "127.0.0.1:0";
  Rendezvous meet;
  Trace trace;
  const MemberRules rules{.codecs = codec_plan(OuterConfig()), .closing = {}};
  auto side = std::make_shared<NetworkSide>(network, &layout, rules, meet, trace);
  EXPECT_TRUE(side->ledger().empty()) << "it stands nowhere";
  meet.seal = protocol::Seal{1, 0};
  side->activate(std::vector<protocol::FragmentState>(layout.fragment_count()), {}, {}, {});
  // Whose they are is known in a view alone, and there is none: no caller does this, and it is what fails.
  SampleSet samples;
  samples.add({0, 0, 1});
  side->contribute(0, 1, std::make_shared<const Bytes>(8), nullptr, 1, 0, samples);
  std::promise<std::string> said;
  auto answer = said.get_future();
  std::thread asks([side, &said] {
    try {
      (void)side->ledger();
      said.set_value("a ledger");
    } catch (const Error& error) {
      said.set_value(error.what());
    }
  });
  if (answer.wait_for(20s) != std::future_status::ready) {
    ADD_FAILURE() << "it waits for ever";
    std::_Exit(1);
  }
  EXPECT_THAT(answer.get(), HasSubstr("the io thread failed: "));
  asks.join();
}

// ---- a member that does not read ----

TEST(Limits, AMemberThatReadsNothingIsDropped) {
  NetworkRun run(NetworkRun::Options::lively(2));
  std::promise<void> begun;
  std::atomic<bool> over = false;
  run.before_step = [&](std::size_t m, MemberNode&, std::uint64_t step) {
    if (m == 0 && step == 8) begun.set_value();
    if (m == 0 && over && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  begun.get_future().wait();
  RawPeer deaf(run.coordinator_address());
  deaf.say(protocol::ControlMessage(run.hello(2)));
  Bytes beats;
  for (std::uint64_t number = 1; number <= 500; ++number) {
    protocol::Heartbeat beat;
    beat.number = number;
    const auto frame = control_frame(beat);
    const auto header = header_bytes(FrameType::control, static_cast<std::uint32_t>(frame.head.size()));
    beats.insert(beats.end(), header.begin(), header.end());
    beats.insert(beats.end(), frame.head.begin(), frame.head.end());
  }
  const auto dropped = [&] { return run.times_said("it does not read: ") > 0; };
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       !dropped() && std::chrono::steady_clock::now() < until;)
    deaf.say(beats);
  EXPECT_TRUE(dropped()) << "what it does not read piles up at the coordinator";
  EXPECT_TRUE(deaf.is_dropped());
  over = true;
  run.expect_one_end({0, 1});
}

// ---- rounds that nobody has ----

TEST(Limits, WhoAsksForAStateOfTheFutureCostsNoCopy) {
  asio::io_context io;
  const FragmentLayout layout = NetworkRun::Options().layout;
  const NetworkConfig network;
  Rendezvous meet;
  WireCounters counters;
  Trace trace;
  constexpr Round here = 7;
  StateGiver giver(
      io, network, layout, meet, [](FragmentId, Round) { return std::vector<protocol::SharedBytes>(); },
      [](FragmentId) { return protocol::FragmentLedger(here); });
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  RawPeer learner("127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()));
  const auto connection = start_connection(acceptor.accept(), counters, {}, trace, {});
  const auto give = [&]() -> asio::awaitable<void> {
    try {
      co_await giver.serve(connection);
    } catch (const std::exception&) {  // the learner is gone
    }
  };
  spawn(io.get_executor(), "giving", give());
  std::thread thread([&io] { io.run(); });
  const auto ask = [&](Round from) {
    const StateRequest request{.fragment = 0, .parts = set_of(StatePart::theta), .from = from};
    learner.say(Frame{FrameType::state_request, to_bytes(request), nullptr});
  };
  for (const auto from : {~Round{0}, here + 2}) {
    ask(from);
    const auto answer = learner.hear();
    EXPECT_TRUE(answer && answer->type == FrameType::state_gone) << from;
  }
  std::unique_lock lock(meet.mutex);
  EXPECT_TRUE(meet.state_requests.empty());
  ask(here + 1);  // the trainer may have it
  EXPECT_TRUE(meet.changed.wait_for(lock, 20s, [&] { return meet.state_requests.size() == 1; }));
  lock.unlock();
  io.stop();
  thread.join();
  meet.state_requests.clear();
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
