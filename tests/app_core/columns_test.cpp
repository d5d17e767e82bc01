// Tables with the longest possible names fit 80 columns, and keep names apart.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "cli/live/top_screen.h"
#include "coordinator/run_status.h"
#include "run/metrics/diagnosis.h"
#include "run/metrics/summary.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr std::size_t members = 16;

/// 64 characters, the longest name of a run or a member.
std::string long_name(std::size_t number) {
  auto end = "-" + std::to_string(100 + number);
  return std::string(64 - end.size(), 'n') + end;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

void expect_narrow(const std::vector<std::string>& lines) {
  for (const auto& line : lines) EXPECT_LE(columns_of(line), 80U) << line;
}

/// A status of a long run with large numbers.
Json status() {
  Json out{
      {"run", long_name(0)},
      {"phase", "changing view"},
      {"obstacle", "fewer than 12 of the 16 replicas of the view have answered within 30 s: " + long_name(1)},
      {"view", 123},
      {"step", 12'345'678},
      {"steps", 99'999'999},
      {"replicas", members},
      {"participating", members},
      {"checkpoint", 12'345'000},
      {"evaluation", {{"step", 12'345'600}, {"loss", 2.5}}},
      {"outer_steps", nullptr},
      {"members", Json::array()},
      {"rounds", Json::array()},
      {"relays", Json::array({{{"between", {long_name(1), long_name(2)}}, {"by", long_name(3)}}})},
      {"slow_paths", Json::array({{{"from", long_name(1)}, {"to", long_name(2)}}})},
      {"settings",
       {{"changes", Json::array({{{"after_step", 12'345'000},
                                  {"values", {{"outer.sync_every", std::string(30, '1')}}}}})},
        {"paused_after", nullptr}}}};
  for (std::size_t i = 0; i < members; ++i) {
    out["members"].push_back({{"name", long_name(i)},
                              {"site", long_name(i)},
                              {"kind", "trainer"},
                              {"state", "joining"},
                              {"step", 123'456'789},
                              {"loss", i == 1 ? 1.5e12 : 123.45678},
                              {"utilization", 1.0},
                              {"tokens_per_second", 999'900'000},
                              {"bytes_sent", 999'900'000'000'000},
                              {"wire_bytes_per_second", 124'000'000'000},
                              {"rounds_lag", std::vector<int>(24, i == 2 ? 12'345 : 0)},
                              {"checkpoint", 12'345'000},
                              {"silent_seconds", i == 3 ? 86'400 : 0}});
  }
  return out;
}

TEST(Columns, ALongNameLosesItsMiddle) {
  EXPECT_EQ(short_name("replica-us-east-17", 18), "replica-us-east-17");
  EXPECT_EQ(short_name("replica-us-east-17", 12), "repli~ast-17");
  EXPECT_EQ(short_name("replica-us-east-17", 1), "~");
  EXPECT_EQ(short_name("replica-us-east-17", 0), "");
  EXPECT_EQ(short_name("äöüäöü", 3), "ä~ü") << "characters of two bytes stay whole";
}

TEST(Columns, TextBreaksAtSpaces) {
  EXPECT_THAT(wrapped_lines("one two three", 2, 7), ElementsAre("one two", "  three"));
  EXPECT_THAT(wrapped_lines("  one  two", 4, 10), ElementsAre("  one  two"));
  EXPECT_THAT(wrapped_lines("a /long/path/that/stays b", 2, 10),
              ElementsAre("a", "  /long/path/that/stays", "  b"));
  EXPECT_THAT(wrapped_lines("  /long/path/that/stays", 2, 10), ElementsAre("  /long/path/that/stays"));
  EXPECT_THAT(wrapped_lines("one\ntwo", 2, 10), ElementsAre("one", "  two"));
  EXPECT_THAT(wrapped_lines("", 2, 10), ElementsAre(""));
  EXPECT_THAT(wrapped_lines("one two", 20, 10), ElementsAre("one two"));
  EXPECT_THAT(wrapped_lines("one two three", 20, 5),
              ElementsAre("one", std::string(20, ' ') + "two", std::string(20, ' ') + "three"));
}

TEST(Columns, TopNamesEveryMember) {
  const auto screen = top_screen(status(), {}, 80, 40);
  expect_narrow(screen);
  std::set<std::string> names;
  for (const auto& line : screen)
    if (line.starts_with("nnnnn~")) names.insert(line.substr(0, 12));
  EXPECT_THAT(names, SizeIs(members)) << "names that are cut must still differ";
  EXPECT_THAT(screen, Contains(HasSubstr("silent 24h")));
  EXPECT_THAT(screen, Contains(HasSubstr("checkpoint 12345000")));
  EXPECT_THAT(screen, Contains(HasSubstr(long_name(3) + " relays")));
}

TEST(Columns, TheStatusOfCtlNamesEveryMember) {
  const auto table = lines(status_table(status()));
  expect_narrow(table);
  std::set<std::string> names;
  for (const auto& line : table)
    if (line.starts_with("nnnnnn~")) names.insert(line.substr(0, 14));
  EXPECT_THAT(names, SizeIs(members));
  EXPECT_THAT(status_table(status()), ContainsRegex("checkpoint[ \n]+12345000"));
}

TEST(Columns, TheDoctorNamesBothEndsOfAConnection) {
  Diagnosis diagnosis;
  for (std::size_t i = 0; i < members; ++i) {
    MachineReport machine{.name = long_name(i)};
    machine.add({"certificates", Level::ok});
    machine.add({"data", static_cast<Level>(i % 3),
                 "/data/corpus has " + std::string(60, 'x') + " tokens of it",
                 "correct data.path, or copy the corpus to this machine before the run begins"});
    diagnosis.machines.push_back(machine);
  }
  diagnosis.paths.push_back(
      {.from = long_name(1), .to = long_name(2), .address = "a:1", .bytes_per_second = 1e9});
  diagnosis.paths.push_back(
      {.from = "eu", .to = long_name(2), .address = "a:1", .back_bytes_per_second = 1e9});
  const auto plain = lines(table_of(diagnosis, false));
  for (const auto& line : plain) {
    if (line.find("xxx") == line.npos) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
  EXPECT_THAT(plain, Contains(AllOf(StartsWith("nnnnnn~nnn-101 -> nnnnnnn~nnn-102 "), HasSubstr("ok"))));
  EXPECT_THAT(plain, Contains(StartsWith("eu -> nnnnnnnnnnnnn~nnnnnnnnn-102 ")));
  EXPECT_THAT(plain, Contains(HasSubstr("FAIL " + long_name(2) + ", data:"))) << "a word says what red means";
}

TEST(Columns, TheSummaryBreaksARow) {
  Experiment experiment;
  experiment.run.name = long_name(0);
  RunReport run;
  for (std::size_t i = 0; i < members; ++i) {
    MemberReport member;
    member.name = long_name(i);
    member.parameters = 1'234'567'890;
    member.last_step = 99'999'999;
    member.tokens = 999'999'999'999'999;
    member.train_seconds = 9'999'999;
    member.stopped = true;
    member.global_hash = std::string(64, '0');
    run.members.push_back(member);
    run.gradients[member.name] = {.norm = 1, .cosine = 0.5, .rounds = 9, .outlier_rounds = 3};
  }
  run.evaluations = {{0, 10.5}, {99'999'999, 2.5}};
  for (const auto& line : lines(summary_table(summary_json(experiment, run), ""))) {
    if (!line.starts_with("  files")) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

}  // namespace
}  // namespace isthmus::app
