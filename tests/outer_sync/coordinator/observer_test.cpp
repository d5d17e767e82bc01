// Observers at the coordinator: they get everything they need to follow the run, and do not count as members.

#include <gmock/gmock.h>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ConnectionId observer = 50;

class ProtocolObserver : public testing::Test {
 protected:
  static Hello hello(const std::string& name = "watch", MemberKind kind = MemberKind::observer) {
    auto out = CoordinatorHarness::hello(name);
    out.member.kind = kind;
    return out;
  }
  void run_two_and_observe() {
    run.run_all({"a", "b"});
    run.receive(observer, hello());
  }
  /// Heartbeat of a member of view 1 with its fragments at these rounds; `prefix` stands for the chains.
  static Heartbeat at(Round first, Round second, std::uint64_t prefix, ViewNumber view = 1) {
    return {.number = 5,
            .view = view,
            .step = 12,
            .unreachable = {},
            .fragments = {{first, prefix}, {second, prefix}},
            .health = {}};
  }
  std::size_t seals() const { return run.count<Seal>(1) + run.count<Seal>(2); }

  CoordinatorHarness run{2};
};

TEST_F(ProtocolObserver, IsNotCountedAmongThoseWhomTheRunWaitsFor) {
  run.receive(observer, hello());
  run.receive(1, CoordinatorHarness::hello("a"));
  EXPECT_EQ(run.count<Seal>(1), 0U) << "only one of two replicas is here";
  EXPECT_FALSE(run.last<Admitted>(observer)) << "there is no state to copy yet";
  run.receive(2, CoordinatorHarness::hello("b"));
  for (const ConnectionId m : {1, 2}) run.receive(m, CoordinatorHarness::sealed());
  const auto view = run.last<NewView>(1);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->view.members.size(), 2U);
  EXPECT_EQ(run.coordinator.members().size(), 2U);
  EXPECT_EQ(run.coordinator.participating(), 2U);
  const auto admitted = run.last<Admitted>(observer);
  ASSERT_TRUE(admitted) << "the view has begun, so there is a state to copy";
  EXPECT_EQ(admitted->donors.size(), 2U);
  EXPECT_EQ(admitted->token, digest_of(99));
  for (const auto count : {run.count<Seal>(observer), run.count<NewView>(observer)}) EXPECT_EQ(count, 0U);
}

TEST_F(ProtocolObserver, ComesAndGoesWithoutAChangeOfView) {
  run_two_and_observe();
  EXPECT_TRUE(run.last<Admitted>(observer));
  const auto before = seals();
  run.close(observer);
  run.receive(observer + 1, hello());
  run.receive(observer + 2, hello());
  EXPECT_TRUE(run.closed.contains(observer + 1)) << "it has dialled again";
  EXPECT_TRUE(run.last<Admitted>(observer + 2));
  run.receive(observer + 2, Leave{"enough"});
  EXPECT_EQ(seals(), before);
  EXPECT_EQ(run.coordinator.view(), 1U);
  EXPECT_EQ(run.coordinator.participating(), 2U);
}

TEST_F(ProtocolObserver, ASecondProcessOfTheNameIsRefusedWhileTheFirstIsHere) {
  run_two_and_observe();
  auto second = hello();
  ++second.member.incarnation;
  run.receive(observer + 1, second);
  EXPECT_THAT(run.refusal(observer + 1), HasSubstr("an observer named 'watch' is already here"));
  EXPECT_FALSE(run.closed.contains(observer)) << "the first must not notice";
  run.receive(observer + 2, hello());
  EXPECT_EQ(run.refusal(observer + 2), "") << "the first process may dial again before its cut is noticed";
  run.close(observer + 2);
  run.receive(observer + 3, second);
  EXPECT_EQ(run.refusal(observer + 3), "");
  EXPECT_TRUE(run.last<Admitted>(observer + 3));
}

TEST_F(ProtocolObserver, OneThatHasToCopyTheStateAgainKeepsItsName) {
  run_two_and_observe();
  run.receive(1, at(3, 2, 7));
  run.receive(observer, at(3, 2, 8, 0));
  ASSERT_TRUE(run.last<Evicted>(observer));
  auto again = hello();
  ++again.member.incarnation;
  run.receive(observer + 1, again);
  EXPECT_EQ(run.refusal(observer + 1), "");
}

TEST_F(ProtocolObserver, OneThatIsSilentIsDroppedAlone) {
  run_two_and_observe();
  run.now = 4s;
  for (const ConnectionId m : {1, 2}) run.receive(m, at(0, 0, 0));
  run.tick(6s);
  EXPECT_TRUE(run.closed.contains(observer));
  EXPECT_EQ(run.coordinator.participating(), 2U);
  EXPECT_EQ(run.coordinator.view(), 1U);
}

TEST_F(ProtocolObserver, HearsHowFarTheMembersAre) {
  run_two_and_observe();
  run.receive(1, at(3, 2, 7));
  run.receive(2, at(2, 2, 7));
  run.receive(observer, at(1, 1, 7, 0));
  const auto reply = run.last<HeartbeatReply>(observer);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->view, 0U) << "an observer gets no lease";
  EXPECT_EQ(reply->number, 5U);
  EXPECT_THAT(reply->newest, ElementsAre(3, 2));
}

TEST_F(ProtocolObserver, OfAnotherHistoryTakesTheStateAnew) {
  run_two_and_observe();
  run.receive(1, at(3, 2, 7));
  run.receive(observer, at(3, 2, 7, 0));
  EXPECT_FALSE(run.last<Evicted>(observer));
  run.receive(observer, at(3, 2, 8, 0));
  const auto evicted = run.last<Evicted>(observer);
  ASSERT_TRUE(evicted);
  EXPECT_THAT(evicted->reason, HasSubstr("round 3 of fragment 0 is not the run's"));
  EXPECT_TRUE(run.closed.contains(observer));
  EXPECT_FALSE(run.ended) << "an observer's chain must not affect the run";
}

TEST_F(ProtocolObserver, IsGivenTheDonorsOfEveryView) {
  auto options = CoordinatorHarness::default_options(3);
  CoordinatorHarness three(options);
  three.run_all({"a", "b", "c"});
  three.receive(observer, hello());
  ASSERT_EQ(three.last<Admitted>(observer)->donors.size(), 3U);
  three.close(2);
  auto sealed = CoordinatorHarness::sealed();
  sealed.view = 2;
  sealed.activated = 1;
  for (const ConnectionId m : {1, 3}) three.receive(m, sealed);
  EXPECT_EQ(three.coordinator.view(), 2U);
  EXPECT_EQ(three.count<Admitted>(observer), 2U);
  EXPECT_EQ(three.last<Admitted>(observer)->donors.size(), 2U);
}

TEST_F(ProtocolObserver, HearsOfTheEndAndOfTheLastRounds) {
  run_two_and_observe();
  for (const ConnectionId m : {1, 2}) {
    run.receive(m, at(9, 8, 7));
    run.receive(m, Done{"{}", digest_of(42)});
  }
  ASSERT_TRUE(run.ended) << "the run must not wait for an observer";
  EXPECT_THAT(run.last<HeartbeatReply>(observer)->newest, ElementsAre(9, 8));
  const auto finished = run.last<Finished>(observer);
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->global_hash, digest_of(42));
  EXPECT_TRUE(run.closed.contains(observer));
}

TEST_F(ProtocolObserver, HasNoVoiceInTheRun) {
  const std::vector<ControlMessage> words = {
      Ready{}, StopRequest{"enough"}, EvalReport{10, 1, 1},         Held{3},
      Done{},  Announce{"here"},      CoordinatorHarness::sealed(), Evicted{}};
  for (const auto& word : words) {
    CoordinatorHarness two{2};
    two.run_all({"a", "b"});
    two.receive(observer, hello());
    two.receive(observer, word);
    EXPECT_TRUE(two.closed.contains(observer)) << word.index();
    EXPECT_EQ(two.coordinator.view(), 1U);
    EXPECT_FALSE(two.coordinator.stopping());
    EXPECT_FALSE(two.ended);
    EXPECT_EQ(two.count<Announce>(1) + two.count<Hold>(1), 0U);
  }
}

TEST_F(ProtocolObserver, MustBeOfTheSameRunAndModel) {
  run.run_all({"a", "b"});
  auto wrong = hello();
  wrong.config[0].second = "31";
  run.receive(60, wrong);
  EXPECT_THAT(run.refusal(60), HasSubstr("outer.sync_every is 30 at the coordinator and 31 at watch"));
  wrong = hello();
  wrong.model = digest_of(8);
  run.receive(61, wrong);
  EXPECT_THAT(run.refusal(61), HasSubstr("the model of watch is not the model of a"));
  run.receive(62, hello("a"));
  EXPECT_THAT(run.refusal(62), HasSubstr("give the observer another --name"));
}

TEST_F(ProtocolObserver, OfAnotherModelThatCameFirstIsRefusedWhenTheRunBegins) {
  auto wrong = hello();
  wrong.model = digest_of(8);
  run.receive(observer, wrong);
  EXPECT_EQ(run.refusal(observer), "");
  run.run_all({"a", "b"});
  EXPECT_THAT(run.refusal(observer), HasSubstr("the model of watch is not the model of a"));
}

TEST_F(ProtocolObserver, OfADataParallelRunHasNothingToFollow) {
  CoordinatorHarness rigid(CoordinatorHarness::rigid(2));
  rigid.receive(observer, hello());
  EXPECT_THAT(rigid.refusal(observer), HasSubstr("no rounds to follow"));
}

TEST_F(ProtocolObserver, KindsThatThereAreNotAreRefused) {
  run.receive(60, hello("x", static_cast<MemberKind>(7)));
  EXPECT_THAT(run.refusal(60), HasSubstr("x is of member kind 7"));
}

TEST_F(ProtocolObserver, ThereIsALimit) {
  run.run_all({"a", "b"});
  for (std::size_t n = 0; n < max_observers; ++n) run.receive(100 + n, hello("watch-" + std::to_string(n)));
  run.receive(observer, hello());
  EXPECT_THAT(run.refusal(observer), HasSubstr("there are 64 observers already"));
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
