#include "transport/ending.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

void Ending::request_stop(const std::string& reason) {
  if (control_.up()) return control_.send(StopRequest{reason});
  if (reduces_) return;  // the others may need it
  // Nobody to agree with: this replica stops where it is.
  meet_.update([&] {
    meet_.hold = true;
    meet_.stop_at = meet_.begun;
  });
}

void Ending::on_hold() {
  if (reduces_) return;  // it has no step to name
  Held held;
  meet_.update([&] {
    meet_.hold = true;
    held.step = meet_.begun;
  });
  control_.send(held);
}

void Ending::on_stop_at(std::uint64_t step) {
  if (reduces_) return done({"{\"total_bytes\": " + std::to_string(counters_.total) + "}", {}});
  meet_.update([&] { meet_.stop_at = step; });
}

void Ending::done(Done done) {
  done_ = std::move(done);
  say_done();
}

/// The last to say it ends the run. A coordinator that came after the one that named the step does not know
/// that the run is being stopped; those who have not come to the step must not ask it for another.
void Ending::say_done() {
  bool stops = false;
  meet_.update([&] { stops = meet_.hold; });
  if (stops) control_.send(StopRequest{"as was asked before"});
  control_.send(*done_);
}

void Ending::leave(const std::string& reason) {
  leaving_ = true;
  control_.send(Leave{reason});
  control_.finish();
  if (!control_.up()) meet_.update([&] { meet_.gone = true; });
}

bool Ending::ends_with_connection() {
  if (leaving_) meet_.update([&] { meet_.gone = true; });
  const std::lock_guard lock(meet_.mutex);
  return meet_.finished || meet_.failure;
}

void Ending::repeat() {
  if (done_) return say_done();
  bool stops = false;
  meet_.update([&] { stops = meet_.hold && !meet_.stop_at; });
  if (stops) control_.send(StopRequest{"as was asked before"});
}

}  // namespace isthmus::outer_sync::transport
