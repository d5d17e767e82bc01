// Entries of network.calendar, and the times to which they apply.

#include "isthmus/outer_sync/core/calendar.h"

#include <gmock/gmock.h>

#include "isthmus/base/error.h"

namespace isthmus::outer_sync {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr WallTime monday{std::chrono::sys_days{std::chrono::year{2026} / 11 / 30}};
constexpr auto day = std::chrono::days(1);

std::string allowed(const Calendar& calendar, WallTime time) {
  const auto allowance = calendar.at(time);
  return allowance ? to_string(*allowance) : "";
}

std::string changes(const Calendar& calendar, WallTime time) {
  const auto change = calendar.next_change(time);
  return change ? clock_text(*change) : "never";
}

TEST(Calendar, SaysNothingIfItIsEmpty) {
  for (const auto* text : {"", " ", ";", "utc+2"}) {
    const auto calendar = Calendar::parse(text);
    EXPECT_TRUE(calendar.empty());
    EXPECT_FALSE(calendar.at(monday));
    EXPECT_FALSE(calendar.next_change(monday));
  }
}

TEST(Calendar, TheLastEntryThatContainsATimeApplies) {
  const auto calendar = Calendar::parse("20Mbps; mon-fri 8:00-18:00 5Mbps; wed closed; wed 12:00-12:30 auto");
  EXPECT_EQ(allowed(calendar, monday + 7h), "at most 20 Mbit/s");
  EXPECT_EQ(allowed(calendar, monday + 8h), "at most 5 Mbit/s");
  EXPECT_EQ(allowed(calendar, monday + 18h - 1s), "at most 5 Mbit/s");
  EXPECT_EQ(allowed(calendar, monday + 18h), "at most 20 Mbit/s");
  EXPECT_EQ(allowed(calendar, monday + 2 * day + 9h), "closed");
  EXPECT_EQ(allowed(calendar, monday + 2 * day + 12h), "no limit");
  EXPECT_EQ(allowed(calendar, monday + 5 * day + 9h), "at most 20 Mbit/s");
  EXPECT_TRUE(calendar.closes());
  EXPECT_FALSE(Calendar::parse("1Mbps").closes());
}

TEST(Calendar, AnEntryMayGoOverMidnightAndOverTheEndOfTheWeek) {
  const auto nights = Calendar::parse("fri-sun 22:00-6:00 closed");
  EXPECT_EQ(allowed(nights, monday + 4 * day + 22h), "closed");
  EXPECT_EQ(allowed(nights, monday + 5h), "closed") << "the night that began on Sunday";
  EXPECT_EQ(allowed(nights, monday + 6h), "");
  EXPECT_EQ(allowed(nights, monday + 4 * day + 5h), "") << "no night began on Thursday";
  const auto weekend = Calendar::parse("sat-mon 0:00-24:00 1Mbps");
  EXPECT_EQ(allowed(weekend, monday + 23h), "at most 1 Mbit/s");
  EXPECT_EQ(allowed(weekend, monday + day), "");
  EXPECT_EQ(allowed(weekend, monday - 2 * day), "at most 1 Mbit/s");
}

TEST(Calendar, TimesAreInItsZone) {
  const auto east = Calendar::parse("utc+5:30; mon 0:00-1:00 closed"),
             west = Calendar::parse("utc-8; mon 0:00-1:00 closed");
  EXPECT_EQ(allowed(east, monday - 5h - 30min), "closed");
  EXPECT_EQ(allowed(east, monday), "");
  EXPECT_EQ(allowed(west, monday + 8h), "closed");
}

TEST(Calendar, KnowsWhenItChanges) {
  const auto calendar =
      Calendar::parse("mon-fri 8:00-18:00 5Mbps; tue 0:00-24:00 5Mbps; 12:00:30-12:00:40 closed");
  EXPECT_EQ(changes(calendar, monday), "Mon 08:00 UTC");
  EXPECT_EQ(changes(calendar, monday + 8h), "Mon 12:00:30 UTC");
  EXPECT_EQ(changes(calendar, monday + 12h + 35s), "Mon 12:00:40 UTC") << "35 s past noon it is closed";
  EXPECT_EQ(changes(calendar, monday + 13h), "Mon 18:00 UTC");
  EXPECT_EQ(changes(calendar, monday + day), "Tue 12:00:30 UTC") << "8:00 changes nothing on a Tuesday";
  EXPECT_EQ(changes(calendar, monday + 4 * day + 19h), "Sat 12:00:30 UTC");
  EXPECT_EQ(changes(Calendar::parse("5Mbps"), monday), "never");
  EXPECT_EQ(changes(Calendar::parse("mon 0:00-1:00 closed"), monday + 1h), "Mon 00:00 UTC") << "a week later";
}

TEST(Calendar, RefusesEverythingElseAndSaysWhatItExpects) {
  for (const auto* text : {"5",
                           "5Mpbs",
                           "mon",
                           "funday 5Mbps",
                           "mon 8:00 5Mbps",
                           "8:00-8:00 5Mbps",
                           "24:00-2:00 5Mbps",
                           "8-9 5Mbps",
                           "8:60-9:00 5Mbps",
                           "25:00-26:00 5Mbps",
                           "8:00-18:00 mon 5Mbps",
                           "mon 8:00-9:00 5Mbps 6Mbps",
                           "-1Mbps",
                           "mon- 5Mbps",
                           "5Mbps; utc+2",
                           "utc+2 5Mbps",
                           "utc+15; 5Mbps",
                           "utc/2; 5Mbps",
                           "0bps",
                           "1e30Mbps"}) {
    try {
      static_cast<void>(Calendar::parse(text));
      ADD_FAILURE() << "'" << text << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("network.calendar: '"), HasSubstr("expected")));
    }
  }
  EXPECT_THROW(static_cast<void>(Calendar::parse(std::string(2000, ' '))), Error);
  std::string many;
  for (int i = 0; i < 65; ++i) many += "1Mbps;";
  EXPECT_THROW(static_cast<void>(Calendar::parse(many)), Error);
}

}  // namespace
}  // namespace isthmus::outer_sync
