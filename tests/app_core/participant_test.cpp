// The life of a training process, with the run played by the test.

#include "participant/participant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "scripted_exchange.h"

namespace isthmus::app {
namespace {

using outer_sync::Admission;
using outer_sync::OuterLoop;
using testing::ElementsAre;
using testing::HasSubstr;
using State = Participant::State;

/// The other members.
class PlayedRun final : public Membership {
 public:
  PlayedRun(const outer_sync::FragmentLayout& layout, outer_sync::protocol::CodecPlan codecs)
      : others(layout, codecs), layout_(layout) {
    now.reaches_coordinator = true;
  }

  outer_sync::ScriptedExchange others;
  outer_sync::NodeStatus now;
  Admission admission;
  bool paused = false, goes_on = true;
  std::optional<std::uint64_t> evicts_before;  ///< this step, once
  std::uint64_t others_are_at = 0;             ///< step of the state that they give
  std::function<void()> while_joining, while_copying;
  std::optional<std::uint64_t> asks_for_checkpoint;
  std::string problem;

  std::size_t activated = 0, paused_calls = 0;
  std::vector<std::uint64_t> begun;  ///< steps
  std::vector<std::string> left, ended, checkpoint_requests;
  std::vector<outer_sync::StepReport> reports;

  outer_sync::RoundExchange& exchange() override { return others; }
  outer_sync::NodeStatus status() const override { return now; }
  Admission join(outer_sync::protocol::Hello) override {
    if (while_joining) while_joining();
    return admission;
  }
  void activate(OuterLoop&, const outer_sync::protocol::Ledger&, SampleSet) override { ++activated; }
  /// Gives a state in which all parameters are zero.
  void catch_up(OuterLoop& outer) override {
    if (while_copying) while_copying();
    others.contributions.clear();
    others.chains.clear();
    for (outer_sync::FragmentId p = 0; p < layout_.fragment_count(); ++p) {
      const auto zero = std::make_shared<const AlignedVector<float>>(layout_.fragment(p).size, 0.0F);
      outer.install({p, {outer.schedule().rounds_due(p, others_are_at), {}}, zero, zero});
    }
    outer.begin_at(others_are_at);
  }
  bool is_paused(std::uint64_t) override {
    if (paused && ++paused_calls > 100) throw std::runtime_error("it waits for the end of the pause");
    return paused;
  }
  bool may_begin(std::uint64_t step, std::uint64_t, std::uint64_t) override {
    if (evicts_before && step == *evicts_before) {
      evicts_before.reset();
      throw outer_sync::Evicted("the others have gone on");
    }
    if (goes_on) begun.push_back(step);
    return goes_on;
  }
  bool checkpoint_due(std::uint64_t step) override { return asks_for_checkpoint == step; }
  void request_checkpoint(const std::string& reason) override { checkpoint_requests.push_back(reason); }
  void report(const outer_sync::StepReport& report) override { reports.push_back(report); }
  void report_evaluation(std::uint64_t, double, std::uint64_t) override {}
  std::string done(std::string summary, const Digest&) override {
    ended.push_back(std::move(summary));
    return problem;
  }
  void leave(const std::string& reason) noexcept override { left.push_back(reason); }

 private:
  const outer_sync::FragmentLayout& layout_;
};

class PlayedHooks final : public TrainingHooks {
 public:
  std::vector<std::string> said;
  std::vector<State> states;
  std::vector<std::uint64_t> evaluations, saves;
  std::function<void()> before_step;
  Participant* participant = nullptr;
  std::size_t joins = 0;

  void say(const std::string& text) override { said.push_back(text); }
  void entered(const Participant& its) override { states.push_back(its.state()); }
  Restored restore(std::uint64_t) override { return {}; }
  void joined() override { ++joins; }
  InnerStep train_step() override {
    if (before_step) before_step();
    return {.tokens = 1, .loss = 2.0};
  }
  void evaluate(std::uint64_t step) override { evaluations.push_back(step); }
  void save_checkpoint() override { saves.push_back(participant->outer().step()); }
};

/// One replica of two fragments, each synchronised every 6 steps; its results arrive 2 steps later.
class ParticipantTest : public testing::Test {
 protected:
  ParticipantTest() : layout_(outer_sync::layout_of(2)), local_(outer_sync::initial_parameters(layout_)) {
    experiment_.outer = outer_sync::config_of(2, 6, 2, std::nullopt);
    experiment_.run.steps = 24;
    experiment_.run.eval_every = 8;
    experiment_.run.checkpoint_every = 10;
  }

  Participant& make(bool writes_checkpoints = false) {
    auto run = std::make_unique<PlayedRun>(layout_, outer_sync::codec_plan(experiment_.outer));
    run_ = run.get();
    participant_ = std::make_unique<Participant>(
        ParticipantParts{.experiment = experiment_,
                         .name = "eu",
                         .layout = layout_,
                         .state = std::make_unique<outer_sync::OuterState>(layout_, local_, false),
                         .member = std::move(run),
                         .trace = trace_,
                         .writes_checkpoints = writes_checkpoints},
        hooks_);
    hooks_.participant = participant_.get();
    return *participant_;
  }

  /// Makes steps as a program with its own loop does, until a round is in flight.
  void train_until_in_flight() {
    auto& participant = *participant_;
    while (participant.outer().quiet()) {
      ASSERT_TRUE(participant.next());
      participant.made({.tokens = 1});
    }
  }

  Experiment experiment_;
  const outer_sync::FragmentLayout layout_;
  outer_sync::PlainParameters local_;
  Trace trace_;
  PlayedHooks hooks_;
  PlayedRun* run_ = nullptr;
  std::unique_ptr<Participant> participant_;
};

TEST_F(ParticipantTest, FinishesExactlyOnce) {
  auto& participant = make();
  participant.run({});
  EXPECT_EQ(participant.outer().step(), 24U);
  EXPECT_EQ(run_->begun.size(), 24U);
  EXPECT_EQ(run_->ended.size(), 1U);
  EXPECT_THAT(hooks_.states, ElementsAre(State::training, State::finishing, State::closed));
  EXPECT_FALSE(participant.stopped());
  EXPECT_TRUE(participant.final_hash().has_value());
  EXPECT_TRUE(participant.outer().quiet());

  EXPECT_FALSE(participant.next());
  participant.close();
  participant.drop("again");
  EXPECT_EQ(run_->ended.size(), 1U);
  EXPECT_TRUE(run_->left.empty());
}

TEST_F(ParticipantTest, EvaluatesAndSavesEachStepThatIsDueOnce) {
  auto& participant = make();
  run_->asks_for_checkpoint = 13;
  participant.run({});
  EXPECT_THAT(hooks_.evaluations, ElementsAre(0, 8, 16, 24));
  EXPECT_THAT(hooks_.saves, ElementsAre(10, 13, 20, 24));
}

TEST_F(ParticipantTest, ReportsItsSpeedWithEachStep) {
  make().run({});
  ASSERT_EQ(run_->reports.size(), 24U);
  for (const auto& report : run_->reports) {
    EXPECT_GT(report.inner_steps_per_second, 0);
    EXPECT_EQ(report.loss, 2.0);
  }
}

TEST_F(ParticipantTest, DrainedWhilePausedWithARoundInFlightItLeavesWithoutTheResume) {
  auto& participant = make();
  participant.join({});
  train_until_in_flight();
  const auto begun = run_->begun.size();
  run_->paused = true;
  run_->now.drains = "drained by the operator";
  EXPECT_FALSE(participant.next());
  EXPECT_EQ(participant.state(), State::leaving);
  EXPECT_EQ(run_->begun.size(), begun);
  EXPECT_EQ(participant.leaves(), "drained by the operator");
  EXPECT_TRUE(participant.drained());
  EXPECT_EQ(hooks_.saves.back(), participant.outer().step());
  participant.close();
  EXPECT_THAT(run_->left, ElementsAre("drained by the operator"));
  EXPECT_TRUE(run_->ended.empty());
}

TEST_F(ParticipantTest, DrainedInAStepItLeavesWhenNoRoundIsInFlight) {
  auto& participant = make();
  participant.join({});
  train_until_in_flight();
  run_->now.drains = "drained by the operator";
  while (participant.next()) participant.made({.tokens = 1});
  EXPECT_TRUE(participant.outer().quiet());
  EXPECT_LT(participant.outer().step(), 24);
  EXPECT_TRUE(participant.drained());
}

TEST_F(ParticipantTest, EvictedInMidRunItCopiesTheStateAndTrainsOn) {
  auto& participant = make();
  run_->evicts_before = 10;
  run_->others_are_at = 14;
  participant.run({});
  EXPECT_EQ(participant.states_taken(), 1U);
  EXPECT_EQ(participant.outer().step(), 24U);
  EXPECT_THAT(hooks_.states, ElementsAre(State::training, State::taking_state, State::training,
                                         State::finishing, State::closed));
  EXPECT_EQ(run_->ended.size(), 1U);
  EXPECT_THAT(hooks_.said, testing::Contains("the others have gone on"));
  EXPECT_EQ(hooks_.joins, 1U);
}

TEST_F(ParticipantTest, EvictedAndAskedToLeaveItCopiesNoState) {
  auto& participant = make();
  hooks_.before_step = [&] {
    if (participant.outer().quiet() || run_->evicts_before) return;
    participant.request_leave("the machine is needed");
    run_->evicts_before = participant.outer().step() + 2;
  };
  run_->while_copying = [] { FAIL() << "it needs no state"; };
  participant.run({});
  EXPECT_THAT(run_->left, ElementsAre("the machine is needed"));
}

TEST_F(ParticipantTest, EvictedItHasNothingToSaveUntilTheStateIsHereAgain) {
  auto& participant = make();
  participant.join({});
  train_until_in_flight();
  run_->others_are_at = 8;
  run_->others.commits = [](auto, auto) -> bool { throw outer_sync::Evicted("the others have gone on"); };
  EXPECT_FALSE(participant.save());
  EXPECT_EQ(participant.state(), State::taking_state);
  EXPECT_FALSE(participant.save()) << "asked again before the next step";
  EXPECT_EQ(participant.failure(), "");

  run_->others.commits = [](auto, auto) { return true; };
  ASSERT_TRUE(participant.next());
  EXPECT_EQ(participant.outer().step(), 8U);
  EXPECT_TRUE(participant.wants_evaluation()) << "of the step at which it came back";
  EXPECT_TRUE(participant.save());
  participant.close();
}

TEST_F(ParticipantTest, ARequestToLeaveWithoutAReasonHasOne) {
  auto& participant = make();
  participant.join({});
  participant.request_leave("");
  EXPECT_FALSE(participant.next());
  EXPECT_EQ(participant.leaves(), "asked to by its program");
  participant.close();
  EXPECT_THAT(run_->left, ElementsAre("asked to by its program"));
}

TEST_F(ParticipantTest, ANewcomerCopiesTheState) {
  auto& participant = make();
  run_->admission.how = Admission::How::joins;
  run_->others_are_at = 12;
  participant.run({});
  EXPECT_EQ(participant.first_step(), 12U);
  EXPECT_EQ(participant.states_taken(), 1U);
  EXPECT_EQ(run_->activated, 0U);
  EXPECT_EQ(run_->begun.size(), 12U);
  EXPECT_THAT(hooks_.evaluations, ElementsAre(16, 24));
}

TEST_F(ParticipantTest, ARunThatIsStoppedWhileItJoinsEndsWithoutAStep) {
  auto& participant = make();
  run_->while_joining = [&] {
    run_->now.stops_at = 0;
    run_->goes_on = false;
  };
  participant.run({});
  EXPECT_TRUE(participant.stopped());
  EXPECT_TRUE(run_->begun.empty());
  EXPECT_TRUE(run_->left.empty());
  ASSERT_EQ(run_->ended.size(), 1U);
  EXPECT_THAT(run_->ended.front(), HasSubstr(R"("stopped":true)"));
  EXPECT_TRUE(hooks_.saves.empty());
  EXPECT_EQ(participant.outer().stats().rounds, 0U);
}

TEST_F(ParticipantTest, ARequestToLeaveEndsTheWaitForTheRun) {
  auto& participant = make();
  run_->while_joining = [&] {
    participant.request_leave("the machine is needed");
    participant.look_up();
    FAIL() << "the wait continues";
  };
  participant.join({});
  EXPECT_FALSE(participant.next());
  EXPECT_EQ(participant.leaves(), "the machine is needed");
  EXPECT_EQ(run_->activated, 0U);
  participant.close();
  EXPECT_THAT(run_->left, ElementsAre("the machine is needed"));
}

TEST_F(ParticipantTest, BeforeItLeavesForASignalAllWriteACheckpoint) {
  auto& participant = make(true);
  participant.join({});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(participant.next());
    participant.made({.tokens = 1});
  }
  participant.request_leave("the machine is needed");
  ASSERT_TRUE(participant.next());
  EXPECT_EQ(run_->checkpoint_requests.size(), 1U);
  participant.made({.tokens = 1});
  run_->now.common_checkpoint = 4;
  while (participant.next()) participant.made({.tokens = 1});
  EXPECT_EQ(participant.leaves(), "the machine is needed");
  EXPECT_FALSE(participant.drained());
  EXPECT_EQ(run_->checkpoint_requests.size(), 1U);
}

TEST_F(ParticipantTest, AProgramThatEndsEarlyLeavesAndSaysWhere) {
  auto& participant = make();
  participant.join({});
  ASSERT_TRUE(participant.next());
  participant.made({.tokens = 1});
  participant.close();
  EXPECT_THAT(run_->left, ElementsAre("its program ended at step 1, and the run has 24"));
  EXPECT_EQ(participant.leaves(), "");
}

TEST_F(ParticipantTest, AnErrorOfTheTrainerIsTheReasonToLeave) {
  auto& participant = make();
  hooks_.before_step = [&] {
    if (participant.outer().step() == 3) throw Error(ErrorKind::divergence, "the loss is not finite");
  };
  EXPECT_THROW(participant.run({}), Error);
  EXPECT_THAT(run_->left, ElementsAre("the loss is not finite"));
  EXPECT_TRUE(std::isnan(run_->reports.back().loss));
  EXPECT_EQ(participant.state(), State::closed);
  EXPECT_EQ(participant.failure(), "the loss is not finite");
}

TEST_F(ParticipantTest, ReplicasThatDisagreeAreADivergence) {
  auto& participant = make();
  run_->problem = "the replicas differ";
  EXPECT_THROW(participant.run({}), Error);
  EXPECT_EQ(run_->ended.size(), 1U);
  EXPECT_THAT(run_->left, ElementsAre("the replicas differ"));
}

}  // namespace
}  // namespace isthmus::app
