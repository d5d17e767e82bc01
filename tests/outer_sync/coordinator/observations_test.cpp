#include "isthmus/outer_sync/protocol/coordinator/roster/observations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/steering/change_requests.h"
#include "isthmus/outer_sync/protocol/coordinator/steering/checkpoint_orders.h"

namespace isthmus::outer_sync::protocol {
namespace {

using namespace std::chrono_literals;
using testing::IsEmpty;

TEST(RateMeter, MeasuresOverAtLeastTwoSeconds) {
  RateMeter rates;
  rates.add(10s, 1000, 5);
  rates.add(11s, 5000, 6);
  EXPECT_EQ(rates.bytes_per_second(), 0) << "one second is too short";
  rates.add(12s, 9000, 9);
  EXPECT_EQ(rates.bytes_per_second(), 4000);
  EXPECT_EQ(rates.steps_per_second(), 2);
}

TEST(RateMeter, BeginsAgainWithAMemberThatHasStartedAgain) {
  RateMeter rates;
  rates.add(10s, 1000, 5);
  rates.add(20s, 10, 5);
  EXPECT_EQ(rates.bytes_per_second(), 0);
  rates.add(22s, 30, 7);
  EXPECT_EQ(rates.bytes_per_second(), 10);
}

TEST(ChainReports, NamesTheFirstThatReportedAnotherHash) {
  ChainReports chains;
  EXPECT_FALSE(chains.add("a", {{3, 7}, {2, 9}}));
  EXPECT_FALSE(chains.add("b", {{3, 7}, {1, 1}}));
  const auto conflict = chains.add("c", {{3, 7}, {2, 8}});
  ASSERT_TRUE(conflict);
  EXPECT_EQ(conflict->other, "a");
  EXPECT_EQ(conflict->fragment, 1U);
  EXPECT_EQ(conflict->round, 2U);
}

TEST(ChainReports, ComparesObserversWithoutKeepingTheirHashes) {
  ChainReports chains;
  EXPECT_FALSE(chains.first_other({{3, 7}})) << "nothing is known yet";
  EXPECT_FALSE(chains.add("a", {{3, 7}}));
  EXPECT_FALSE(chains.first_other({{3, 7}}));
  EXPECT_FALSE(chains.first_other({{4, 1}}));
  EXPECT_TRUE(chains.first_other({{3, 6}}));
  EXPECT_FALSE(chains.add("b", {{4, 2}})) << "the observer's hash counted";
  chains.clear();
  EXPECT_FALSE(chains.first_other({{3, 6}}));
}

TEST(ChainReports, KeepsTheNewestRoundsOnly) {
  ChainReports chains;
  for (Round round = 1; round <= 20; ++round) EXPECT_FALSE(chains.add("a", {{round, round}}));
  EXPECT_FALSE(chains.first_other({{12, 0}})) << "it is forgotten";
  EXPECT_TRUE(chains.first_other({{13, 0}}));
}

TEST(Evaluations, AreCompleteWhenNoMemberIsMissing) {
  Evaluations evaluations;
  EXPECT_TRUE(evaluations.add("a", {.step = 5, .sum_nats = 6, .tokens = 2}));
  EXPECT_FALSE(evaluations.add("a", {.step = 5, .sum_nats = 100, .tokens = 2})) << "it counts once";
  const auto both_missing = [](const std::vector<std::string>& by) { return by.size() < 2; };
  EXPECT_THAT(evaluations.take_complete(both_missing), IsEmpty());
  EXPECT_TRUE(evaluations.add("b", {.step = 5, .sum_nats = 2, .tokens = 2}));
  const auto complete = evaluations.take_complete(both_missing);
  ASSERT_EQ(complete.size(), 1U);
  EXPECT_EQ(complete[0].step, 5U);
  EXPECT_EQ(complete[0].loss, 2);
  EXPECT_THAT(evaluations.take_complete(both_missing), IsEmpty()) << "it is reported once";
}

TEST(Evaluations, ThatSomeNeverReportAreBounded) {
  Evaluations evaluations;
  for (std::uint64_t step = 1; step <= 100; ++step)
    EXPECT_TRUE(evaluations.add("a", {.step = step, .sum_nats = 1, .tokens = 1}));
  const auto complete = evaluations.take_complete([](const auto&) { return false; });
  ASSERT_EQ(complete.size(), 16U);
  EXPECT_EQ(complete.front().step, 85U);
}

TEST(GatheredRecords, RepeatsAndGapsAreRecognised) {
  GatheredRecords gathered;
  const MemberInfo a{"a", 7, "", 0};
  const std::vector<Record> three(3);
  auto news = gathered.add(a, {.first = 0, .records = three});
  ASSERT_TRUE(news);
  EXPECT_EQ(news->records.size(), 3U);
  EXPECT_FALSE(gathered.add(a, {.first = 0, .records = three})) << "all were known";
  news = gathered.add(a, {.first = 2, .records = three});
  ASSERT_TRUE(news);
  EXPECT_EQ(news->records.size(), 2U);
  EXPECT_EQ(news->left_out, 0U);
  news = gathered.add(a, {.first = 9, .records = three});
  ASSERT_TRUE(news);
  EXPECT_EQ(news->left_out, 4U);
  EXPECT_EQ(gathered.next(a), 12U);
  const MemberInfo again{"a", 8, "", 0};
  news = gathered.add(again, {.first = 0, .records = three});
  ASSERT_TRUE(news) << "a new incarnation counts from zero";
  EXPECT_EQ(gathered.next(again), 3U);
}

TEST(Bars, LastLongerEachTime) {
  Bars bars;
  const auto known = [](const std::string&) { return true; };
  EXPECT_FALSE(bars.contains("a", 0s));
  bars.add("a", 100s, 1s);
  EXPECT_TRUE(bars.contains("a", 105s));
  EXPECT_FALSE(bars.contains("a", 106s));
  EXPECT_FALSE(bars.take_over(105s, known));
  EXPECT_EQ(bars.take_over(106s, known), "a");
  EXPECT_FALSE(bars.take_over(107s, known)) << "it is reported once";
  bars.add("a", 200s, 1s);
  EXPECT_TRUE(bars.contains("a", 211s));
  EXPECT_FALSE(bars.contains("a", 212s));
  bars.add("a", 300s, 1s);
  bars.add("a", 300s, 1s);
  EXPECT_FALSE(bars.contains("a", 324s)) << "no longer than that";
  EXPECT_FALSE(bars.take_over(324s, [](const std::string&) { return false; }));
}

TEST(CheckpointOrders, AreDueAnIntervalAfterTheLastCompleteOne) {
  CheckpointOrders orders(60s);
  EXPECT_FALSE(orders.is_due(0s));
  EXPECT_FALSE(orders.is_due(59s));
  EXPECT_TRUE(orders.is_due(60s));
  orders.order(10, 60s, false);
  EXPECT_TRUE(orders.is_open());
  EXPECT_FALSE(orders.is_due(119s));
  EXPECT_TRUE(orders.note_complete(10, 70s));
  EXPECT_FALSE(orders.is_open());
  EXPECT_FALSE(orders.is_due(129s));
  EXPECT_TRUE(orders.is_due(130s));
  EXPECT_FALSE(orders.note_complete(10, 131s)) << "it was known";
}

TEST(CheckpointOrders, WaitLongerWhileDisksAreSlow) {
  CheckpointOrders orders(10s);
  orders.order(1, 0s, true);
  EXPECT_FALSE(orders.is_due(19s));
  EXPECT_TRUE(orders.is_due(20s));
  for (int n = 0; n < 8; ++n) orders.order(2, 100s, true);
  EXPECT_FALSE(orders.is_due(259s));
  EXPECT_TRUE(orders.is_due(260s)) << "sixteen intervals at most";
}

TEST(CheckpointOrders, LeaveMoreStepsAfterATrainerHasMissedOne) {
  CheckpointOrders orders(0s);
  EXPECT_FALSE(orders.is_due(1000s)) << "only on request";
  const auto first = orders.steps_to_spare();
  orders.order(5, 0s, false);
  orders.missed();
  EXPECT_EQ(orders.steps_to_spare(), 2 * first);
  EXPECT_TRUE(orders.note_complete(5, 1s));
  EXPECT_EQ(orders.steps_to_spare(), first);
  orders.order(9, 2s, false);
  orders.forget();
  EXPECT_EQ(orders.ordered(), 0U);
  EXPECT_EQ(orders.complete(), 5U);
}

using What = ChangeRequest::What;

ChangeRequest change_at(std::uint64_t step) {
  return {.what = What::change, .from = 1, .by = "ann", .change = {step, {{"outer.sync_every", "20"}}}};
}

TEST(ChangeRequests, AreBroughtByAView) {
  ChangeRequests requests;
  requests.add(change_at(0));
  EXPECT_EQ(requests.pending_changes().size(), 1U);
  Settings settings;
  EXPECT_THAT(requests.put_into(settings, 4, 30, 100), IsEmpty());
  ASSERT_EQ(settings.changes.size(), 1U);
  EXPECT_EQ(settings.changes[0].step, 30U);
  EXPECT_THAT(requests.pending_changes(), IsEmpty());
  EXPECT_THAT(requests.take_pending(), IsEmpty()) << "it is announced";
  const auto begun = requests.take_begun();
  ASSERT_EQ(begun.size(), 1U);
  EXPECT_EQ(begun[0].step, 30U);
  EXPECT_TRUE(requests.empty());
}

TEST(ChangeRequests, AreAnnouncedAgainIfTheirViewBeganAtNoMember) {
  ChangeRequests requests;
  requests.add(change_at(0));
  Settings lost;
  EXPECT_THAT(requests.put_into(lost, 4, 30, 100), IsEmpty());
  Settings settings;
  EXPECT_THAT(requests.put_into(settings, 5, 40, 100), IsEmpty());
  ASSERT_EQ(settings.changes.size(), 1U);
  EXPECT_EQ(settings.changes[0].step, 40U);
  EXPECT_THAT(requests.put_into(settings, 6, 50, 100), IsEmpty());
  EXPECT_EQ(settings.changes.size(), 1U) << "the settings have it already";
}

TEST(ChangeRequests, ThatComeTooLateAreRefused) {
  ChangeRequests requests;
  requests.add(change_at(20));
  requests.add(change_at(100));
  requests.add({.what = What::pause, .from = 2, .by = "bob", .change = {}});
  Settings settings;
  const auto refused = requests.put_into(settings, 4, 30, 100);
  ASSERT_EQ(refused.size(), 2U);
  EXPECT_THAT(refused[0].problem, testing::HasSubstr("the earliest possible step is 30"));
  EXPECT_THAT(refused[1].problem, testing::HasSubstr("the run ends at step 100"));
  EXPECT_THAT(settings.changes, IsEmpty());
  EXPECT_EQ(settings.pause_after, 30U);
}

}  // namespace
}  // namespace isthmus::outer_sync::protocol
