// Resources that run out: an io thread that has ended, members that do not read, rounds that no
// member has, a full disk.

#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "isthmus/base/file.h"
#include "isthmus/outer_sync/config/codec_plan.h"
#include "net/link/spawn.h"
#include "net/member/io/member_driver.h"
#include "net/member/io/state_server.h"
#include "net/state_transfer/state_frames.h"
#include "network_run.h"
#include "raw_peer.h"

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
  Crossing crossing;
  Trace trace;
  const MemberRules rules{.codecs = codec_plan(OuterConfig()), .closing = {}};
  auto side = std::make_shared<MemberDriver>(network, &layout, rules, crossing, trace);
  EXPECT_TRUE(side->ledger().empty()) << "the member is in no view yet";
  side->activate({.fragments = std::vector<protocol::FragmentState>(layout.fragment_count())});
  // Samples can only be assigned in a view. Without one, this contribution makes the io thread fail; no real
  // caller does this.
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
    ADD_FAILURE() << "the caller waits for ever";
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
  EXPECT_TRUE(dropped()) << "unread messages pile up at the coordinator";
  EXPECT_TRUE(deaf.is_dropped());
  over = true;
  run.expect_one_end({0, 1});
}

// ---- rounds that no member has ----

TEST(Limits, WhoAsksForAStateOfTheFutureCostsNoCopy) {
  asio::io_context io;
  const FragmentLayout layout = NetworkRun::Options().layout;
  const NetworkConfig network;
  Crossing crossing;
  const TrainerEnd trainer(crossing);
  WireCounters counters;
  Trace trace;
  constexpr Round here = 7;
  StateServer giver(
      io, network, layout, IoEnd(crossing),
      [](FragmentId, Round) { return std::vector<protocol::SharedBytes>(); },
      [](FragmentId) { return protocol::FragmentLedger(here); });
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  RawPeer fetcher("127.0.0.1:" + std::to_string(acceptor.local_endpoint().port()));
  const auto connection = start_connection(acceptor.accept(), counters, {}, trace, {});
  const auto give = [&]() -> asio::awaitable<void> {
    try {
      co_await giver.serve(connection);
    } catch (const std::exception&) {  // the fetcher is gone
    }
  };
  spawn(io.get_executor(), "giving", give());
  std::thread thread([&io] { io.run(); });
  const auto ask = [&](Round from) {
    const StateRequest request{.fragment = 0, .parts = set_of(StatePart::theta), .from = from};
    fetcher.say(Frame{FrameType::state_request, to_bytes(request), nullptr});
  };
  for (const auto from : {~Round{0}, here + 2}) {
    ask(from);
    const auto answer = fetcher.receive();
    EXPECT_TRUE(answer && answer->type == FrameType::state_gone) << from;
  }
  {
    auto now = trainer.lock();
    EXPECT_TRUE(now->both.state_requests.empty());
    ask(here + 1);  // the trainer may have it
    EXPECT_TRUE(now.wait_for(20s, [&] { return now->both.state_requests.size() == 1; }));
  }
  io.stop();
  thread.join();
  trainer.lock()->both.state_requests.clear();
}

// ---- a full disk ----

/// A disk of 64 KiB in memory.
class SmallDisk {
 public:
  SmallDisk() {
    std::filesystem::create_directories(at_);
    is_there_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, "size=64k") == 0;
  }
  ~SmallDisk() {
    if (is_there_) ::umount2(at_.c_str(), MNT_DETACH);
    std::filesystem::remove(at_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool is_there() const { return is_there_; }
  void fill() const {
    std::ofstream all(at_ / "all", std::ios::binary);
    const std::string page(4096, 'x');
    while (all << page << std::flush) {
    }
  }
  void make_room() const { std::filesystem::remove(at_ / "all"); }
  [[nodiscard]] std::filesystem::path file() const { return at_ / "coordinator.state"; }

 private:
  std::filesystem::path at_ =
      std::filesystem::path(testing::TempDir()) / ("disk-" + std::to_string(::getpid()));
  bool is_there_ = false;
};

TEST(Limits, AFullDiskOfTheCoordinatorHoldsViewsBackAndEndsNothing) {
  const SmallDisk disk;
  if (!disk.is_there()) GTEST_SKIP() << "mounting a small disk needs root";
  auto options = NetworkRun::Options::lively(3);
  options.detect_timeout = 1;
  options.closing.least = 2;
  NetworkRun run(options);
  run.on_store = [&](const protocol::LastView& view) {
    replace_file(disk.file(), [&](const File& file) { file.write(to_bytes(view)); });
  };
  std::atomic<bool> room = false;
  std::atomic<protocol::ViewNumber> seen = 0;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 2 && step == 8) {
      disk.fill();
      throw NetworkRun::Vanish();
    }
    if (m != 0) return;
    seen = node.status().view->number;
    if (room && seen > 1 && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  run.wait_until_said("NO ROOM: view 2 cannot be stored");
  std::this_thread::sleep_for(2500ms);  // longer than any silence limit
  EXPECT_EQ(seen, 1U) << "view 2 must not be announced";
  EXPECT_EQ(run.times_said("view 2 begins"), 0U) << "view 2 must not begin";
  std::string phase, obstacle;
  std::size_t participating = 1;
  run.wait_until([&](const protocol::Coordinator& coordinator) {
    phase = name_of(coordinator.run_phase());
    obstacle = coordinator.obstacle();
    participating = coordinator.participating();
    return true;
  });
  EXPECT_EQ(phase, "suspended");
  EXPECT_THAT(obstacle, HasSubstr("view 2 cannot be stored: "));
  EXPECT_EQ(participating, 0U);
  EXPECT_EQ(run.times_said("NO ROOM"), 1U);
  EXPECT_EQ(run.times_said("r0 is lost") + run.times_said("r1 is lost"), 0U);
  EXPECT_EQ(run.stored().number, 1U);
  disk.make_room();
  room = true;
  run.wait_until_said("view 2 is stored and announced now");
  run.wait_until_said("view 2 begins with 2 replicas: r0, r1");
  run.wait_until([](const protocol::Coordinator& coordinator) { return coordinator.obstacle().empty(); });
  run.expect_one_end({0, 1});
  EXPECT_EQ(run.stored().number, 2U);
}

TEST(Limits, OfViewsThatWaitForRoomTheNewestIsAnnouncedAndNoOtherIsStored) {
  auto options = NetworkRun::Options::lively(3);
  options.detect_timeout = 1;
  options.closing.least = 1;
  NetworkRun run(options);
  std::atomic<bool> room = false;
  std::set<protocol::ViewNumber> stored;
  run.on_store = [&](const protocol::LastView& view) {
    if (view.number > 1 && !room) throw Error(ErrorKind::data, "no space is left");
    stored.insert(view.number);
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m == 2 && step == 8) throw NetworkRun::Vanish();
    if (m == 1 && run.times_said("NO ROOM") > 0) throw NetworkRun::Vanish();
    if (m == 0 && node.status().view->number > 1 && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  run.wait_until([](const protocol::Coordinator& coordinator) {
    return coordinator.obstacle().find("view 3 cannot be stored") == 0;
  });
  room = true;
  run.wait_until_said("view 3 is stored and announced now");
  run.expect_one_end({0});
  EXPECT_EQ(run.times_said("view 2 begins"), 0U);
  EXPECT_EQ(stored, (std::set<protocol::ViewNumber>{1, 3}));
}

/// This includes a checkpoint that all have only while a view waits for room.
TEST(Limits, TheNewestCheckpointThatAllHaveIsStored) {
  auto options = NetworkRun::Options::lively(3);
  options.detect_timeout = 1;
  options.closing.least = 2;
  NetworkRun run(options);
  std::atomic<bool> room = false;
  std::atomic<std::uint64_t> checkpoint = 0;
  run.on_store = [&](const protocol::LastView& view) {
    if (view.number > 1 && !room) throw Error(ErrorKind::data, "no space is left");
    checkpoint = view.checkpoint;
  };
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    const bool waits_for_room = run.times_said("NO ROOM: view 2 cannot be stored") > 0;
    std::vector<protocol::CheckpointId> checkpoints{{4, 1}};
    if (waits_for_room) checkpoints.push_back({8, 1});
    node.report_checkpoints(checkpoints);
    // After the warm-up, since in the warm-up the others would wait for a round instead of training on.
    if (m == 2 && step >= 6 && checkpoint == 4) throw NetworkRun::Vanish();
    if (node.status().common_checkpoint == 8) room = true;
    if (m == 0 && node.status().view->number > 1 && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  run.expect_one_end({0, 1});
  EXPECT_EQ(run.stored().number, 2U);
  EXPECT_EQ(run.stored().checkpoint, 8U);
}

/// Between a seal and its view, no round commits even if all members reach each other. A member that waited
/// for a result would not train until the coordinator is back.
TEST(Limits, WhoHasSealedAViewTrainsOnWhenTheCoordinatorIsGone) {
  auto options = NetworkRun::Options::lively(2);
  options.detect_timeout = 1;
  options.closing.least = 2;
  NetworkRun run(options);
  std::atomic<bool> room = false;
  run.on_store = [&](const protocol::LastView& view) {
    if (view.number > 1 && !room) throw Error(ErrorKind::data, "no space is left");
  };
  std::atomic<std::uint64_t> steps_made = 0;
  run.before_step = [&](std::size_t m, MemberNode& node, std::uint64_t step) {
    if (m != 0) return;
    if (step == 8) run.start_worker(2);
    ++steps_made;
    if (node.status().view->members.size() == 3 && run.last_step == for_ever) run.last_step = step + 20;
  };
  run.start();
  run.wait_until_said("NO ROOM: view 2 cannot be stored");
  run.kill_coordinator();
  std::this_thread::sleep_for(2500ms);  // longer than any silence limit
  const auto before = steps_made.load();
  std::this_thread::sleep_for(1s);
  EXPECT_GT(steps_made, before + 20) << "it waits for a round that cannot commit";
  room = true;
  run.start_coordinator_again(run.stored());
  run.expect_one_end({0, 1, 2});
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
