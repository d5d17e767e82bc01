#include "isthmus/base/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {
namespace {

using Json = nlohmann::json;
using Row = Trace::Row;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

Trace::Clock::time_point at(nanoseconds since_start) { return Trace::Clock::time_point(since_start); }

std::vector<Json> events_of(const std::filesystem::path& file, const std::string& phase) {
  std::vector<Json> found;
  const auto all = Json::parse(read_all(file));
  for (const auto& event : all) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

TEST(Trace, ACompleteEventHasItsTimesToTheNanosecond) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  trace.complete(Row::outer, "encode", at(nanoseconds(1'234'567'891)), at(nanoseconds(1'234'570'000)),
                 R"({"round":3})");
  trace.close();
  EXPECT_NE(read_all(folder / "t.json").find(R"("ts":1234567.891,"dur":2.109)"), std::string::npos);
  const auto events = events_of(folder / "t.json", "X");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["name"], "encode");
  EXPECT_EQ(events[0]["tid"], static_cast<int>(Row::outer));
  EXPECT_EQ(events[0]["args"]["round"], 3);
}

TEST(Trace, AnIntervalThatEndsBeforeItBeginsHasLengthZero) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  trace.complete(Row::train, "step", at(microseconds(5)), at(microseconds(4)));
  trace.close();
  EXPECT_EQ(events_of(folder / "t.json", "X").at(0)["dur"], 0.0);
}

TEST(Trace, AsyncEventsComeInPairs) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  trace.async(Row::send, "fragment", 7, at(microseconds(10)), at(microseconds(30)), R"({"bytes":9})");
  trace.async(Row::send, "fragment", 8, at(microseconds(20)), at(microseconds(40)));
  trace.close();
  const auto begins = events_of(folder / "t.json", "b");
  const auto ends = events_of(folder / "t.json", "e");
  ASSERT_EQ(begins.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    for (const auto* key : {"id", "cat", "name", "pid", "tid"}) {
      EXPECT_EQ(begins[i][key], ends[i][key]) << "the viewer pairs them by " << key;
    }
  }
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
  EXPECT_EQ(begins[0]["ts"], 10.0);
  EXPECT_EQ(ends[0]["ts"], 30.0);
  EXPECT_EQ(begins[0]["args"]["bytes"], 9);
}

TEST(Trace, RowsAndTheProcessHaveNames) {
  const TemporaryFolder folder;
  Trace(folder / "t.json", "par\"is\n").close();
  std::map<int, std::string> rows;
  std::string process;
  bool has_clocks = false;
  for (const auto& event : events_of(folder / "t.json", "M")) {
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
    if (event["name"] == "process_name") process = event["args"]["name"];
    if (event["name"] == "clock_sync") {
      has_clocks = true;
      EXPECT_GT(event["args"]["unix_us"], 1e15);
      EXPECT_GT(event["args"]["ts"], 0.0);
    }
  }
  EXPECT_EQ(process, "par\"is\n");
  EXPECT_EQ(rows[static_cast<int>(Row::train)], "train");
  EXPECT_EQ(rows[static_cast<int>(Row::gpu_transfer)], "gpu_transfer");
  EXPECT_EQ(rows[static_cast<int>(Row::writer)], "writer");
  EXPECT_EQ(rows[static_cast<int>(Row::control)], "control");
  EXPECT_EQ(rows[static_cast<int>(Row::gpu)], "gpu");
  EXPECT_EQ(rows.size(), 10U);
  EXPECT_TRUE(has_clocks) << "without the wall clock, traces of two machines cannot be aligned";
}

TEST(Trace, ReplicasHaveTheirOwnProcessIds) {
  const TemporaryFolder folder;
  std::set<int> ids;
  for (const auto* name : {"paris", "lyon", "nice", ""}) {
    Trace(folder / "t.json", name).close();
    ids.insert(events_of(folder / "t.json", "M").at(0)["pid"].get<int>());
  }
  EXPECT_EQ(ids.size(), 4U);
  EXPECT_GT(*ids.begin(), 0);
  EXPECT_LE(*ids.rbegin(), 0x7fffff);
}

TEST(Trace, NamesAreEscaped) {
  const TemporaryFolder folder;
  const std::vector<std::string> names = {"quote \" slash \\", "line\nbreak\ttab", "caf\xc3\xa9",
                                          std::string("nul\0", 4)};
  Trace trace(folder / "t.json", "paris");
  for (const auto& name : names) trace.instant(Row::train, name);
  trace.instant(Row::train, "not utf-8 \xff");
  trace.counter("a \"counter\"", 1.5);
  trace.close();
  const auto events = events_of(folder / "t.json", "i");
  ASSERT_EQ(events.size(), names.size() + 1);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(events[i]["name"], names[i]);
  EXPECT_EQ(events_of(folder / "t.json", "C").at(0)["args"]["value"], 1.5);
}

TEST(Trace, ACounterThatIsNotFiniteLeavesAGap) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  trace.counter("loss", std::numeric_limits<double>::quiet_NaN());
  trace.counter("loss", std::numeric_limits<double>::infinity());
  trace.counter("loss", 1e300);
  trace.close();
  EXPECT_EQ(events_of(folder / "t.json", "C").size(), 1U);
}

TEST(Trace, AScopeMeasuresItsLifetime) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  const auto before = Trace::Clock::now();
  {
    const Trace::Scope scope(trace, Row::train, "step");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  trace.close();
  const auto event = events_of(folder / "t.json", "X").at(0);
  EXPECT_GE(event["dur"], 2000.0);
  const std::chrono::duration<double, std::micro> earliest = before.time_since_epoch();
  EXPECT_GE(event["ts"].get<double>() + 1, earliest.count());
}

TEST(Trace, ManyThreadsRecordAtOnce) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        trace.complete(static_cast<Row>(t), "work", at(microseconds(i)), at(microseconds(i + 1)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  trace.close();
  std::map<int, std::vector<double>> times;
  for (const auto& event : events_of(folder / "t.json", "X")) times[event["tid"]].push_back(event["ts"]);
  for (int t = 0; t < 4; ++t) {
    ASSERT_EQ(times[t].size(), 500U) << "row " << t << " lost events";
    EXPECT_TRUE(std::is_sorted(times[t].begin(), times[t].end()));
  }
}

TEST(Trace, ClosingWhileOthersRecordLosesOnlyWhatComesLater) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  std::thread recorder([&] {
    for (int i = 0; i < 20'000; ++i) trace.instant(Row::train, "tick");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  trace.close();
  recorder.join();
  EXPECT_TRUE(Json::accept(read_all(folder / "t.json"))) << read_all(folder / "t.json").substr(0, 1000);
}

TEST(Trace, StopsWhenFullAndSaysSo) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris", 5);
  for (int i = 0; i < 4; ++i) trace.counter("n", i);
  trace.async(Row::send, "fragment", 1, at(microseconds(1)),
              at(microseconds(2)));  // space for one of the two events
  for (int i = 0; i < 4; ++i) trace.counter("n", i);
  trace.close();
  EXPECT_EQ(events_of(folder / "t.json", "C").size(), 4U);
  EXPECT_TRUE(events_of(folder / "t.json", "b").empty()) << "half a pair was written";
  const auto notes = events_of(folder / "t.json", "i");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0]["name"], "trace is full: recording stopped");
}

TEST(Trace, WhatDoesNotFitIntoMemoryIsDroppedAndCounted) {
  const TemporaryFolder folder;
  const std::string huge(std::size_t{64} << 20, 'x');
  Trace trace(folder / "t.json", "paris");
  trace.instant(Row::train, huge);
  trace.instant(Row::train, "small");
  trace.close();
  const auto events = events_of(folder / "t.json", "i");
  ASSERT_EQ(events.size(), 2U);
  // The writer may write the note about the first event before the second event is recorded.
  const auto& small = events[0]["name"] == "small" ? events[0] : events[1];
  const auto& note = events[0]["name"] == "small" ? events[1] : events[0];
  EXPECT_EQ(small["name"], "small");
  EXPECT_EQ(note.value("/args/events"_json_pointer, 0), 1) << note;
}

TEST(Trace, IsOnDiskSoonAndReadableWithoutItsEnd) {
  const TemporaryFolder folder;
  Trace trace(folder / "t.json", "paris");
  trace.instant(Row::train, "before the crash");
  const auto give_up = Trace::Clock::now() + std::chrono::seconds(20);
  std::string text;
  while (text.find("before the crash") == std::string::npos && Trace::Clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    text = read_all(folder / "t.json");
  }
  EXPECT_TRUE(Json::accept(text + "]")) << "viewers add the bracket and nothing else";
  EXPECT_NE(text.find("before the crash"), std::string::npos) << "the writer thread was not woken";
}

TEST(Trace, ADefaultOneRecordsNothing) {
  Trace trace;
  trace.complete(Row::train, "step", Trace::Clock::now(), Trace::Clock::now());
  trace.async(Row::send, "fragment", 1, Trace::Clock::now(), Trace::Clock::now());
  trace.instant(Row::train, "x");
  trace.counter("x", 1);
  { const Trace::Scope scope(trace, Row::train, "scope"); }
  trace.close();
}

TEST(Trace, CloseTwiceAndRecordAfterwards) {
  const TemporaryFolder folder;
  {
    Trace trace(folder / "t.json", "paris");
    trace.close();
    trace.instant(Row::train, "too late");
    trace.close();
  }
  EXPECT_TRUE(events_of(folder / "t.json", "i").empty());
}

TEST(Trace, OneThatCannotBeWrittenRecordsNothingAndSaysWhy) {
  const TemporaryFolder folder;
  Trace trace(folder / "missing/t.json", "replica");
  EXPECT_FALSE(trace.recording());
  EXPECT_NE(trace.problem().find("missing/t.json"), std::string::npos) << trace.problem();
  trace.instant(Trace::Row::train, "an event");
  trace.close();
}

}  // namespace
}  // namespace isthmus
