#include "cli/files/trace_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "isthmus/base/error.h"
#include "isthmus/base/trace.h"
#include "temporary_folder.h"

namespace isthmus::app {
namespace {

TraceSummary summary_of(const std::string& text) {
  std::istringstream in(text);
  return read_trace(in, "trace.json");
}

/// A trace of one replica with rows "train" (0), "gpu" (1) and "disk_load" (5).
std::string trace(const std::string& events) {
  return R"([{"ph":"M","name":"process_name","pid":7,"tid":0,"args":{"name":"eu-1"}},
{"ph":"M","name":"thread_name","pid":7,"tid":0,"args":{"name":"train"}},
{"ph":"M","name":"thread_name","pid":7,"tid":1,"args":{"name":"gpu"}},
{"ph":"M","name":"thread_name","pid":7,"tid":5,"args":{"name":"disk_load"}})" +
         events;
}

std::string event(int row, const std::string& name, int begin, int duration) {
  return ",\n{\"ph\":\"X\",\"name\":\"" + name + "\",\"pid\":7,\"tid\":" + std::to_string(row) +
         ",\"ts\":" + std::to_string(begin) + "000000.5,\"dur\":" + std::to_string(duration) +
         "000000,\"args\":{\"name\":\"x\",\"ts\":3}}";
}

TEST(TraceSummary, AddsUpByRowAndName) {
  const auto of = summary_of(trace(event(0, "gpu_queue_wait", 100, 2) + event(0, "train", 102, 5) +
                                   event(0, "train", 110, 3) + event(5, "disk_load", 101, 1)) +
                             "]");
  EXPECT_EQ(of.process, "eu-1");
  EXPECT_EQ(of.seconds, 13);
  EXPECT_FALSE(of.cut_off);
  EXPECT_EQ(of.totals.at({"train", "train"}).seconds, 8);
  EXPECT_EQ(of.totals.at({"train", "train"}).count, 2U);
  EXPECT_EQ(of.totals.at({"train", "train"}).longest, 5);
  EXPECT_EQ(of.totals.at({"train", "gpu_queue_wait"}).seconds, 2);
  EXPECT_EQ(of.totals.at({"disk_load", "disk_load"}).seconds, 1);
}

TEST(TraceSummary, WaitsBetweenGradientAndOptimizerAreToldFromOthers) {
  const auto of =
      summary_of(trace(event(0, "train", 1, 1) + event(0, "outer_wait", 2, 3) + event(0, "outer_wait", 5, 1) +
                       event(0, "inner_step", 6, 1) + event(0, "outer_wait", 7, 10)) +
                 "]");
  EXPECT_EQ(of.before_optimizer.seconds, 4);
  EXPECT_EQ(of.before_optimizer.count, 2U);
  EXPECT_EQ(of.totals.at({"train", "outer_wait"}).seconds, 10);
}

TEST(TraceSummary, AnIdleGpuWaitsForWhatTheTrainingThreadWaitsFor) {
  // The GPU works until a second after the host has continued, and its events arrive late.
  const auto of = summary_of(
      trace(event(0, "gpu_queue_wait", 1, 9) + event(0, "train", 10, 5) + event(0, "outer_wait", 15, 5) +
            event(0, "inner_step", 20, 1) + event(0, "outer_wait", 21, 9) + event(1, "train", 11, 5) +
            event(0, "gpu_queue_wait", 33, 4) + event(1, "inner_step", 21, 2) + event(1, "train", 40, 10)) +
      "]");
  ASSERT_TRUE(of.device);
  EXPECT_EQ(of.device->seconds, 39);
  EXPECT_EQ(of.device->busy, 17);
  EXPECT_EQ(of.device->idle_before_optimizer, 4) << "16 to 20";
  EXPECT_EQ(of.device->idle_for_outer_loop, 7) << "23 to 30";
  EXPECT_EQ(of.device->idle_for_data, 4) << "33 to 37; idle time before the first work is not counted";
  EXPECT_EQ(of.device->idle_otherwise, 1 + 3 + 3) << "20 to 21, 30 to 33, 37 to 40";
  EXPECT_FALSE(summary_of(trace(event(0, "train", 1, 1)) + "]").device);
}

TEST(TraceSummary, AFileThatIsNotFinishedCountsAsFarAsItGoes) {
  const auto whole = trace(event(0, "train", 1, 1) + event(0, "train", 2, 1));
  EXPECT_TRUE(summary_of(whole).cut_off);
  EXPECT_EQ(summary_of(whole.substr(0, whole.size() - 30)).totals.at({"train", "train"}).count, 1U);
}

TEST(TraceSummary, WhatIsNoTraceIsRefused) {
  for (const std::string& wrong : {std::string(), std::string("# Isthmus"), std::string("{}"),
                                   std::string("[]"), std::string("[1, 2]"), std::string(1000, '[')}) {
    try {
      summary_of(wrong);
      ADD_FAILURE() << "accepted " << wrong.substr(0, 20);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_THAT(error.what(), testing::HasSubstr("trace.json"));
    }
  }
}

TEST(TraceSummary, ReadsWhatReplicasWrite) {
  const TemporaryFolder folder;
  {
    Trace out(folder / "trace.json", "us-1");
    const auto begin = Trace::Clock::now();
    out.complete(Trace::Row::train, "train", begin, begin + std::chrono::milliseconds(20));
    out.async(Trace::Row::outer, "fragment in flight", 1, begin, begin);
    out.instant(Trace::Row::train, "epoch");
  }
  std::istringstream in(read_all(folder / "trace.json"));
  const auto of = read_trace(in, "trace.json");
  EXPECT_EQ(of.process, "us-1");
  EXPECT_NEAR(of.totals.at({"train", "train"}).seconds, 0.02, 1e-9);
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_trace_summary(folder / "trace.json"), 0);
  const auto printed = testing::internal::GetCapturedStdout();
  EXPECT_THAT(printed, testing::HasSubstr("forward and backward"));
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

}  // namespace
}  // namespace isthmus::app
