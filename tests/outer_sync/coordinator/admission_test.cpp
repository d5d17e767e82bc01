// Admission as a function of a hello and the state of the run.

#include "isthmus/outer_sync/protocol/coordinator/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "coordinator_support.h"

namespace isthmus::outer_sync::protocol {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Cause = Verdict::Cause;

/// A run of three planned trainers, one of which, "a", is here.
class Admission : public testing::Test {
 protected:
  Admission() { roster.add(1, hello("a")); }
  static Hello hello(const std::string& name) { return CoordinatorHarness::hello(name); }
  [[nodiscard]] RunAtHello run() const {
    return {.options = options,
            .roster = roster,
            .announced = announced,
            .judge = judge,
            .bounds = {},
            .first_view_forms = first_view_forms,
            .planned = 3,
            .goes_back_to = goes_back_to,
            .is_ending = is_ending,
            .token_is_known = true,
            .number = announced.empty() ? ViewNumber{0} : announced.newest(),
            .observers = observers,
            .is_observed_under_the_name = is_observed_under_the_name};
  }
  [[nodiscard]] Cause cause(const Hello& hello) const { return admit(hello, run()).cause; }
  [[nodiscard]] Cause cause_for_observer(const Hello& hello) const {
    return admit_observer(hello, run()).cause;
  }
  /// View 5 of "a" and "b" was announced.
  void announce() {
    first_view_forms = false;
    options.last =
        LastView{.number = 5, .members = {hello("a").member, hello("b").member}, .token = options.token};
    announced.add(*options.last);
  }
  /// "b" in view 5.
  [[nodiscard]] Hello in_view() const {
    auto back = hello("b");
    back.activated = back.sealed = 5;
    back.token = options.token;
    back.fresh = false;
    return back;
  }

  CoordinatorOptions options = CoordinatorHarness::default_options(3);
  Roster roster;
  AnnouncedViews announced;
  SettingsJudge judge{nullptr};
  bool first_view_forms = true, is_ending = false;
  std::optional<CheckpointId> goes_back_to;
  std::size_t observers = 0;
  bool is_observed_under_the_name = false;
};

TEST_F(Admission, AnEqualReplicaIsAdmittedWithoutAText) {
  const auto verdict = admit(hello("b"), run());
  EXPECT_EQ(verdict.answer, Verdict::Answer::admit);
  EXPECT_EQ(verdict.cause, Cause::none);
  EXPECT_THAT(verdict.text, IsEmpty());
}

TEST_F(Admission, ARefusalHasItsCause) {
  const auto of = [this](auto change) {
    auto other = hello("b");
    change(other);
    const auto verdict = admit(other, run());
    EXPECT_EQ(verdict.answer, Verdict::Answer::refuse);
    EXPECT_FALSE(verdict.text.empty());
    return verdict.cause;
  };
  EXPECT_EQ(of([](Hello& other) { other.protocol = other.oldest = 77; }), Cause::other_version);
  EXPECT_EQ(of([](Hello& other) { other.numerics = 78; }), Cause::other_version);
  EXPECT_EQ(of([](Hello& other) { other.run = "run-2"; }), Cause::other_run);
  EXPECT_EQ(of([](Hello& other) { other.member.name = ""; }), Cause::broken_hello);
  EXPECT_EQ(of([](Hello& other) { other.member.name = "operator-b"; }), Cause::operators_name);
  EXPECT_EQ(of([](Hello& other) { other.config[0].second = "60"; }), Cause::other_config);
  EXPECT_EQ(of([](Hello& other) { other.member.name = "a", other.member.incarnation = 0; }),
            Cause::name_is_taken);
  EXPECT_EQ(of([](Hello& other) { other.tokenizer = digest_of(9), other.model = digest_of(9); }),
            Cause::other_tokenizer);
  EXPECT_EQ(of([](Hello& other) { other.model = digest_of(9); }), Cause::other_model);
  EXPECT_EQ(of([](Hello& other) { other.resume = true; }), Cause::resume_differs);
}

TEST_F(Admission, ANewProcessTakesOverItsNameWhateverItResumes) {
  auto again = hello("a");
  again.member.incarnation = 2;
  again.resume = true;
  EXPECT_EQ(cause(again), Cause::none);
}

TEST_F(Admission, TheFirstViewHasRoomForThePlannedTrainersOnly) {
  roster.add(2, hello("b"));
  EXPECT_EQ(cause(hello("c")), Cause::none);
  roster.add(3, hello("c"));
  const auto verdict = admit(hello("d"), run());
  EXPECT_EQ(verdict.answer, Verdict::Answer::retry);
  EXPECT_EQ(verdict.cause, Cause::not_of_first_view);
  EXPECT_EQ(cause(hello("c")), Cause::none) << "it has its place";
  auto reducer = hello("r");
  reducer.member.kind = MemberKind::reducer;
  EXPECT_EQ(cause(reducer), Cause::none);
}

TEST_F(Admission, ARunThatCannotLoseMembersTakesNoneLater) {
  options.elastic = false;
  EXPECT_EQ(cause(hello("b")), Cause::none);
  auto reducer = hello("r");
  reducer.member.kind = MemberKind::reducer;
  EXPECT_EQ(cause(reducer), Cause::no_use_for_reducers);
  announce();
  EXPECT_EQ(cause(hello("c")), Cause::no_late_joiners);
  EXPECT_EQ(cause_for_observer(hello("o")), Cause::no_rounds_to_follow);
}

TEST_F(Admission, AnEndingRunTakesBackMembersButNoNewcomers) {
  announce();
  is_ending = true;
  EXPECT_EQ(cause(hello("c")), Cause::run_is_ending);
  EXPECT_EQ(cause(in_view()), Cause::none);
}

TEST_F(Admission, AMemberOfAnotherRunOfThisNameMustStartAgain) {
  announce();
  auto other = in_view();
  other.token = digest_of(1);
  EXPECT_EQ(cause(other), Cause::other_token);
}

TEST_F(Admission, AClaimOfAViewThatWasNotAnnouncedIsNotBelieved) {
  announce();
  auto claim = in_view();
  claim.activated = claim.sealed = 6;
  const auto verdict = admit(claim, run());
  EXPECT_EQ(verdict.answer, Verdict::Answer::retry);
  EXPECT_EQ(verdict.cause, Cause::unknown_view);
  auto other = in_view();
  other.member.name = "c";
  EXPECT_EQ(cause(other), Cause::unknown_view) << "view 5 was announced, but not to c";
  auto high = in_view();
  high.sealed = highest_view;
  EXPECT_EQ(cause(high), Cause::unknown_view) << "too few numbers would remain";
}

TEST_F(Admission, SettingsOtherThanTheAnnouncedOnesAreABreach) {
  announce();
  auto other = in_view();
  other.settings.changes = {{3, {{"key", "1"}}}};
  const auto verdict = admit(other, run());
  EXPECT_EQ(verdict.cause, Cause::invalid_settings);
  EXPECT_THAT(verdict.text, HasSubstr("settings of view 5"));
}

TEST_F(Admission, ACoordinatorWithoutMemoryAsksForARecovery) {
  const auto verdict = admit(in_view(), run());
  EXPECT_EQ(verdict.answer, Verdict::Answer::retry);
  EXPECT_EQ(verdict.cause, Cause::forgotten_run);
  EXPECT_THAT(verdict.text, HasSubstr("--recover"));
}

TEST_F(Admission, AMemberFromBeforeAReturnToCheckpointsStartsAgain) {
  announce();
  auto late = in_view();
  options.token = token_after(token_after(options.token));
  const auto verdict = admit(late, run());
  EXPECT_EQ(verdict.answer, Verdict::Answer::start_again);
  EXPECT_EQ(verdict.cause, Cause::left_behind);
}

TEST_F(Admission, AfterAReturnTheFirstViewIsOfTrainersWithThatCheckpoint) {
  announce();
  first_view_forms = true;
  goes_back_to = {100, 7};
  auto fresh = hello("b");
  EXPECT_EQ(cause(fresh), Cause::not_of_first_view);
  fresh.resume = true;
  fresh.checkpoints = {{100, 8}};
  EXPECT_EQ(cause(fresh), Cause::not_of_first_view) << "its checkpoint has another content";
  fresh.checkpoints.push_back({100, 7});
  EXPECT_EQ(cause(fresh), Cause::none);
  fresh.fresh = false;
  EXPECT_EQ(cause(fresh), Cause::left_behind);
}

TEST_F(Admission, AnyFreshTrainerHasTheInitialParameters) {
  announce();
  first_view_forms = true;
  goes_back_to = CheckpointId{};
  for (const bool resumes : {false, true}) {
    auto fresh = hello("b");
    fresh.resume = resumes;
    EXPECT_EQ(cause(fresh), Cause::none);
  }
}

TEST_F(Admission, ObserversHaveNamesOfTheirOwnAndALimit) {
  EXPECT_EQ(cause_for_observer(hello("o")), Cause::none);
  EXPECT_EQ(cause_for_observer(hello("a")), Cause::name_is_taken);
  auto other = hello("o");
  other.model = digest_of(9);
  EXPECT_EQ(cause_for_observer(other), Cause::other_model);
  is_observed_under_the_name = true;
  EXPECT_EQ(cause_for_observer(hello("o")), Cause::name_is_taken);
  is_observed_under_the_name = false;
  observers = max_observers;
  EXPECT_EQ(cause_for_observer(hello("o")), Cause::too_many);
}

TEST(Announced, AViewMayBeginForItsMembersOnly) {
  AnnouncedViews announced;
  const auto a = CoordinatorHarness::hello("a"), b = CoordinatorHarness::hello("b");
  EXPECT_TRUE(may_have_begun(a, 0, announced));
  EXPECT_FALSE(may_have_begun(a, 1, announced));
  announced.add({.number = 3, .members = {a.member}, .token = {}});
  EXPECT_TRUE(may_have_begun(a, 3, announced));
  EXPECT_FALSE(may_have_begun(b, 3, announced));
  auto before = b;
  before.sealed = 2;
  EXPECT_TRUE(may_have_begun(before, 2, announced)) << "it was announced too long ago to be known";
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
