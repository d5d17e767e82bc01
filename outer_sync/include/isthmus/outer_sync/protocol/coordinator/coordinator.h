#pragma once
// The coordinator as a pure state machine: admits members, forms views, agrees on the stop, and compares the
// members' state. Messages and the time go in, actions come out; no parameter bytes pass through it. Rules
// and reasons: docs/protocol.md.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/audits.h"
#include "isthmus/outer_sync/protocol/coordinator/change_requests.h"
#include "isthmus/outer_sync/protocol/coordinator/checkpoint_orders.h"
#include "isthmus/outer_sync/protocol/coordinator/observations.h"
#include "isthmus/outer_sync/protocol/coordinator/paths.h"
#include "isthmus/outer_sync/protocol/coordinator/relays.h"
#include "isthmus/outer_sync/protocol/health.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/protocol/received.h"
#include "isthmus/outer_sync/protocol/topology.h"
#include "isthmus/outer_sync/protocol/view_change.h"

namespace isthmus::outer_sync::protocol {

using ConnectionId = std::uint64_t;

/// The view announced last: all that a coordinator must remember across a restart.
struct LastView {
  ViewNumber number = 0;
  std::vector<MemberInfo> members;
  Digest token;
  Settings settings{};           ///< with which it began
  std::uint64_t lease = 0;       ///< microseconds: length of its members' leases
  std::uint64_t checkpoint = 0;  ///< newest step of which all trainers have had a checkpoint; 0: none
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, members, token, settings, lease, checkpoint);
  }
};

/// Whether a requested change of settings is allowed.
struct ChangeVerdict {
  std::string problem;   ///< why it is not allowed, naming the key; empty: it is
  bool at_once = false;  ///< each member sets this key for itself: no agreement is needed
};

struct CoordinatorOptions {
  std::string run;
  std::string build{};      ///< of this binary; other builds are logged
  std::uint64_t steps = 0;  ///< length of the run; nothing changes at or after the last step
  /// Checks a change against all earlier changes. Null: this run accepts no changes.
  std::function<ChangeVerdict(const Settings& before, const ConfigItems& items)> judge{};
  std::size_t replicas = 1;
  /// Members that only reduce. The first view waits for this many, for `detect_timeout` at most.
  std::size_t reducers = 0;
  ConfigItems config;  ///< agreed and live keys, which every member must share
  Digest token;        ///< unguessable; members present it to each other
  Time join_timeout{};
  Time detect_timeout{};  ///< also how long a lease lasts
  /// Time from one complete checkpoint of all trainers until the next is ordered; 0: never.
  Time checkpoint_interval{};
  std::size_t least = 1;  ///< trainers needed to form a view
  TopologyRule topology;  ///< how a view's chunks are assigned to owners
  /// Owners may close chunks without all members of the view (quorum) while they hold a lease. If not set,
  /// members that are left out can do no harm, and no view waits for leases to end.
  bool leases = false;
  /// Members may be lost and may join in mid-run. Otherwise (data-parallel baseline, benchmarks) a loss ends
  /// the run.
  bool elastic = true;
  Round warmup_rounds = 0;       ///< no member joins before all fragments are past these
  std::optional<LastView> last;  ///< left by an earlier coordinator
  /// Recover the run: form a view from the members present, without knowing the last view and even if none of
  /// its members is present. Higher than any view number used before; new numbers start above it.
  std::optional<ViewNumber> recover;
  /// When recovering: the memory of the previous coordinator, if this disk still has it. Without it, another
  /// coordinator may be running elsewhere with half of the trainers.
  std::optional<LastView> before{};
  /// Names of trainers of the last view that need not be present to recover the run. The operator knows that
  /// they are gone, and gives up the rounds that only they have.
  std::set<std::string> given_up{};
};

struct SendControl {
  ConnectionId to;
  ControlMessage message;
};
/// Close the connection after all queued messages have been sent.
struct CloseConnection {
  ConnectionId connection;
};
/// A line for the log.
struct Say {
  std::string text;
  bool of_stranger = false;  ///< an unknown peer caused it: such lines can be many, and contain any words
};
/// Write to disk before any later message is sent, then log `line`.
struct Store {
  LastView view;
  std::string line;
  bool again = false;  ///< the view is announced already: nothing waits, and a failed write does no harm
};
/// All members have reported their share of one evaluation. `loss` in nats per token.
struct Evaluated {
  std::uint64_t step;
  double loss;
};
/// A heartbeat has arrived or a view has begun: `members()` has changed.
struct MembersChanged {};
/// A status query: reply, then close the connection.
struct StatusAsked {
  ConnectionId from;
};
/// New records of a member, in order. They must be stored when this action has been carried out: the next
/// message acknowledges them.
struct Gathered {
  std::string member;
  std::uint64_t incarnation = 0;
  std::uint64_t left_out = 0;  ///< earlier records that the member could not keep until they were sent
  std::vector<Record> records;
};
struct Ended {
  /// `finished`: also a run that was stopped at one agreed step. `stopped`: it was stopped before its first
  /// step, or its members stopped at different rounds.
  enum class How { finished, stopped, diverged, failed } how;
  std::string reason;  ///< empty when finished
};
using CoordinatorAction = std::variant<SendControl, CloseConnection, Say, Store, Evaluated, MembersChanged,
                                       Ended, RoundJudged, StatusAsked, Gathered>;

/// The state of the run, as operators see it.
enum class RunPhase { joining, changing_view, running, paused, suspended, ended };
[[nodiscard]] std::string_view name_of(RunPhase phase);

class Coordinator {
 public:
  /// State of a replica. A reducer is never `joining`, since it needs no state.
  enum class Role {
    joining,  ///< waits for the first view, or copies the state from members
    ready,    ///< has the state: may enter the next view
    member    ///< in the current view
  };
  struct MemberStatus {
    ConnectionId connection = 0;
    Hello hello;
    Role role = Role::joining;
    Time heard{};
    Time lease_end{};            ///< until then it may close chunks without the others
    bool admitted = false;       ///< has received the donors' addresses
    bool found_no_port = false;  ///< logged already: no donor can be dialled
    bool answered = false, held = false, done = false;
    /// The run is resumed, and this replica has no checkpoint: it copies the state from the others.
    bool has_nothing = false;
    std::optional<std::uint64_t> begins_at;  ///< step of the checkpoint that it was ordered to restore
    Sealed state;
    std::vector<Round> to_reach;  ///< by fragment: the others' newest rounds at `lags_since`
    Time lags_since{};
    std::uint64_t held_step = 0;
    std::uint64_t uplink = 0;  ///< bytes per second, as last reported; 0: not known
    Heartbeat heartbeat;
    Time beat{};  ///< when it arrived
    RateMeter rates;
    Done result;
  };

  using Members = std::map<std::string, MemberStatus>;  ///< by name
  /// Observers follow the run from outside: views, counts, waits and stops ignore them.
  static constexpr std::size_t max_observers = 64;
  /// Operators waiting for an answer at one time.
  static constexpr std::size_t max_operators = 16;

  /// The join timeout runs from `started`. The layout arrives with the members' answers, so the coordinator
  /// needs no model.
  Coordinator(CoordinatorOptions options, Time started);

  void receive(ConnectionId from, Time now, const ControlMessage& message);
  void closed(ConnectionId connection);
  void tick(Time now);
  /// Ends the run at a step on which all members agree.
  void request_stop(const std::string& reason);
  /// Requests a change of shared keys as an operator would; `by` and `why` go to the log. Logs the reason if
  /// it is not possible. Does nothing while another change is pending.
  void propose(const ConfigItems& items, const std::string& by, const std::string& why);
  /// Reports why the newest view cannot be announced: storing it failed. Empty: it was announced.
  void hold_back(std::string why) { held_back_because_ = std::move(why); }

  [[nodiscard]] std::vector<CoordinatorAction> take_actions() { return std::exchange(actions_, {}); }
  /// By name, in member order: members of the view and replicas that want to join it.
  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] bool stopping() const { return stopping_; }
  /// All trainers, in the view or not.
  [[nodiscard]] std::size_t trainers() const;
  /// Trainers of the view in force; 0 while rounds do not commit.
  [[nodiscard]] std::size_t participating() const;
  [[nodiscard]] ViewNumber view() const { return number_; }
  /// Paths between the members of the view.
  [[nodiscard]] const RunPaths& paths() const { return paths_; }
  /// Relayed pairs and their relays, by name.
  struct RelayedPair {
    std::string a, b, by;
    friend bool operator==(const RelayedPair&, const RelayedPair&) = default;
  };
  [[nodiscard]] std::vector<RelayedPair> relays() const;

  // ---- status of the run ----

  [[nodiscard]] const CoordinatorOptions& options() const { return options_; }
  [[nodiscard]] RunPhase run_phase() const;
  /// Why rounds do not commit; empty while they do.
  [[nodiscard]] std::string obstacle() const {
    return phase_ == Phase::suspended ? suspended_because_ : held_back_because_;
  }
  /// Settings of the view announced last.
  [[nodiscard]] const Settings& settings() const { return settings_; }
  /// Layout of the run's parameters; empty before a member has reported it.
  [[nodiscard]] const std::optional<FragmentLayout>& layout() const { return layout_; }
  /// By fragment: rounds by which a member is behind the foremost.
  [[nodiscard]] std::vector<Round> lag_of(const MemberStatus& member) const;
  /// Time since its last message.
  [[nodiscard]] Time silence_of(const MemberStatus& member) const { return now_ - member.heard; }
  /// Newest step of which all trainers of the view have a checkpoint; 0: none known.
  [[nodiscard]] std::uint64_t common_checkpoint() const;
  /// Step of the checkpoint that the run started from; 0: from its first step, or started by an earlier
  /// coordinator.
  [[nodiscard]] std::uint64_t resumed_from() const { return resumed_from_; }

 private:
  enum class Phase {
    joining,    ///< the first view has not begun
    running,    ///< a view is in force
    changing,   ///< a view is being formed: members are asked to seal it
    suspended,  ///< too few members for a view
    ended
  };

  /// A process that copies the state from members and follows their rounds.
  struct Observer {
    Hello hello;
    Time heard{};
    bool admitted = false;  ///< has received the addresses of the current view's donors
  };
  using Observers = std::map<ConnectionId, Observer>;

  // Requests of operators (coordinator/commands.cpp).
  void on_command(ConnectionId from, const Command& command);
  void on_set(ConnectionId from, const Command& command);
  void on_drain(ConnectionId from, const Command& command);
  void on_checkpoint(ConnectionId from, const Command& command);
  void on_stop(ConnectionId from, const Command& command);
  void adjust(ConnectionId from, const Command& command, const ConfigItems& items);
  void request_change(ChangeRequest request, const std::string& why);
  [[nodiscard]] ChangeVerdict judge(const ConfigItems& items) const;
  [[nodiscard]] std::string problem_of_settings(const Settings& settings) const;
  [[nodiscard]] std::string problem_of_report(ViewNumber view, const Settings& settings) const;
  [[nodiscard]] std::string reason_not_to_change() const;
  void answer(ConnectionId to, const std::string& text);
  void refuse_command(ConnectionId to, const std::string& problem);
  [[nodiscard]] Settings settings_of_next_view(const ViewPlan& plan);
  void report_changes(ViewNumber begun);
  void tell_followers();
  void drop_changes(const std::string& why);

  // Checkpoints of all trainers at one step (coordinator/checkpoints.cpp).
  [[nodiscard]] std::uint64_t step_ahead_of_all() const;
  [[nodiscard]] std::string reason_for_no_checkpoint() const;
  /// Returns why no checkpoint was ordered; empty: it was. `why` goes to the log.
  [[nodiscard]] std::string order_checkpoint(const std::string& why);
  void request_checkpoint(const std::string& by, const std::string& why);
  void tell_of_checkpoint();
  void order_checkpoint_if_due();
  void note_checkpoint(std::uint64_t common);
  [[nodiscard]] bool disks_are_slow() const;

  void on_hello(ConnectionId from, const Hello& hello);
  void on_observer_hello(ConnectionId from, const Hello& hello);
  [[nodiscard]] std::string reason_to_refuse_observer(const Hello& hello) const;
  void on_observer(Observers::iterator observer, const ControlMessage& message);
  void on_observer_heartbeat(Observers::iterator observer, const Heartbeat& heartbeat);
  void drop_observer(Observers::iterator observer, const std::string& why);
  void refuse(ConnectionId connection, const std::string& reason);
  void on_message(const std::string& name, const ControlMessage& message);
  [[nodiscard]] Bounds bounds() const;
  [[nodiscard]] std::string breach_of(const MemberStatus& member, const ControlMessage& message) const;
  [[nodiscard]] bool may_have_begun(const Hello& hello, ViewNumber view) const;
  [[nodiscard]] std::string claim_of_another_view(const Hello& hello) const;
  void drop_for(std::string name, const std::string& problem);
  void on_sealed(MemberStatus& member, const Sealed& sealed);
  void on_heartbeat(MemberStatus& member, const Heartbeat& heartbeat);
  void on_ready(MemberStatus& member);
  void on_eval(const MemberStatus& member, const EvalReport& report);
  void on_held(MemberStatus& member, const Held& held);
  void on_done(MemberStatus& member, const Done& done);
  void on_records(const MemberStatus& member, const Records& records);

  [[nodiscard]] std::string reason_to_refuse(const Hello& hello) const;
  [[nodiscard]] std::string reason_of_another_run(const Hello& hello) const;
  [[nodiscard]] std::string reason_of_another_model(const Hello& hello) const;
  [[nodiscard]] std::string reason_not_to_admit(const Hello& hello) const;
  [[nodiscard]] bool take_over_from(const Hello& hello);
  void come_back(MemberStatus& member);
  void admit(MemberStatus& member);
  void say_if_nobody_can_be_dialled(MemberStatus& newcomer);
  [[nodiscard]] bool is_of_first_view(const Hello& hello) const;
  void join_as_reducer(MemberStatus& member);
  void forget_state_before(const MemberInfo& info);
  void hold_rounds_if_late(const std::string& name);
  [[nodiscard]] bool waits_for_newcomer() const;
  [[nodiscard]] Admitted admission() const;
  [[nodiscard]] bool is_past_warmup(const MemberStatus& member) const;
  void admit_waiting();
  void admit_observers();
  [[nodiscard]] std::vector<MemberInfo> who_has_the_state() const;
  [[nodiscard]] std::vector<MemberInfo> donors() const;
  [[nodiscard]] bool able(const MemberStatus& member) const;
  [[nodiscard]] bool somebody_joins() const;

  void seal_first_view_if_all_are_here();
  void seal_first_view();
  [[nodiscard]] std::optional<std::uint64_t> choose_checkpoint();
  [[nodiscard]] bool begin_elsewhere(std::uint64_t step);
  [[nodiscard]] std::string without_common_checkpoint() const;
  [[nodiscard]] std::size_t unanswered_at_first() const;
  void begin_first_view_if_sealed();
  void begin_first_view();
  [[nodiscard]] std::string initial_disagreement() const;

  void change_view(const std::string& why);
  void suspend(const std::string& why);
  void drop_silent_answers();
  void begin_view();
  [[nodiscard]] bool all_have_one_layout();
  void announce(NewView message);
  [[nodiscard]] std::string reason_not_to_recover() const;
  void remember(const LastView& view);
  [[nodiscard]] std::size_t unanswered() const;
  [[nodiscard]] bool leases_are_out() const;
  [[nodiscard]] std::vector<Round> rounds_of(const MemberStatus& member) const;
  [[nodiscard]] bool expects_more() const;
  [[nodiscard]] std::vector<Round> newest_of_donors() const;
  [[nodiscard]] double median_speed() const;
  [[nodiscard]] bool has_survivor() const;
  [[nodiscard]] std::string reason_without_survivor() const;
  [[nodiscard]] std::string missing_survivors() const;
  [[nodiscard]] bool nobody_has_begun() const;
  void seal_first_view_again();
  void handle_all_out(const Hello& first);
  [[nodiscard]] bool state_is_gone() const;
  [[nodiscard]] bool nobody_stops();
  void begin_anew();

  // Return to checkpoints when no member has the state any more (coordinator/going_back.cpp).
  struct LastTrainers {
    std::size_t in_view = 0, with_state = 0, without_state = 0, offering = 0, left = 0;
  };
  [[nodiscard]] LastTrainers last_trainers() const;
  [[nodiscard]] bool all_have_left() const;
  [[nodiscard]] bool all_may_return() const;
  [[nodiscard]] bool others_are_given_up() const;
  [[nodiscard]] bool state_is_lost() const;
  void note_survivors();
  void end_without_state();
  [[nodiscard]] CheckpointId newest_offered() const;
  [[nodiscard]] Time patience() const;
  [[nodiscard]] bool may_go_back() const;
  void go_back_to_checkpoints();
  [[nodiscard]] std::string reason_not_to_go_back() const;
  void begin_at_checkpoints();
  void begin_with_fewer();
  [[nodiscard]] bool is_left_behind(const Hello& hello) const;
  void start_again(ConnectionId from, const Hello& hello);

  void check_chains(const MemberStatus& member);
  [[nodiscard]] bool all_have_the_same_state(const MemberStatus& member, const std::vector<Audit>& audits);
  void take_health(MemberStatus& member);
  void take_paths(MemberStatus& member);
  void check_links(const MemberStatus& member);
  void leave_out(const std::vector<RunRelays::Pair>& pairs);
  void tell_relays();
  void check_lag(const std::string& name, const std::vector<Round>& newest);
  void evict(std::string name, const std::string& reason);
  void remove(Members::iterator place);
  void settle_evaluations(bool all_done = false);
  void settle_stop();
  void announce_stop_step();
  void begin_to_end();
  void dismiss_newcomers();
  void finish_if_all_done();
  [[nodiscard]] bool stopped_apart(const MemberStatus& one, const MemberStatus& other) const;
  void finish();
  // Names are passed by value where the caller's reference would be erased with the member.
  /// Handles the loss of a replica: while others still join, its place is free again; later the view changes.
  void lose(const std::string& name, const std::string& how) { lose(std::vector{name}, how); }
  /// All names at once, followed by one view change. `left`: they said goodbye, and will not come back by
  /// themselves.
  void lose(const std::vector<std::string>& names, const std::string& how, bool left = false);
  [[nodiscard]] bool somebody_may_return();
  void look_whether_nobody_is_here();
  void say_that_nobody_is_here();
  void end(Ended::How how, const std::string& reason);
  void say(std::string text);
  void say_of_stranger(std::string text);
  void close(ConnectionId connection);
  void send(const MemberStatus& member, ControlMessage message);
  void broadcast(const ControlMessage& message);
  [[nodiscard]] std::uint16_t free_slot(const std::string& name) const;
  [[nodiscard]] std::string name_of(ConnectionId connection) const;
  [[nodiscard]] std::string names(Role role) const;
  [[nodiscard]] const MemberStatus* first_trainer() const;
  template <class Select>
  [[nodiscard]] std::size_t count(Select select) const;
  [[nodiscard]] std::size_t count(Role role) const;

  CoordinatorOptions options_;
  std::size_t planned_;  ///< replicas with which the first view begins, also after a return to checkpoints
  Time started_, now_;
  std::optional<Time> all_here_since_;  ///< all trainers, while the first view forms
  bool first_sealed_ = false;           ///< all members were asked for their state
  Phase phase_ = Phase::joining;
  ViewNumber number_ = 0;  ///< highest view number announced
  std::optional<FragmentLayout> layout_;
  struct AnnouncedView {
    std::set<ReplicaId> members;
    Settings settings;
  };
  std::map<ViewNumber, AnnouncedView> announced_;  ///< the newest announced views
  bool token_is_known_ = true;  ///< false during a recovery, until a member has shown the run's token
  Digest own_token_;            ///< for a run that begins anew
  std::map<std::string, std::uint64_t> had_state_;  ///< incarnations with state, during a recovery
  bool stopping_ = false, ending_ = false;  ///< a stop was ordered; a member has reached the last step
  std::optional<std::uint64_t> stop_step_;  ///< agreed once all trainers have reported their step
  Members members_;
  Observers observers_;
  std::set<ConnectionId> operators_;  ///< waiting for an answer
  ChangeRequests changes_;
  CheckpointOrders checkpoints_;
  std::uint64_t resumed_from_ = 0;
  Settings settings_;        ///< of the newest known view
  mutable Settings judged_;  ///< last settings reported and found valid; other members report the same
  ViewNumber settings_view_ = 0;
  std::map<std::string, std::uint16_t> slots_;  ///< of every name that was ever a member
  Time change_began_{};
  Time foreign_leases_end_{};  ///< latest lease end of removed members
  std::optional<Time> nobody_since_;
  bool said_that_nobody_is_here_ = false;
  std::map<std::string, Time> lost_at_;       ///< lost trainers that have not come back
  std::string last_lost_;                     ///< the trainers lost last, and how
  std::set<ReplicaId> left_;                  ///< trainers of the last view that said goodbye
  std::optional<Time> no_survivor_since_;     ///< since when no member present has the run's state
  std::optional<Time> goes_back_at_;          ///< when it returns to checkpoints without the absent trainers
  std::optional<CheckpointId> goes_back_to_;  ///< checkpoint with which the new first view begins
  std::optional<Time> gathering_until_;       ///< waits until then for the members of the last view
  Bars bars_;
  std::map<std::string, std::size_t> missed_;  ///< by name: times ready since its last view
  std::optional<std::pair<std::string, Time>>
      waited_for_;  ///< until this time no view begins without this newcomer
  std::string suspended_because_, held_back_because_;
  Evaluations evaluations_;
  ChainReports chains_;
  GatheredRecords gathered_;
  Audits audits_;
  RunHealth health_;
  RunPaths paths_;
  RunRelays relays_;
  std::set<ConnectionId> closing_;
  std::vector<CoordinatorAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
