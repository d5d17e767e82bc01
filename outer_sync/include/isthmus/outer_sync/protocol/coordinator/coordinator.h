#pragma once
// The coordinator as a pure state machine: admits members, forms views, agrees on the stop, and compares the
// members' state. Messages and the time go in, actions come out; no parameter bytes pass through it. Rules
// and reasons: docs/protocol.md.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/coordinator/admission.h"
#include "isthmus/outer_sync/protocol/coordinator/forming/phase.h"
#include "isthmus/outer_sync/protocol/coordinator/observers.h"
#include "isthmus/outer_sync/protocol/coordinator/paths/deal_watch.h"
#include "isthmus/outer_sync/protocol/coordinator/paths/paths.h"
#include "isthmus/outer_sync/protocol/coordinator/paths/relays.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/actions.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/observations.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"
#include "isthmus/outer_sync/protocol/coordinator/steering/checkpoint_orders.h"
#include "isthmus/outer_sync/protocol/coordinator/steering/steering.h"
#include "isthmus/outer_sync/protocol/health.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/state_digests.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {

class Outlook;

/// The state of the run, as operators see it.
enum class RunPhase { joining, changing_view, running, paused, suspended, ended };
[[nodiscard]] std::string_view name_of(RunPhase phase);

class Coordinator {
 public:
  using MemberStatus = protocol::MemberStatus;
  using Role = MemberStatus::Role;
  using Members = Roster::Members;

  /// The join timeout runs from `started`. The layout arrives with the members' answers, so the coordinator
  /// needs no model.
  Coordinator(CoordinatorOptions options, Time started);

  void receive(ConnectionId from, Time now, const ControlMessage& message);
  void closed(ConnectionId connection);
  void tick(Time now);
  /// Leaves members out of the views while their calendars close their links, and deals the chunks again when
  /// calendars change their rates. Call it at least once a second with the system's time.
  void follow_calendars(WallTime wall);
  /// Ends the run at a step on which all members agree.
  void request_stop(const std::string& reason);
  /// Requests a change of shared keys as an operator would; `by` and `why` go to the log. Logs the reason if
  /// it is not possible. Does nothing while another change is pending.
  void propose(const ConfigItems& items, const std::string& by, const std::string& why);
  /// Reports why the newest view cannot be announced: storing it failed. Empty: it was announced.
  void hold_back(std::string why) { held_back_because_ = std::move(why); }
  [[nodiscard]] std::vector<CoordinatorAction> take_actions() { return out_.take(); }

  // ---- status of the run ----

  [[nodiscard]] const CoordinatorOptions& options() const { return options_; }
  /// By name, in member order: members of the view and replicas that want to join it.
  [[nodiscard]] const Members& members() const { return roster_.members(); }
  /// All trainers, in the view or not.
  [[nodiscard]] std::size_t trainers() const { return roster_.trainers(); }
  /// Trainers of the view in force; 0 while rounds do not commit.
  [[nodiscard]] std::size_t participating() const;
  [[nodiscard]] ViewNumber view() const { return number_; }
  [[nodiscard]] bool stopping() const { return ending_.stopping; }
  [[nodiscard]] RunPhase run_phase() const;
  /// Why rounds do not commit; empty while they do.
  [[nodiscard]] std::string obstacle() const;
  /// Settings of the view announced last.
  [[nodiscard]] const Settings& settings() const { return steering_.settings(); }
  /// Layout of the run's parameters; empty before a member has reported it.
  [[nodiscard]] const std::optional<FragmentLayout>& layout() const { return layout_; }
  /// Paths between the members of the view.
  [[nodiscard]] const RunPaths& paths() const { return reports_.paths; }
  /// Relayed pairs and their relays, by name.
  struct RelayedPair {
    std::string a, b, by;
    friend bool operator==(const RelayedPair&, const RelayedPair&) = default;
  };
  [[nodiscard]] std::vector<RelayedPair> relays() const;
  /// By fragment: rounds by which a member is behind the foremost.
  [[nodiscard]] std::vector<Round> lag_of(const MemberStatus& member) const;
  /// "closed until Mon 18:00 UTC": by its calendar at present; empty if it has none.
  [[nodiscard]] std::string allowance_of(const MemberStatus& member) const;
  /// Time since its last message.
  [[nodiscard]] Time silence_of(const MemberStatus& member) const { return now_ - member.heard; }
  /// Newest step of which all trainers of the view have a checkpoint; 0: none known.
  [[nodiscard]] std::uint64_t common_checkpoint() const;
  /// Newest step of which all trainers have had a checkpoint, also before the run was resumed; 0: none.
  /// Unlike `common_checkpoint`, it stays while a view forms and when a newcomer joins.
  [[nodiscard]] std::uint64_t complete_checkpoint() const { return checkpoints_.complete(); }
  /// Step of a checkpoint that was ordered and is not complete yet; 0: none.
  [[nodiscard]] std::uint64_t ordered_checkpoint() const {
    return checkpoints_.is_open() ? checkpoints_.ordered() : 0;
  }
  /// Time until run.checkpoint_interval brings the next order; negative while the run cannot carry it out,
  /// nullopt without an interval.
  [[nodiscard]] std::optional<Time> next_checkpoint_in() const {
    return checkpoints_.due() ? std::optional(*checkpoints_.due() - now_) : std::nullopt;
  }
  /// Step of the checkpoint that the run started from; 0: from its first step, or started by an earlier
  /// coordinator.
  [[nodiscard]] std::uint64_t resumed_from() const { return resumed_from_; }

 private:
  template <class PhaseType>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<PhaseType>(phase_);
  }
  [[nodiscard]] bool gathers() const { return is<phase::Gathering>(); }

  // Messages and time (coordinator.cpp).
  void on_message(const std::string& name, const ControlMessage& message);
  [[nodiscard]] Bounds bounds() const;
  void check_join_timeout();
  void broadcast(const ControlMessage& message);
  void send_to_trainers(const ControlMessage& message);

  // When a member counts as lost, and what follows (lost_members.cpp).
  [[nodiscard]] bool lose_silent();
  [[nodiscard]] bool lose_unanswered();
  void check_links(const MemberStatus& member);
  void check_lag(const std::string& name, const std::vector<Round>& newest);
  /// Handles the loss of members, followed by one view change: while others still join, their places are free
  /// again. `said_goodbye`: they will not come back by themselves.
  void lose(const std::vector<std::string>& names, const std::string& how, bool said_goodbye = false);
  // Names are passed by value where the caller's reference would be erased with the member.
  void drop_for(std::string name, const std::string& problem);
  void evict(std::string name, const std::string& reason);
  void remove(const std::string& name);
  [[nodiscard]] bool lost_trainer_may_return();
  void end_if_trainers_stay_away();
  void say_that_no_trainer_is_here();

  // Links that the clock limits or closes (calendars.cpp).
  [[nodiscard]] bool may_deal_again() const;
  void take_allowance(MemberStatus& member) const;
  void on_calendar(MemberStatus& member, const CalendarChanged& changed);

  // Commands, and checkpoints of all trainers at one step (orders.cpp).
  void carry_out(const Steering::Order& order, ConnectionId from);
  [[nodiscard]] Steering::Situation situation() const;
  [[nodiscard]] std::string reason_not_to_steer() const;
  /// Returns why no checkpoint was ordered; empty: it was. `why` goes to the log.
  [[nodiscard]] std::string order_checkpoint(const std::string& why);
  void request_checkpoint(const std::string& by, const std::string& why);
  void order_checkpoint_if_due();

  // Processes that join or come back (joining.cpp).
  [[nodiscard]] RunAtHello run_at(const Hello& hello) const;
  void on_hello(ConnectionId from, const Hello& hello);
  void turn_away(ConnectionId from, const Verdict& verdict);
  void join_first_view(MemberStatus& member);
  void join_late(MemberStatus& member, bool was_member);
  void join_as_reducer(MemberStatus& member);
  void come_back(MemberStatus& member);
  void let_copy(MemberStatus& member);
  void admit_waiting();
  [[nodiscard]] Admitted admission() const;
  [[nodiscard]] std::vector<Round> newest_of_donors() const;
  void on_ready(MemberStatus& member);
  void hold_rounds_if_late(const std::string& name);

  // Views (views.cpp).
  void seal_first_view_if_all_are_here();
  void seal_first_view();
  void begin_first_view_if_sealed();
  void seal_first_view_again();
  void begin_anew();
  void change_view(const std::string& why);
  void suspend(phase::Obstacle why);
  [[nodiscard]] bool expects_more() const;
  [[nodiscard]] bool has_survivor() const;
  void on_sealed(MemberStatus& member, const Sealed& sealed);
  [[nodiscard]] bool may_begin_view() const;
  void begin_view();
  void announce(NewView message);

  // Return to checkpoints when no member has the state any more (going_back.cpp).
  [[nodiscard]] Outlook outlook() const;
  [[nodiscard]] bool all_may_return() const;
  [[nodiscard]] bool state_is_lost() const;
  [[nodiscard]] bool state_is_gone() const;
  void note_survivors();
  void repeat_warmup_if_stuck();
  void go_back_to_checkpoints();
  void begin_at_checkpoints();

  // Reports of members in training (progress.cpp).
  void on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat);
  [[nodiscard]] HeartbeatReply reply_to(const MemberStatus& member, std::uint64_t number) const;
  [[nodiscard]] bool check_reports(MemberStatus& member);
  [[nodiscard]] bool all_have_the_same_state(const MemberStatus& member,
                                             const std::vector<StateDigest>& digests);
  void deal_again_if_links_changed();
  void settle_evaluations(bool all_done = false);

  // The end (ending.cpp).
  [[nodiscard]] bool must_end_without_state();
  void end_without_state();
  void settle_stop();
  void on_done(MemberStatus& member, const Done& done);
  void begin_to_end();
  void dismiss_newcomers();
  [[nodiscard]] bool ends_with(const MemberStatus& member) const;
  void finish_if_all_done();
  void finish();
  void end(Ended::How how, const std::string& reason);

  /// How the first view begins. Outlives it: if it has begun at no member, it is sealed again.
  struct FirstView {
    std::size_t planned = 0;  ///< replicas with which it begins, also after a return to checkpoints
    std::optional<CheckpointId> goes_back_to{};  ///< step 0: to the beginning
  };
  /// While an operator recovers the run.
  struct Recovery {
    bool token_is_known = true;                      ///< false until a member has shown the run's token
    Digest own_token;                                ///< for a run that begins anew
    std::map<std::string, std::uint64_t> had_state;  ///< incarnations with state
    /// The replica was restarted. Returns whether it was the last that could bring the run's state.
    bool loses_last(const MemberInfo& info);
  };
  struct Ending {
    bool stopping = false;                     ///< a stop was ordered
    bool at_last_step = false;                 ///< a member has reached the last step
    std::optional<std::uint64_t> stop_step{};  ///< agreed once all trainers have reported their step
    [[nodiscard]] bool has_begun() const { return stopping || at_last_step; }
  };
  struct Losses {
    std::map<std::string, Time> at;  ///< lost trainers that have not come back
    std::string last;                ///< the trainers lost last, and how
    std::set<ReplicaId> left;        ///< trainers of the last view that said goodbye
    std::optional<Time> no_trainer_since{};
    bool said_that_no_trainer_is_here = false;
  };
  struct Newcomers {
    std::map<std::string, std::size_t> missed;  ///< by name: times ready since its last view
    /// Until this time no view begins without this one.
    std::optional<std::pair<std::string, Time>> waited_for{};
    [[nodiscard]] bool are_waited_for(const Roster& roster, Time now) const;
  };
  struct Reports {
    Evaluations evaluations;
    ChainReports chains;
    GatheredRecords records;
    StateDigests digests;
    RunHealth health;
    RunPaths paths;
    DealWatch deals;
    RunRelays relays;
    /// Rounds reported in older views may have been undone.
    void begin(const View& view, const FragmentLayout& layout);
    /// Sends news of the relays to the members of the view.
    void tell_relays(const Roster& roster, ActionQueue& out);
  };

  CoordinatorOptions options_;
  Time now_;
  Phase phase_;
  ViewNumber number_ = 0;  ///< highest view number announced
  std::optional<FragmentLayout> layout_;
  FirstView first_view_;
  Recovery recovery_;
  Ending ending_;
  Losses losses_;
  Newcomers newcomers_;
  std::uint64_t paths_seen_ = 0;         ///< comparisons of the paths at the last look
  WallTime wall_{};                      ///< as last given to `follow_calendars`
  std::optional<Time> gathering_until_;  ///< waits until then for the members of the last view
  std::string held_back_because_;
  std::uint64_t resumed_from_ = 0;
  Roster roster_;
  Observers observers_;
  AnnouncedViews announced_;
  Steering steering_;
  CheckpointOrders checkpoints_;
  Reports reports_;
  ActionQueue out_;
};

}  // namespace isthmus::outer_sync::protocol
