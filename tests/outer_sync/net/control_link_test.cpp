// The link to the coordinator by itself: coordinators that come, go, send wrong messages or stay silent.

#include <gmock/gmock.h>

#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "net/link/control_link.h"
#include "network_run.h"
#include "raw_peer.h"

namespace isthmus::outer_sync::transport {
namespace {

using namespace std::chrono_literals;
using protocol::Announce;
using protocol::ControlMessage;
using protocol::Held;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

/// A member that consists only of the link. As its hello on each new connection it sends the connection's
/// number.
class Caller final : public ControlLink::Handler {
 public:
  explicit Caller(const std::string& coordinators, Connection::Clock::duration silence_limit = 1h)
      : work_(asio::make_work_guard(io_)),
        link_(io_,
              {.coordinators = parse_addresses(coordinators, "coordinators"),
               .silence_limit = silence_limit,
               .check_every = 10ms,
               .seed = 3},
              {}, counters_, clock_, trace_, *this),
        thread_([this] { io_.run(); }) {
    asio::post(io_, [this] { link_.start(); });
  }
  ~Caller() override {
    io_.stop();
    thread_.join();
  }

  template <class Act>
  void on_io(Act act) {
    asio::post(io_, [this, act] { act(link_); });
  }
  void send(const ControlMessage& message) {
    on_io([message](ControlLink& link) { link.send(message); });
  }

  /// Blocks until the log has this many entries; throws if they do not come.
  std::vector<std::string> log(std::size_t entries) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 30s, [&] { return log_.size() >= entries; }))
      throw std::runtime_error("nothing more happened after " + std::to_string(log_.size()) + " entries");
    return log_;
  }

  bool finish_when_heard = false, stop_when_heard = false;  ///< set before the first message arrives

 private:
  void note(const std::string& what) {
    {
      const std::lock_guard lock(mutex_);
      log_.push_back(what);
    }
    changed_.notify_all();
  }
  void on_up() override {
    note("up");
    link_.send(Held{++connections_});
  }
  void on_control(ControlMessage message) override {
    if (const auto* announce = std::get_if<Announce>(&message)) {
      note(announce->text);
    } else {
      throw Error(ErrorKind::network, "it said what it should not");
    }
    if (finish_when_heard) {
      link_.send(Announce{"farewell"});
      link_.finish();
    }
    if (stop_when_heard) link_.stop();
  }
  void on_down(const std::string& why) override { note("down: " + why); }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  WireCounters counters_;
  Trace trace_;
  AwakeClock clock_{1h};
  std::uint64_t connections_ = 0;
  ControlLink link_;
  std::mutex mutex_;  ///< guards the next two members
  std::condition_variable changed_;
  std::vector<std::string> log_;
  std::thread thread_;
};

std::uint64_t hello(RawPeer& coordinator) { return coordinator.receive_control<Held>().step; }
void answer(RawPeer& coordinator, const std::string& words) {
  coordinator.say(ControlMessage(Announce{words}));
}

TEST(ControlLink, SaysHelloAndHears) {
  RawListener listener;
  Caller caller(listener.address());
  RawPeer coordinator(listener);
  EXPECT_EQ(hello(coordinator), 1U);
  answer(coordinator, "welcome");
  EXPECT_THAT(caller.log(2), ElementsAre("up", "welcome"));
  caller.send(Announce{"thanks"});
  EXPECT_EQ(coordinator.receive_control<Announce>().text, "thanks");
}

TEST(ControlLink, TakesTheNextWhereNobodyListens) {
  RawListener listener;
  Caller caller(private_address(60) + "," + private_address(61) + ", " + listener.address());
  RawPeer coordinator(listener);
  EXPECT_EQ(hello(coordinator), 1U) << "attempts that failed must not count as connections";
}

TEST(ControlLink, WaitsForACoordinatorThatComesLater) {
  const auto address = private_address(62);
  Caller caller(address);
  std::string failure;
  while (failure.empty()) {  // until a dial has failed
    std::promise<std::string> asked;
    caller.on_io([&asked](const ControlLink& link) { asked.set_value(link.last_failure()); });
    failure = asked.get_future().get();
  }
  EXPECT_THAT(failure, HasSubstr(address));
  RawListener listener(address);
  RawPeer coordinator(listener);
  EXPECT_EQ(hello(coordinator), 1U);
}

TEST(ControlLink, ComesBackToACoordinatorThatWent) {
  RawListener listener;
  RawListener other;
  Caller caller(listener.address() + "," + other.address());
  for (std::uint64_t time = 1; time <= 3; ++time) {
    RawPeer coordinator(listener);
    EXPECT_EQ(hello(coordinator), time) << "the first message on a connection must be the hello";
    answer(coordinator, "welcome");
    EXPECT_THAT(caller.log(3 * time - 1), SizeIs(3 * time - 1));
  }
  const auto log = caller.log(9);
  for (const std::size_t down : {2, 5, 8})
    EXPECT_EQ(log[down], "down: " + listener.address() + ": it closed the connection");
}

TEST(ControlLink, WhatIsSentWhileItIsDownIsNotSentLater) {
  const auto address = private_address(64);
  std::optional<RawListener> listener(address);
  Caller caller(address);
  {
    RawPeer coordinator(*listener);
    EXPECT_EQ(hello(coordinator), 1U);
    listener.reset();
  }
  static_cast<void>(caller.log(2));
  caller.send(Announce{"lost"});
  listener.emplace(address);
  RawPeer coordinator(*listener);
  EXPECT_EQ(hello(coordinator), 2U);
  caller.send(Announce{"not lost"});
  EXPECT_EQ(coordinator.receive_control<Announce>().text, "not lost");
}

TEST(ControlLink, LeavesOneThatAcceptsAndSaysNothing) {
  RawListener silent;
  RawListener listener;
  Caller caller(silent.address() + "," + listener.address(), 1s);
  RawPeer nobody(silent);
  RawPeer coordinator(listener);
  EXPECT_EQ(hello(coordinator), 2U);
  EXPECT_THAT(caller.log(2)[1], AllOf(HasSubstr(silent.address()), HasSubstr("network.detect_timeout")));
  EXPECT_TRUE(nobody.is_dropped());
}

TEST(ControlLink, LeavesOneThatFallsSilentAndComesBackToIt) {
  RawListener listener;
  Caller caller(listener.address(), 1s);
  RawPeer coordinator(listener);
  answer(coordinator, "welcome");
  EXPECT_THAT(caller.log(3)[2], HasSubstr("silent for longer than network.detect_timeout"));
  EXPECT_TRUE(coordinator.is_dropped());
  RawPeer again(listener);
  EXPECT_EQ(hello(again), 2U);
}

TEST(ControlLink, LeavesWhoeverIsNoCoordinator) {
  RawListener listener;
  Caller caller(listener.address());
  std::size_t entries = 0;
  const auto left = [&](const auto& words) {
    RawPeer impostor(listener);
    impostor.say(words);
    EXPECT_TRUE(impostor.is_dropped());
    entries += 2;
    return caller.log(entries).back();
  };
  EXPECT_THAT(left(std::string_view("HTTP/1.1 200 OK\r\n\r\n")), HasSubstr("not a frame of this protocol"));
  EXPECT_THAT(left(Frame{FrameType::control, Bytes(40, std::byte{99}), nullptr}), HasSubstr("tag 99"));
  EXPECT_THAT(left(Frame{FrameType::peer_hello, Bytes(40), nullptr}), HasSubstr("not a control frame"));
  EXPECT_THAT(left(ControlMessage(protocol::Hold{})), HasSubstr("it said what it should not"));
  const FrameHeader huge{.length = UINT32_MAX};
  EXPECT_THAT(left(std::as_bytes(std::span(&huge, 1))), HasSubstr("4294967295 bytes"));
}

TEST(ControlLink, FinishedItSaysWhatIsLeftAndCallsNoMore) {
  RawListener listener;
  Caller caller(listener.address());
  caller.finish_when_heard = true;
  RawPeer coordinator(listener);
  Bytes words;
  for (const auto* text : {"go", "too late", "too late"}) {
    const auto frame = control_frame(Announce{text});
    const FrameHeader header{.length = static_cast<std::uint32_t>(frame.head.size())};
    const auto head = bytes_of(header);
    words.insert(words.end(), head.begin(), head.end());
    words.insert(words.end(), frame.head.begin(), frame.head.end());
  }
  coordinator.say(words);  // in one write, so that all messages are there when the first is handled
  EXPECT_EQ(coordinator.receive_control<Announce>().text, "farewell");
  EXPECT_TRUE(coordinator.is_dropped());
  EXPECT_THAT(caller.log(3), ElementsAre("up", "go", HasSubstr("ended here")));
}

TEST(ControlLink, StoppedInTheMiddleOfMessagesItHearsNoMore) {
  RawListener listener;
  Caller caller(listener.address());
  caller.stop_when_heard = true;
  RawPeer coordinator(listener);
  for (int i = 0; i < 20; ++i) answer(coordinator, "go");
  EXPECT_TRUE(coordinator.is_dropped());
  EXPECT_THAT(caller.log(3), ElementsAre("up", "go", HasSubstr("ended here")));
}

TEST(ControlLink, StoppedBeforeAnybodyAnswersItDialsNoMore) {
  struct : ControlLink::Handler {
    void on_up() override { ADD_FAILURE() << "connected to a port without a listener"; }
    void on_control(ControlMessage) override {}
    void on_down(const std::string&) override {}
  } handler;
  asio::io_context io;
  WireCounters counters;
  Trace trace;
  AwakeClock clock(1h);
  ControlLink link(io,
                   {.coordinators = parse_addresses(private_address(65), "coordinators"),
                    .silence_limit = 1h,
                    .check_every = 1h,
                    .seed = 3},
                   {}, counters, clock, trace, handler);
  link.start();
  asio::steady_timer a_while(io, 10ms);
  a_while.async_wait([&](const asio::error_code&) { link.stop(); });
  io.run();  // returns when no work is left: the link neither dials nor waits
}

TEST(RedialPause, GrowsToTwoSecondsAndDiffersBySeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto whole = 100ms;
    for (std::size_t failures = 0; failures < 20; ++failures) {
      const auto pause = redial_pause(seed, failures);
      EXPECT_LE(pause, whole);
      EXPECT_GE(pause, whole / 2);
      EXPECT_EQ(pause, redial_pause(seed, failures));
      whole = std::min<std::chrono::milliseconds>(2 * whole, 2000ms);
    }
    EXPECT_NE(redial_pause(seed, 3), redial_pause(seed + 1, 3));
  }
  EXPECT_GT(redial_pause(1, SIZE_MAX), 900ms);
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
