// Which parts of a copied state count when donors are lost and the trainer lags.

#include "net/member/io/state_recovery.h"

#include <gmock/gmock.h>

#include <string>
#include <variant>
#include <vector>

#include "net/link/listen.h"

namespace isthmus::outer_sync::transport {
namespace {

using protocol::FragmentState;
using protocol::Ledger;
using testing::ElementsAre;
using testing::IsEmpty;

/// A member that copies the state; its only donor cannot be reached.
class Taker final : public StateRecovery::Handler {
 public:
  explicit Taker(bool observes) : observes_(observes) {
    take();
    io_.run();  // until the handler below stops it
    io_.restart();
  }
  void take() {
    protocol::Admitted admitted;
    admitted.donors = {{"donor", 1, closed_address_}};
    taker.take_from(admitted, 22, observes_);
  }
  /// Reports all fragments as installed, as the trainer would.
  void learn_all() {
    for (FragmentId p = 0; p < states.size(); ++p) taker.learned(p, states[p]);
  }
  void seal() { shared_.lock()->run.copying.follows = false; }
  [[nodiscard]] bool follows() const { return shared_.lock()->run.copying.follows; }
  [[nodiscard]] std::uint64_t attempt() const {
    return std::get<BeginAnew>(shared_.lock()->both.state_events.front()).attempt;
  }

  const std::vector<FragmentState> states = {{3, {}}, {5, {}}};
  std::size_t donors_lost = 0, times_ready = 0;

 private:
  bool stands() const override { return false; }
  void on_ready(const std::vector<FragmentState>&, const Ledger&) override { ++times_ready; }
  void on_rounds_gone() override { ADD_FAILURE() << "no rounds were asked for"; }
  void on_no_donors() override {
    ++donors_lost;
    io_.stop();
  }

  asio::io_context io_;
  const std::string closed_address_ = bound_address(listen_at(io_, "127.0.0.1:0", "listen")).to_string();
  const bool observes_;
  Trace trace_;
  WireCounters counters_;
  Crossing crossing_;
  const IoEnd shared_{crossing_};
  CodecContext codec_context_{FragmentLayout({{0, 64}, {64, 64}}, 16), {}, quant::Lossless::none};

 public:
  StateRecovery taker{
      io_, codec_context_, {}, counters_, trace_, agreed_parts, shared_, [](const std::string&) {}, *this};
};

TEST(TransportStateTaker, ATrainerThatComesToAFailedAttemptLearnsNothingOfIt) {
  Taker node(false);
  ASSERT_EQ(node.donors_lost, 1U);
  EXPECT_FALSE(node.taker.takes());
  node.taker.begun(node.attempt());  // the trainer took that event before the donor was lost
  node.learn_all();
  EXPECT_THAT(node.taker.whole(), IsEmpty()) << "nothing from a failed attempt may count";
  EXPECT_EQ(node.times_ready, 0U);
}

TEST(TransportStateTaker, OnlyTheLastAttemptCounts) {
  Taker node(false);
  const auto first = node.attempt();
  node.take();
  ASSERT_NE(node.attempt(), first);
  node.taker.begun(first);
  node.learn_all();
  EXPECT_THAT(node.taker.whole(), IsEmpty()) << "the trainer is still in the previous attempt";
  node.taker.begun(node.attempt());
  node.learn_all();
  EXPECT_THAT(node.taker.whole(), ElementsAre(node.states[0], node.states[1]));
  EXPECT_EQ(node.times_ready, 0U) << "the members' newest rounds are not known yet";
}

TEST(TransportStateTaker, AfterASealNoRoundIsFollowedUntilTheStateIsTakenAnew) {
  Crossing crossing;
  const IoEnd io(crossing);
  const TrainerEnd trainer(crossing);
  io.lock()->both.state_events.emplace_back(FollowedRound{0, 4, {}});
  EXPECT_TRUE(trainer.lock()->has_state_event());
  io.lock()->run.copying.follows = false;
  EXPECT_FALSE(trainer.lock()->has_state_event())
      << "the round may belong to the view that is about to begin";
  Taker node(false);
  node.seal();
  node.take();
  EXPECT_TRUE(node.follows());
}

TEST(TransportStateTaker, AnObserverKeepsWhatItHasWhenItsDonorsAreLost) {
  Taker node(true);
  ASSERT_EQ(node.donors_lost, 1U);
  node.taker.begun(node.attempt());
  node.learn_all();
  EXPECT_THAT(node.taker.whole(), ElementsAre(node.states[0], node.states[1]));
  node.take();  // the same run: it keeps what it has
  EXPECT_THAT(node.taker.whole(), ElementsAre(node.states[0], node.states[1]));
}

}  // namespace
}  // namespace isthmus::outer_sync::transport
