#include "net/member/io/shutdown.h"

#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

void Shutdown::request_stop(const std::string& reason) {
  if (control_.up()) return control_.send(StopRequest{reason});
  if (reduces_) return;  // the others may need this reducer
  // Without a coordinator there is no agreement: this replica stops where it is.
  shared_.update([](IoView now) {
    now.run.hold = true;
    now.run.stops_at = now.trainer.begun;
  });
}

void Shutdown::on_hold() {
  if (reduces_) return;  // a reducer has no step
  Held held;
  held.step = shared_.update([](IoView now) {
    now.run.hold = true;
    return now.trainer.begun;
  });
  control_.send(held);
}

void Shutdown::on_stop_at(std::uint64_t step) {
  if (reduces_) return done({"{\"total_bytes\": " + std::to_string(counters_.total) + "}", {}});
  shared_.update([&](IoView now) { now.run.stops_at = step; });
}

void Shutdown::done(Done done) {
  done_ = std::move(done);
  say_done();
}

/// The last member's Done ends the run. If the stop was agreed with an earlier coordinator, a new one does
/// not know of it, so StopRequest goes first: members that have not reached the step must not be asked for
/// another one.
void Shutdown::say_done() {
  if (shared_.lock()->run.hold) control_.send(StopRequest{"as was asked before"});
  control_.send(*done_);
}

void Shutdown::leave(const std::string& reason) {
  leaving_ = true;
  control_.send(Leave{reason});
  control_.finish();
  if (!control_.up()) shared_.update([](IoView now) { now.both.gone = true; });
}

bool Shutdown::ends_with_connection() {
  return shared_.update([&](IoView now) {
    if (leaving_) now.both.gone = true;
    return now.run.finished || now.both.failure;
  });
}

void Shutdown::repeat() {
  if (done_) return say_done();
  const auto waits = [&] {
    auto now = shared_.lock();
    return now->run.hold && !now->run.stops_at;
  };
  if (waits()) control_.send(StopRequest{"as was asked before"});
}

}  // namespace isthmus::outer_sync::transport
