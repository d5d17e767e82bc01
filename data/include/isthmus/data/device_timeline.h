#pragma once
// The training thread's part of the trace: the host's work on the row `train` and, if there is a GPU, the
// GPU's work on the row `gpu`. A GPU starts later than it is asked to, and ends later still. Where its row is
// empty it is waiting; the host's rows show for what (`isthmus trace` adds that up).

#include <deque>
#include <memory>
#include <string>

#include "isthmus/base/trace.h"
#include "isthmus/data/device.h"

namespace isthmus::data {

/// Used by the one thread that submits the device's work. If the GPU fails, its row ends here; the code that
/// submits work to it reports the error.
class DeviceTimeline {
 public:
  /// `device` and `trace` must outlive the timeline.
  DeviceTimeline(Device& device, Trace& trace);
  ~DeviceTimeline();
  DeviceTimeline(const DeviceTimeline&) = delete;
  DeviceTimeline& operator=(const DeviceTimeline&) = delete;

  /// Adds an interval to both rows, from construction to destruction. Scopes do not nest. `args` as in
  /// Trace::complete.
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
