#include "isthmus/data/device_timeline.h"

#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::data {

DeviceTimeline::DeviceTimeline(Device& device, Trace& trace)
    : trace_(trace), timer_(trace.recording() ? device.timer() : nullptr) {}

DeviceTimeline::~DeviceTimeline() = default;

bool DeviceTimeline::begin(const std::string& name, const std::string& args) {
  if (!trace_.recording()) timer_.reset();  // a closed trace is not reopened
  if (!timer_) return false;
  try {
    timer_->begin();
    under_way_.push_back({name, args});
  } catch (const Error&) {
    timer_.reset();
  }
  return timer_ != nullptr;
}

void DeviceTimeline::end() {
  if (!timer_) return;
  try {
    timer_->end();
    write_finished();
  } catch (const Error&) {
    timer_.reset();
  }
}

void DeviceTimeline::write_finished() {
  while (const auto span = timer_->next()) {
    const auto told = std::move(under_way_.front());
    under_way_.pop_front();
    trace_.complete(Trace::Row::gpu, told.name, span->begin, span->end, told.args);
  }
}

DeviceTimeline::Scope::Scope(DeviceTimeline& timeline, const std::string& name, const std::string& args)
    : timeline_(timeline),
      host_(timeline.trace_, Trace::Row::train, name, args),
      on_device_(timeline.begin(name, args)) {}

DeviceTimeline::Scope::~Scope() {
  if (on_device_) timeline_.end();
}

}  // namespace isthmus::data
