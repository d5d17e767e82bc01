#include "isthmus/data/device_timeline.h"

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>
#include <utility>
#include <vector>

#include "data_support.h"
#include "isthmus/base/error.h"

namespace isthmus::data {
namespace {

using std::chrono::microseconds;

/// A scripted timer: it returns the spans that a test has put into `over`.
struct Script {
  std::queue<DeviceSpan> over;
  int begun = 0, ended = 0;
  bool broken = false;
};

class ScriptedTimer : public DeviceTimer {
 public:
  explicit ScriptedTimer(Script& script) : script_(script) {}
  void begin() override {
    if (script_.broken) throw Error(ErrorKind::data, "the GPU fell off the bus");
    ++script_.begun;
  }
  void end() override { ++script_.ended; }
  std::optional<DeviceSpan> next() override {
    EXPECT_EQ(script_.begun, script_.ended) << "asked for a result while a span is open";
    if (script_.over.empty()) return std::nullopt;
    const auto span = script_.over.front();
    script_.over.pop();
    return span;
  }

 private:
  Script& script_;
};

/// A GPU in host memory with a scripted timer.
class ScriptedGpu : public Device {
 public:
  Script script;
  std::unique_ptr<HostBuffer> host_buffer(std::size_t bytes) override { return plain_->host_buffer(bytes); }
  std::unique_ptr<DeviceBuffer> device_buffer(std::size_t bytes) override {
    return plain_->device_buffer(bytes);
  }
  std::unique_ptr<DeviceTimer> timer() override { return std::make_unique<ScriptedTimer>(script); }
  bool is_host() const override { return false; }

 private:
  std::unique_ptr<Device> plain_ = make_cpu_device();
};

DeviceSpan span(int begin, int end) {
  const Trace::Clock::time_point zero{};
  return {zero + microseconds(begin), zero + microseconds(end)};
}

class DeviceTimelineTest : public testing::Test {
 protected:
  /// Names of one row's intervals, in order of writing.
  std::vector<std::string> names(const std::string& row) {
    trace.close();
    std::map<int, std::string> rows;
    std::vector<std::string> out;
    for (const auto& event : events()) {
      if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
      if (event["ph"] == "X" && rows[event["tid"]] == row) out.push_back(event["name"]);
    }
    return out;
  }
  nlohmann::json events() { return nlohmann::json::parse(read_all(folder / "t.json")); }

  TemporaryFolder folder;
  Trace trace{folder / "t.json", "eu-1"};
  ScriptedGpu gpu;
};

using Names = std::vector<std::string>;

TEST_F(DeviceTimelineTest, WhatTheDeviceDidIsWrittenWhenItIsThrough) {
  DeviceTimeline timeline(gpu, trace);
  {
    const DeviceTimeline::Scope scope(timeline, "train", R"({"step":7})");
    EXPECT_EQ(gpu.script.begun, 1);
    EXPECT_EQ(gpu.script.ended, 0);
  }
  EXPECT_EQ(gpu.script.ended, 1);
  {
    const DeviceTimeline::Scope scope(timeline, "inner_step");
    gpu.script.over.push(span(1'000, 31'000));  // the first span, while the second is being submitted
  }
  EXPECT_EQ(names("train"), (Names{"train", "inner_step"}));
  EXPECT_EQ(names("gpu"), Names{"train"}) << "the second span has not finished";
  for (const auto& event : events()) {
    if (event["ph"] != "X" || event["tid"] != static_cast<int>(Trace::Row::gpu)) continue;
    EXPECT_EQ(event["ts"], 1'000.0);
    EXPECT_EQ(event["dur"], 30'000.0);
    EXPECT_EQ(event["args"]["step"], 7);
  }
}

TEST_F(DeviceTimelineTest, SpansKeepTheirOrder) {
  DeviceTimeline timeline(gpu, trace);
  for (const auto* name : {"train", "inner_step", "evaluate"}) {
    const DeviceTimeline::Scope scope(timeline, name);
    if (name == std::string("evaluate")) {
      for (int i = 0; i < 3; ++i) gpu.script.over.push(span(10 * i, 10 * i + 5));
    }
  }
  EXPECT_EQ(names("gpu"), (Names{"train", "inner_step", "evaluate"}));
}

TEST_F(DeviceTimelineTest, AHostHasNoRowOfItsOwn) {
  const auto host = make_cpu_device();
  DeviceTimeline timeline(*host, trace);
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  EXPECT_EQ(names("train"), Names{"train"});
  EXPECT_EQ(names("gpu"), Names{});
}

TEST_F(DeviceTimelineTest, ADeviceThatFailsEndsItsRowOnly) {
  DeviceTimeline timeline(gpu, trace);
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  gpu.script.broken = true;
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  gpu.script.broken = false;
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  EXPECT_EQ(gpu.script.begun, 1) << "a broken timer must not be used again";
  EXPECT_EQ(names("train"), (Names{"train", "train", "train"}));
}

TEST_F(DeviceTimelineTest, ATraceThatIsClosedAsksNothingOfTheDevice) {
  DeviceTimeline timeline(gpu, trace);
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  trace.close();
  { const DeviceTimeline::Scope scope(timeline, "train"); }
  EXPECT_EQ(gpu.script.begun, 1);
  Trace off;
  DeviceTimeline none(gpu, off);
  { const DeviceTimeline::Scope scope(none, "train"); }
  EXPECT_EQ(gpu.script.begun, 1);
}

}  // namespace
}  // namespace isthmus::data
