#pragma once
// Blocking waits of a member's application for its io thread.

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "isthmus/outer_sync/engine/round_exchange.h"
#include "net/member/io/crossing.h"

namespace isthmus::outer_sync::transport {

/// While it waits it calls `while_waiting` now and then, without the lock; an exception from that ends the
/// wait.
class Waits {
 public:
  using Lock = TrainerEnd::Lock;
  static constexpr std::chrono::milliseconds look_up_every{100};

  /// `looks_up` may be empty.
  Waits(Crossing& crossing, std::function<void()> looks_up)
      : shared(crossing), while_waiting(std::move(looks_up)) {}

  const TrainerEnd shared;
  const std::function<void()> while_waiting;

  /// Blocks until `ready()`.
  template <class Ready>
  void sleep_until(Lock& now, Ready ready) const {
    if (!while_waiting) return now.wait(ready);
    while (!now.wait_for(look_up_every, ready)) look_up(now);
  }
  /// Blocks until `ready()`; throws the failure if there is one.
  template <class Ready>
  void wait_for(Lock& now, Ready ready) const {
    sleep_until(now, [&] { return now->both.failure.has_value() || ready(); });
    if (!ready()) throw *now->both.failure;
  }
  /// Blocks until a change or until `limit`; with `while_waiting` set, for `look_up_every` at most.
  void await_change(Lock& now, std::chrono::steady_clock::time_point limit) const {
    const auto soon = std::chrono::steady_clock::now() + look_up_every;
    now.wait_until(while_waiting ? std::min(limit, soon) : limit);
    look_up(now);
  }
  void look_up(Lock& now) const {
    if (while_waiting) now.without([this] { while_waiting(); });
  }
  static void throw_if_ended(Lock& now) {
    if (now->both.failure) throw *now->both.failure;
    if (now->both.evicted) throw outer_sync::Evicted(*now->both.evicted);
  }
};

}  // namespace isthmus::outer_sync::transport
