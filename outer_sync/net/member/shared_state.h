#pragma once
// Where the trainer's thread and the io thread of a member meet: values under one mutex, and one condition.

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

/// For the trainer of one who takes the state from others. What it has learned before this does not count.
struct BeginAnew {
  std::uint64_t attempt = 0;
};
/// The next one of its fragment.
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
  bool io_over = false;  ///< the io thread has ended, and answers nothing any more
  std::optional<protocol::Seal> seal;
  bool admitted = false;               ///< the run has begun without this replica
  std::optional<std::string> evicted;  ///< why the state must be taken from others
  std::optional<protocol::NewView> view;
  std::optional<protocol::Finished> finished;
  std::optional<std::string> announced;

  using Place = std::pair<FragmentId, protocol::Round>;
  std::map<Place, RoundResult> results;  ///< complete, and not yet taken by the trainer
  std::set<Place> taken;                 ///< by the trainer, and not yet applied
  bool commits = true;                   ///< as far as is known here
  bool view_forms = false;          ///< this replica has sealed its view, and the next one has not begun here
  std::optional<Place> unanswered;  ///< asked for in vain since the last step
  bool stuck = false;               ///< asked for once more: the trainer has no step to make
  protocol::WorkOrder order;        ///< what the loader is given
  std::uint64_t agreed_step = 0;    ///< others were that far when this replica came back to them
  /// Of one that only reduces: the rounds that it has followed, and a number that changes when they are void.
  std::vector<protocol::FragmentState> followed;
  std::uint64_t life = 0;
  std::deque<StateEvent> state_events;
  /// False once a newcomer has answered a seal: the rounds that its donors make then may belong to the view
  /// that it is about to enter, and come again with that view.
  bool follows = true;
  /// Who asks for a fragment's state; answered by the trainer's thread.
  struct StateQuestion {
    FragmentId fragment;
    bool moments;
    std::function<void(outer_sync::FragmentSnapshot)> answer;
  };
  std::deque<StateQuestion> state_requests;

  // Of an observer:
  std::optional<protocol::Round> behind;  ///< rounds that have not come, of the fragment that lacks most
  std::set<FragmentId> installed;         ///< in the trainer's loop
  bool nothing_comes = false;             ///< the run is over, and so are those who could give the rest

  std::size_t fetchers = 0;                              ///< that are served
  std::chrono::steady_clock::time_point served_until{};  ///< they may need that long for what they asked last

  /// Of the view that has begun here.
  std::shared_ptr<const protocol::Settings> settings;
  /// The clock goes no further, whatever the trainer does, while rounds that it sends from now on come to
  /// nothing.
  std::uint64_t reach = protocol::Settings::never;
  std::optional<std::string> drain;  ///< the trainer is to leave, and why
  /// All write a checkpoint of this step, as the coordinator has said last.
  std::uint64_t checkpoint_at = protocol::Settings::never;
  std::uint64_t step_done = 0;  ///< agreed: whether a checkpoint of it is due was asked

  bool hold = false;
  std::optional<std::uint64_t> stop_at;
  std::uint64_t begun = 0;  ///< step that the trainer is in, or where its inner step ends
  bool stopped = false;
  bool gone = false;  ///< the control connection has ended for good
  bool reaches_coordinator = false;
  StepReport report;
  std::vector<protocol::CheckpointId> checkpoints;  ///< the newest that are here
  std::vector<protocol::Audit> audits;              ///< made since the last heartbeat
  double reference_speed = 0;                       ///< of the run, as the coordinator has said
  std::uint64_t common_checkpoint = 0;              ///< the same; newest step
  Participation participation;

  /// Called now and then by whoever waits here, without the lock; what it throws ends the wait.
  std::function<void()> while_waiting;
  static constexpr std::chrono::milliseconds look_up_every{100};

  /// The next view forms, and a trainer of this one is lost. (One that forms with the same trainers, for new
  /// settings or a new coordinator, changes no bit of the run.)
  [[nodiscard]] bool forms_without_a_trainer() const {
    return view_forms && participation.live < participation.participating;
  }

  /// Whether the trainer of a newcomer may take the first state_event now.
  [[nodiscard]] bool has_state_event() const {
    return !state_events.empty() && (follows || !std::holds_alternative<FollowedRound>(state_events.front()));
  }

  /// Blocks until `ready()`.
  template <class Ready>
  void sleep_until(std::unique_lock<std::mutex>& lock, Ready ready) {
    if (!while_waiting) return changed.wait(lock, ready);
    while (!changed.wait_for(lock, look_up_every, ready)) look_up(lock);
  }
  /// Blocks until something has changed or it is `limit`; or, where somebody looks up, a moment.
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
  /// Blocks until `ready()` or failure.
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
  /// The first one counts.
  void fail(const Error& error) {
    update([&] {
      if (!failure) failure = error;
    });
  }
};

}  // namespace isthmus::outer_sync::transport
