#pragma once
// The training thread's part of the trace: what the host does, on the row `train`, and where there is a GPU
// what that does, on the row `gpu`. A GPU begins later than it was told to and ends later still; where its
// row is empty it waits, and the host's rows tell for what (`isthmus trace summary` adds that up).

#include <deque>
#include <memory>
#include <string>

#include "isthmus/base/trace.h"
#include "isthmus/data/device.h"

namespace isthmus::data {

/// One thread's, which submits the device's work. A GPU that fails ends its row here; it is for whoever has
/// work done there to say so.
class DeviceTimeline {
 public:
  /// Both outlive it.
  DeviceTimeline(Device& device, Trace& trace);
  ~DeviceTimeline();
  DeviceTimeline(const DeviceTimeline&) = delete;
  DeviceTimeline& operator=(const DeviceTimeline&) = delete;

  /// An interval of both rows, as long as it lives. They do not nest. `args` as Trace::complete's.
  class Scope {
   public:
    Scope(DeviceTimeline& timeline, const std::string& name, const std::string& args = {});
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeviceTimeline& timeline_;
    Trace::Scope host_;
    bool on_device_;
  };

 private:
  struct Told {
    std::string name, args;
  };
  bool begin(const std::string& name, const std::string& args);
  void end();
  void write_finished();

  Trace& trace_;
  std::unique_ptr<DeviceTimer> timer_;
  std::deque<Told> under_way_;  ///< on the device, oldest first
};

}  // namespace isthmus::data
