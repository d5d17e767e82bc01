#pragma once
// Values that a member's trainer thread and io thread share, under one mutex with one condition.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/work_order.h"

namespace isthmus::outer_sync::transport {

/// The trainer must start copying the state afresh: what it has applied before is void.
struct BeginAnew {
  std::uint64_t attempt = 0;
};
/// The next round of its fragment.
struct FollowedRound {
  FragmentId fragment = 0;
  protocol::Round round = 0;
  std::vector<protocol::SharedBytes> results;
};
using StateEvent = std::variant<BeginAnew, outer_sync::FragmentSnapshot, FollowedRound, protocol::Settings>;

struct SharedState {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;
  bool io_over = false;  ///< the io thread has ended and answers no more requests
  std::optional<protocol::Seal> seal;
  bool admitted = false;               ///< the run has begun without this replica
  std::optional<std::string> evicted;  ///< why the state must be copied from others
  std::optional<protocol::NewView> view;
  std::optional<protocol::Finished> finished;
  std::optional<std::string> announced;

  using Place = std::pair<FragmentId, protocol::Round>;
  std::map<Place, RoundResult> results;  ///< complete, and not yet taken by the trainer
  std::set<Place> taken;                 ///< taken by the trainer, and not yet applied
  bool commits = true;                   ///< as far as this member knows
  bool view_forms = false;          ///< this replica has sealed its view, and the next has not begun here
  std::optional<Place> unanswered;  ///< the trainer has asked for it in vain since its last step
  bool stuck = false;               ///< the trainer has asked again: it has no step to make
  protocol::WorkOrder order;        ///< which samples the loader gets
  std::uint64_t agreed_step = 0;    ///< the others' step when this replica returned to them
  /// Reducers only: the rounds followed, and a number that changes when they become void.
  std::vector<protocol::FragmentState> followed;
  std::uint64_t life = 0;
  std::deque<StateEvent> state_events;
  /// False once a joining replica has answered a seal: rounds that its donors complete afterwards may belong
  /// to the view that it is about to enter, and arrive again with that view.
  bool follows = true;
  /// A request for a fragment's state; the trainer's thread answers it.
  struct StateQuestion {
    FragmentId fragment;
    bool moments;
    std::function<void(outer_sync::FragmentSnapshot)> answer;
  };
  std::deque<StateQuestion> state_requests;

  // Observers only:
  std::optional<protocol::Round> behind;  ///< rounds missing from the fragment that is furthest behind
  std::set<FragmentId> installed;         ///< fragments in the trainer's loop
  bool nothing_comes = false;             ///< the run is over and no donor of the rest is left

  std::size_t fetchers = 0;                              ///< fetchers being served
  std::chrono::steady_clock::time_point served_until{};  ///< fetchers may need until then

  /// Settings of the view that has begun here.
  std::shared_ptr<const protocol::Settings> settings;
  /// Bound of the agreed step, for as long as no round that the trainer sends from now on commits.
  std::uint64_t reach = protocol::Settings::never;
  std::optional<std::string> drain;  ///< why the trainer must leave
  /// The step of the last checkpoint that the coordinator has asked all members for.
  std::uint64_t checkpoint_at = protocol::Settings::never;
  std::uint64_t step_done = 0;  ///< last agreed step for which the trainer called checkpoint_due()

  bool hold = false;
  std::optional<std::uint64_t> stop_at;
  std::uint64_t begun = 0;  ///< step that the trainer is in, or at which its inner step ends
  bool stopped = false;
  bool gone = false;  ///< the control connection has ended for good
  bool reaches_coordinator = false;
  StepReport report;
  std::vector<protocol::CheckpointId> checkpoints;  ///< this replica's newest ones
  std::vector<protocol::Audit> audits;              ///< made since the last heartbeat
  double reference_speed = 0;                       ///< of the run, as reported by the coordinator
  std::uint64_t common_checkpoint = 0;              ///< newest step, as reported by the coordinator
  Participation participation;

  /// Every waiting thread calls this now and then, without the lock; an exception ends the wait.
  std::function<void()> while_waiting;
  static constexpr std::chrono::milliseconds look_up_every{100};

  /// The next view forms, and a trainer of this one is lost. (If it forms with the same trainers, for new
  /// settings or a new coordinator, no bit of the run changes.)
  [[nodiscard]] bool forms_without_a_trainer() const {
    return view_forms && participation.live < participation.participating;
  }

  /// Whether a joining replica's trainer may take the first state event now.
  [[nodiscard]] bool has_state_event() const {
    return !state_events.empty() && (follows || !std::holds_alternative<FollowedRound>(state_events.front()));
  }

  /// Blocks until `ready()`.
  template <class Ready>
  void sleep_until(std::unique_lock<std::mutex>& lock, Ready ready) {
    if (!while_waiting) return changed.wait(lock, ready);
    while (!changed.wait_for(lock, look_up_every, ready)) look_up(lock);
  }
  /// Blocks until a change or until `limit`; with `while_waiting` set, for `look_up_every` at most.
  void await_change(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point limit) {
    using Clock = std::chrono::steady_clock;
    changed.wait_until(lock, while_waiting ? std::min(limit, Clock::now() + look_up_every) : limit);
    look_up(lock);
  }
  void look_up(std::unique_lock<std::mutex>& lock) const {
    if (!while_waiting) return;
    lock.unlock();
    while_waiting();
    lock.lock();
  }
  /// Blocks until `ready()`; throws the failure if there is one.
  template <class Ready>
  void wait_for(std::unique_lock<std::mutex>& lock, Ready ready) {
    sleep_until(lock, [&] { return failure.has_value() || ready(); });
    if (!ready()) throw *failure;
  }
  template <class Change>
  void update(Change change) {
    {
      const std::lock_guard lock(mutex);
      change();
    }
    changed.notify_all();
  }
  /// Keeps only the first error.
  void fail(const Error& error) {
    update([&] {
      if (!failure) failure = error;
    });
  }
};

}  // namespace isthmus::outer_sync::transport
