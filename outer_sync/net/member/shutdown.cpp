#include "net/member/shutdown.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

void Shutdown::request_stop(const std::string& reason) {
  if (control_.up()) return control_.send(StopRequest{reason});
  if (reduces_) return;  // the others may need it
  // Nobody to agree with: this replica stops where it is.
  shared_.update([&] {
    shared_.hold = true;
    shared_.stop_at = shared_.begun;
  });
}

void Shutdown::on_hold() {
  if (reduces_) return;  // it has no step to name
  Held held;
  shared_.update([&] {
    shared_.hold = true;
    held.step = shared_.begun;
  });
  control_.send(held);
}

void Shutdown::on_stop_at(std::uint64_t step) {
  if (reduces_) return done({"{\"total_bytes\": " + std::to_string(counters_.total) + "}", {}});
  shared_.update([&] { shared_.stop_at = step; });
}

void Shutdown::done(Done done) {
  done_ = std::move(done);
  say_done();
}

/// The last to say it ends the run. A coordinator that came after the one that named the step does not know
/// that the run is being stopped; those who have not come to the step must not ask it for another.
void Shutdown::say_done() {
  bool stops = false;
  shared_.update([&] { stops = shared_.hold; });
  if (stops) control_.send(StopRequest{"as was asked before"});
  control_.send(*done_);
}

void Shutdown::leave(const std::string& reason) {
  leaving_ = true;
  control_.send(Leave{reason});
  control_.finish();
  if (!control_.up()) shared_.update([&] { shared_.gone = true; });
}

bool Shutdown::ends_with_connection() {
  if (leaving_) shared_.update([&] { shared_.gone = true; });
  const std::lock_guard lock(shared_.mutex);
  return shared_.finished || shared_.failure;
}

void Shutdown::repeat() {
  if (done_) return say_done();
  bool stops = false;
  shared_.update([&] { stops = shared_.hold && !shared_.stop_at; });
  if (stops) control_.send(StopRequest{"as was asked before"});
}

}  // namespace isthmus::outer_sync::transport
