#include "net/member/shutdown.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

void Shutdown::request_stop(const std::string& reason) {
  if (control_.up()) return control_.send(StopRequest{reason});
  if (reduces_) return;  // the others may need this reducer
  // Without a coordinator there is no agreement: this replica stops where it is.
  shared_.update([&] {
    shared_.hold = true;
    shared_.stop_at = shared_.begun;
  });
}

void Shutdown::on_hold() {
  if (reduces_) return;  // a reducer has no step
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

/// The last member's Done ends the run. If the stop was agreed with an earlier coordinator, a new one does
/// not know of it, so StopRequest goes first: members that have not reached the step must not be asked for
/// another one.
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
