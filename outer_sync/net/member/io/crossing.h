#pragma once
// All values that a member's io thread and its application's threads share, in three structs by the side that
// changes them. Commands to the io thread go through MemberDriver instead.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/engine/round_exchange.h"
#include "isthmus/outer_sync/net/member/io/reports.h"
#include "isthmus/outer_sync/protocol/exchanges.h"
#include "isthmus/outer_sync/protocol/member_actions.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/ending.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/views.h"
#include "isthmus/outer_sync/protocol/work_order.h"

namespace isthmus::outer_sync::transport {

/// Logs one line, without a line break, about an event.
using Say = std::function<void(const std::string& text)>;

using Place = std::pair<FragmentId, protocol::Round>;

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

/// A request for a fragment's state; the trainer's thread answers it.
struct StateQuestion {
  FragmentId fragment;
  bool moments;
  std::function<void(outer_sync::FragmentSnapshot)> answer;
};

/// The io thread's reports: what MemberNode::status shows (all but `sent`), and more.
struct RunStatus : NodeStatus {
  std::optional<Admission> admission;                  ///< how this replica enters the run
  std::shared_ptr<const protocol::Settings> settings;  ///< of the view that has begun here
  std::uint64_t agreed_step = 0;  ///< the others' step when this replica returned to them
  bool commits = true;            ///< rounds commit, as far as this member knows
  bool view_forms = false;        ///< this replica has sealed its view, and the next has not begun here
  bool hold = false;              ///< the members agree on a step to stop at
  /// The step of the last checkpoint that the coordinator has asked all members for.
  std::uint64_t checkpoint_at = protocol::Settings::never;
  std::optional<std::string> announced;
  bool io_over = false;  ///< the io thread has ended and answers no more requests

  struct Copying {
    /// False once a joining replica has answered a seal: rounds that its donors complete afterwards may
    /// belong to the view that it is about to enter, and arrive again with that view.
    bool follows = true;
    std::optional<protocol::Round> behind;  ///< observers: rounds missing from the fragment furthest behind
    bool nothing_comes = false;             ///< observers: the run is over and no donor of the rest is left
  } copying;
  struct Serving {
    std::size_t fetchers = 0;                       ///< also those beyond bridges
    std::chrono::steady_clock::time_point until{};  ///< fetchers may need until then
  } serving;

  /// The next view forms, and a trainer of this one is lost. (If it forms with the same trainers, for new
  /// settings or a new coordinator, no bit of the run changes.)
  [[nodiscard]] bool forms_without_a_trainer() const {
    return view_forms && participation.live < participation.participating;
  }
};

/// The application's reports.
struct TrainerStatus {
  StepReport report;
  std::vector<protocol::CheckpointId> checkpoints;  ///< this replica's newest ones
  std::uint64_t begun = 0;      ///< step that the trainer is in, or at which its inner step ends
  std::uint64_t step_done = 0;  ///< last agreed step for which the trainer called checkpoint_due()
  bool stuck = false;           ///< the trainer waits for a round, and has no step to make meanwhile
};

/// Values that both sides change: one hands over, the other takes.
struct Handover {
  std::optional<Error> failure;        ///< of any thread; the first one stays
  std::optional<std::string> evicted;  ///< why the state must be copied from others; until that has been done
  bool gone = false;                   ///< the connection to the coordinator has ended for good
  protocol::DeliveredRounds<RoundResult> rounds;  ///< complete ones, until they are applied
  /// By fragment: the last exchange that is complete here; emptied by the trainer and by a new view.
  std::map<FragmentId, protocol::Exchanged> exchanged;
  std::deque<StateEvent> state_events;       ///< to be taken by a trainer that copies the state
  std::deque<StateQuestion> state_requests;  ///< to be answered by the trainer
  protocol::WorkOrder order;                 ///< which samples the loader gets
  /// Bound of the agreed step, for as long as no round that the trainer sends from now on commits.
  std::uint64_t reach = protocol::Settings::never;
  std::vector<protocol::StateDigest> digests;  ///< made since the last heartbeat
  /// Reducers only: the rounds followed, and a number that changes when they become void.
  std::vector<protocol::FragmentState> followed;
  std::uint64_t life = 0;
};

/// The values and their lock. They can be reached only through an End, which locks them. One lock guards all,
/// because of these rules:
/// - A view begins (Membership) in one critical section with all that it changes here: `settings`, `reach`,
///   `order`, void `rounds`, `exchanged`, `state_events` and `followed`. A view that does not continue this
///   replica's last one may void results, so it waits until no round is being applied. So the trainer applies
///   no void round, and sees the settings of a view before its first result.
/// - A seal is answered with the `report.step`, the `order` and the `reach` of one moment.
/// - The io thread sets `hold` and reads `begun` in one critical section, and the trainer reads `hold` and
///   sets `begun` in one. So after the step that Held reports, no step begins before the members have agreed.
///   In the same way a checkpoint (`checkpoint_at`, `step_done`) is either due or reported as missed.
/// - An eviction voids all of the old state at once. It changes `life`, so that the chain that a reducer has
///   just made from a void round does not count.
class Crossing {
  template <class>
  friend class End;

 public:
  struct Values {
    RunStatus run;
    TrainerStatus trainer;
    Handover both;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;  ///< wakes the threads that wait for a change
  Values values_;
};

/// The values as each side sees them.
struct IoView {
  explicit IoView(Crossing::Values& all) : run(all.run), trainer(all.trainer), both(all.both) {}
  RunStatus& run;
  const TrainerStatus& trainer;
  Handover& both;
};
struct TrainerView {
  explicit TrainerView(Crossing::Values& all) : run(all.run), trainer(all.trainer), both(all.both) {}
  /// Whether a joining replica's trainer may take the first state event now.
  [[nodiscard]] bool has_state_event() const {
    return !both.state_events.empty() &&
           (run.copying.follows || !std::holds_alternative<FollowedRound>(both.state_events.front()));
  }
  const RunStatus& run;
  TrainerStatus& trainer;
  Handover& both;
};

/// One side's access. The crossing must outlive it.
template <class View>
class End {
 public:
  explicit End(Crossing& crossing) : crossing_(&crossing) {}

  /// Holds the lock, for reading and for waiting.
  class Lock {
   public:
    explicit Lock(Crossing& crossing)
        : changed_(crossing.changed_), lock_(crossing.mutex_), view_(crossing.values_) {}
    [[nodiscard]] View& operator*() { return view_; }
    [[nodiscard]] View* operator->() { return &view_; }
    // These release the lock while they wait.
    template <class Ready>
    void wait(Ready ready) {
      changed_.wait(lock_, ready);
    }
    template <class Ready>
    bool wait_for(std::chrono::steady_clock::duration limit, Ready ready) {
      return changed_.wait_for(lock_, limit, ready);
    }
    /// Until the next change.
    void wait_until(std::chrono::steady_clock::time_point limit) { changed_.wait_until(lock_, limit); }
    /// Releases the lock for the duration of `work`.
    template <class Work>
    void without(Work work) {
      lock_.unlock();
      work();
      lock_.lock();
    }

   private:
    std::condition_variable& changed_;
    std::unique_lock<std::mutex> lock_;
    View view_;
  };
  [[nodiscard]] Lock lock() const { return Lock(*crossing_); }

  /// Makes a change under the lock and returns its result. Then all waiting threads wake.
  template <class Change>
  auto update(Change change) const {
    struct Wake {
      std::condition_variable& changed;
      ~Wake() { changed.notify_all(); }
    };
    const Wake wake{crossing_->changed_};
    const std::lock_guard lock(crossing_->mutex_);
    return change(View(crossing_->values_));
  }

  /// Ends all blocking calls with this error. Only the first one counts.
  void fail(const Error& error) const {
    update([&](View now) {
      if (!now.both.failure) now.both.failure = error;
    });
  }

 private:
  Crossing* crossing_;
};
using IoEnd = End<IoView>;
using TrainerEnd = End<TrainerView>;

}  // namespace isthmus::outer_sync::transport
