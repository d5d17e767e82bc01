#pragma once
// The coordinator's side: who takes part, which view is in force, the agreed stop, and whether all members
// still agree. A pure state machine: messages and the time go in, actions come out. No parameter bytes pass
// through it. docs/protocol.md has the rules and their reasons.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/audits.h"
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

/// All that a coordinator has to remember beyond its own death: the view that it announced last.
struct LastView {
  ViewNumber number = 0;
  std::vector<MemberInfo> members;
  Digest token;
  Settings settings{};           ///< that it began with
  std::uint64_t lease = 0;       ///< in microseconds: how long its members may go on by what they were told
  std::uint64_t checkpoint = 0;  ///< step of the newest that all trainers have had; 0: none
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, members, token, settings, lease, checkpoint);
  }
};

/// What it says to a change of settings that somebody asks for.
struct ChangeVerdict {
  std::string problem;   ///< why not, naming the key; empty: it may be
  bool at_once = false;  ///< a key that is each member's own: no agreement is needed
};

struct CoordinatorOptions {
  std::string run;
  std::string build{};      ///< of this binary: others are noted
  std::uint64_t steps = 0;  ///< that the run has; nothing is changed at or after the last
  /// Whether these values can be set beside all that was changed before; null: nothing can.
  std::function<ChangeVerdict(const Settings& before, const ConfigItems& items)> judge{};
  std::size_t replicas = 1;
  /// That only reduce. The first view waits for them too, but for no longer than `detect_timeout`.
  std::size_t reducers = 0;
  ConfigItems config;  ///< agreed and live keys that every member must share
  Digest token;        ///< unguessable; members show it to each other
  Time join_timeout{};
  Time detect_timeout{};  ///< also how long a lease lasts
  /// All write a checkpoint when so much time has passed since the last one that is complete; 0 never.
  Time checkpoint_interval{};
  std::size_t least = 1;  ///< no view is formed with fewer trainers
  TopologyRule topology;  ///< how the chunks of a view are dealt
  /// Owners may close chunks without all members of the view (quorum), as long as they have a lease. Where
  /// they may not, nobody who is left out can do harm, and no view waits for a lease to end.
  bool leases = false;
  /// Members may be lost and join in mid-run. Otherwise (the data-parallel baseline,
  /// benchmarks) a loss ends the run.
  bool elastic = true;
  Round warmup_rounds = 0;       ///< nobody joins before all fragments are past these
  std::optional<LastView> last;  ///< of a coordinator that came before
  /// Form a view from whoever is here, although this coordinator knows of none and none of the last one may
  /// be here. View numbers begin above this one, which must be higher than any that was given before.
  std::optional<ViewNumber> recover;
  /// Of a coordinator that recovers a run: what the one before it left on this disk, if that can be read.
  /// Else another coordinator may be at work elsewhere, with half of the trainers.
  std::optional<LastView> before{};
  /// Trainers of the last view who need not be here to recover the run, by name: an operator knows that they
  /// are gone, and gives up the rounds that only they have.
  std::set<std::string> given_up{};
};

struct SendControl {
  ConnectionId to;
  ControlMessage message;
};
/// Close after what was sent has left.
struct CloseConnection {
  ConnectionId connection;
};
/// A line for people.
struct Say {
  std::string text;
  bool of_stranger = false;  ///< anybody can cause such lines, as many as they like, and words in them
};
/// To be on disk before anything that follows is sent. `line`: for people, when it is.
struct Store {
  LastView view;
  std::string line;
  bool again = false;  ///< a view that is announced already: nothing waits for it, and a full disk is no harm
};
/// All members' shares of one evaluation are in. `loss` in nats per token.
struct Evaluated {
  std::uint64_t step;
  double loss;
};
/// A heartbeat came in or a view began; `members` of the state machine is fresh.
struct MembersChanged {};
/// Somebody asks how the run stands: answer him, and close the connection.
struct StatusAsked {
  ConnectionId from;
};
/// Lines of a member that nobody has given before, in order. They are where they belong when this action has
/// been carried out: what follows tells the member so.
struct Gathered {
  std::string member;
  std::uint64_t incarnation = 0;
  std::uint64_t left_out = 0;  ///< lines before these that the member could not keep for so long
  std::vector<Record> records;
};
struct Ended {
  /// `finished` is also how a run ends that was stopped in mid-run at one step; `stopped` is one that was
  /// stopped before it had begun, or where its members have not come to the same rounds.
  enum class How { finished, stopped, diverged, failed } how;
  std::string reason;  ///< empty when finished
};
using CoordinatorAction = std::variant<SendControl, CloseConnection, Say, Store, Evaluated, MembersChanged,
                                       Ended, RoundJudged, StatusAsked, Gathered>;

class Coordinator {
 public:
  /// What a replica is to the coordinator. One that only reduces is never joining: it needs no state.
  enum class Role {
    joining,  ///< at the start of a run; or takes the state from members
    ready,    ///< has the state, or had it when it was cut off: the next view may have it
    member    ///< of the view in force
  };
  struct MemberStatus {
    ConnectionId connection = 0;
    Hello hello;
    Role role = Role::joining;
    Time heard{};
    Time lease_end{};            ///< until then it may close chunks without others
    bool admitted = false;       ///< was told whom to take the state from
    bool found_no_port = false;  ///< it was said that nobody who has the state can be dialled
    bool answered = false, held = false, done = false;
    /// The run is resumed, and it has nothing to resume from: it takes the state from the others.
    bool has_nothing = false;
    std::optional<std::uint64_t> begins_at;  ///< step of the checkpoint that it was told to restore
    Sealed state;
    std::vector<Round> to_reach;  ///< by fragment, where it was seen to lag: what the others had by then
    Time lags_since{};
    std::uint64_t held_step = 0;
    std::uint64_t uplink = 0;  ///< bytes per second, the newest it said; 0: not known
    Heartbeat heartbeat;
    Time beat{};                  ///< when it came
    double sent_per_second = 0;   ///< bytes, over the last seconds
    double steps_per_second = 0;  ///< agreed steps, with what was waited for, over the same
    Time rate_since{};            ///< measured from here
    std::uint64_t rate_from = 0;  ///< and from so many bytes
    std::uint64_t step_from = 0;  ///< and this step
    Done result;
  };

  using Members = std::map<std::string, MemberStatus>;  ///< by name
  /// Observers follow the run and are nobody in it: no view, count, wait or stop knows of them.
  static constexpr std::size_t max_observers = 64;
  /// That wait for an answer at one time.
  static constexpr std::size_t max_operators = 16;

  /// `started`: the join time-out runs from here. The layout comes with the members' answers: the coordinator
  /// needs no model.
  Coordinator(CoordinatorOptions options, Time started);

  void receive(ConnectionId from, Time now, const ControlMessage& message);
  void closed(ConnectionId connection);
  void tick(Time now);
  /// Ends the run at a step that all members share.
  void request_stop(const std::string& reason);
  /// As if an operator had asked to set these keys, which all share; `by` and `why` are for people. Where it
  /// cannot be, a line says so, and nothing is done while another change is under way.
  void propose(const ConfigItems& items, const std::string& by, const std::string& why);
  /// The newest view is not announced to its members, and why: it cannot be stored. Empty: it is announced.
  void hold_back(std::string why) { held_back_because_ = std::move(why); }

  [[nodiscard]] std::vector<CoordinatorAction> take_actions() { return std::exchange(actions_, {}); }
  /// By name, in member order: members of the view, and those that are to join it.
  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] bool stopping() const { return stopping_; }
  /// Those that train, in all that there are.
  [[nodiscard]] std::size_t trainers() const;
  /// Trainers of the view in force; 0 while rounds do not commit.
  [[nodiscard]] std::size_t participating() const;
  [[nodiscard]] ViewNumber view() const { return number_; }
  /// Between the members of the view.
  [[nodiscard]] const RunPaths& paths() const { return paths_; }
  /// Who carries what for whom, by name.
  struct RelayedPair {
    std::string a, b, by;
    friend bool operator==(const RelayedPair&, const RelayedPair&) = default;
  };
  [[nodiscard]] std::vector<RelayedPair> relays() const;

  // ---- what those are told who ask how the run stands ----

  [[nodiscard]] const CoordinatorOptions& options() const { return options_; }
  /// joining, running, paused, changing, suspended or ended.
  [[nodiscard]] std::string phase_name() const;
  /// Why rounds do not commit; empty while they do.
  [[nodiscard]] std::string obstacle() const {
    return phase_ == Phase::suspended ? suspended_because_ : held_back_because_;
  }
  /// Of the view announced last.
  [[nodiscard]] const Settings& settings() const { return settings_; }
  /// Of the run's parameters; none before its members have told of it.
  [[nodiscard]] const std::optional<FragmentLayout>& layout() const { return layout_; }
  /// By fragment: how many rounds a member is behind the foremost.
  [[nodiscard]] std::vector<Round> lag_of(const MemberStatus& member) const;
  /// Since it was last heard.
  [[nodiscard]] Time silence_of(const MemberStatus& member) const { return now_ - member.heard; }
  /// Newest step of which all trainers of the view have a checkpoint; 0: none known.
  [[nodiscard]] std::uint64_t common_checkpoint() const;
  /// Step of the checkpoint that the run has begun from; 0: from its first step, or before this coordinator.
  [[nodiscard]] std::uint64_t resumed_from() const { return resumed_from_; }

 private:
  enum class Phase {
    joining,    ///< the first view has not begun
    running,    ///< a view is in force
    changing,   ///< a view was announced, members are to seal it
    suspended,  ///< too few members for a view
    ended
  };

  /// Takes the state from members and follows their rounds.
  struct Observer {
    Hello hello;
    Time heard{};
    bool admitted = false;  ///< was told whom to take the state from, as of the view in force
  };
  using Observers = std::map<ConnectionId, Observer>;

  /// A change of settings that the next view is to begin with. Until a member has begun that view it may come
  /// to nothing, and is asked for once more.
  struct Wish {
    enum class What { change, pause, resume } what;
    ConnectionId from = 0;  ///< who waits for the answer
    std::string by;
    Change change;           ///< its step is the earliest; 0: as soon as all can
    ViewNumber in = 0;       ///< announced with this view; 0: not yet
    std::uint64_t step = 0;  ///< that was announced
  };

  // What operators ask for (coordinator_commands.cpp).
  void on_command(ConnectionId from, const Command& command);
  void on_set(ConnectionId from, const Command& command);
  void on_drain(ConnectionId from, const Command& command);
  void on_checkpoint(ConnectionId from, const Command& command);
  void on_stop(ConnectionId from, const Command& command);
  void adjust(ConnectionId from, const Command& command, const ConfigItems& items);
  void wish(Wish wish, const std::string& why);
  [[nodiscard]] ChangeVerdict judge(const ConfigItems& items) const;
  [[nodiscard]] std::string problem_of_settings(const Settings& settings) const;
  [[nodiscard]] std::string problem_of_report(ViewNumber view, const Settings& settings) const;
  [[nodiscard]] std::string reason_not_to_change() const;
  void answer(ConnectionId to, const std::string& text);
  void refuse_command(ConnectionId to, const std::string& problem);
  [[nodiscard]] std::string grant(Wish& wish, Settings& settings, std::uint64_t reach) const;
  [[nodiscard]] static bool holds(const Wish& wish, const Settings& settings);
  [[nodiscard]] Settings settings_of_next_view(const ViewPlan& plan);
  void settle_wishes(ViewNumber begun);
  void tell_followers();
  void drop_wishes(const std::string& why);
  void measure_rate(MemberStatus& member, const Heartbeat& heartbeat);

  // Checkpoints of all at one step (coordinator_checkpoints.cpp).
  [[nodiscard]] std::uint64_t step_ahead_of_all() const;
  [[nodiscard]] std::string reason_for_no_checkpoint() const;
  /// Returns why there is none; empty: all were told of one. `why` is for people.
  [[nodiscard]] std::string order_checkpoint(const std::string& why);
  void request_checkpoint(const std::string& by, const std::string& why);
  void tell_of_checkpoint();
  void order_checkpoint_if_due();
  void note_checkpoint(std::uint64_t common);

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

  // Back to checkpoints when nobody has the state any more (coordinator_going_back.cpp).
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
  void bar(const std::string& name);
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
  // (Names by value: callers have them from what is erased here.)
  /// A replica is gone: its place is free again while others are still joining; later the view changes.
  void lose(const std::string& name, const std::string& how) { lose(std::vector{name}, how); }
  /// All at once: one view follows. `left`: they have said goodbye, and do not come back by themselves.
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
  std::size_t planned_;  ///< replicas that the first view, and one at checkpoints, begins with
  Time started_, now_;
  std::optional<Time> all_here_since_;  ///< all who train, while the first view forms
  bool first_sealed_ = false;           ///< since then all have been asked for their state
  Phase phase_ = Phase::joining;
  ViewNumber number_ = 0;  ///< highest announced
  std::optional<FragmentLayout> layout_;
  struct AnnouncedView {
    std::set<ReplicaId> members;
    Settings settings;
  };
  std::map<ViewNumber, AnnouncedView> announced_;   ///< the newest that this coordinator knows of
  bool token_is_known_ = true;                      ///< not while it recovers a run that it does not remember
  Digest own_token_;                                ///< of a run that begins anew
  std::map<std::string, std::uint64_t> had_state_;  ///< incarnations heard while it recovers, with rounds
  bool stopping_ = false, ending_ = false;          ///< asked to stop; somebody has reached the last step
  std::optional<std::uint64_t> stop_step_;          ///< agreed, once all have said where they are
  Members members_;
  Observers observers_;
  std::set<ConnectionId> operators_;  ///< that wait for an answer
  std::vector<Wish> wishes_;
  std::uint64_t checkpoint_ordered_ = 0;   ///< step of the newest that all were told of
  std::uint64_t checkpoint_complete_ = 0;  ///< step of the newest that all have had
  std::uint64_t resumed_from_ = 0;
  Time checkpoint_wait_{};  ///< until the next one is due
  std::optional<Time> checkpoint_due_;
  static constexpr std::uint64_t min_steps_to_spare = 2;
  std::uint64_t steps_to_spare_ = min_steps_to_spare;  ///< more where somebody has missed one
  Settings settings_;                                  ///< of the newest view that is known of
  mutable Settings judged_;  ///< reported by a member, and judged: the others report the same
  ViewNumber settings_view_ = 0;
  std::map<std::string, std::uint16_t> slots_;  ///< of all names that were ever members
  Time change_began_{};
  Time foreign_leases_end_{};  ///< of those that are gone
  std::optional<Time> nobody_since_;
  bool said_that_nobody_is_here_ = false;
  std::map<std::string, Time> lost_at_;       ///< trainers that were lost and have not come back
  std::string last_lost_;                     ///< the last trainers that were lost, and how
  std::set<ReplicaId> left_;                  ///< trainers of the last view that have said goodbye
  std::optional<Time> no_survivor_since_;     ///< nobody who is here has the run's state
  std::optional<Time> goes_back_at_;          ///< to checkpoints, also without those who are not here by then
  std::optional<CheckpointId> goes_back_to_;  ///< its first view is one that begins there
  std::optional<Time> gathering_until_;       ///< of one that has come back: waits for its members
  /// Who has no connection to another member is left out for a while, longer each time: views with both would
  /// stall again and again.
  struct Bar {
    Time until{}, length{};
  };
  std::map<std::string, Bar> barred_;
  std::map<std::string, std::size_t>
      missed_;  ///< by name: how often it was ready since it was last in a view
  std::optional<std::pair<std::string, Time>>
      waited_for_;  ///< no view begins without this newcomer until then
  std::string suspended_because_, held_back_because_;
  struct Evaluation {
    double sum_nats = 0;
    std::uint64_t tokens = 0;
    std::vector<std::string> by;
  };
  std::map<std::uint64_t, Evaluation> evaluations_;
  struct ChainPoint {
    std::uint64_t prefix;
    std::string by;
  };
  std::map<std::size_t, std::map<Round, ChainPoint>> chains_;  ///< by fragment, the newest rounds reported
  /// Of a member's records, up to which they are gathered. Outlives its connections.
  struct GatheredUpTo {
    std::uint64_t incarnation = 0, next = 0;
  };
  std::map<std::string, GatheredUpTo> gathered_;
  Audits audits_;
  RunHealth health_;
  RunPaths paths_;
  RunRelays relays_;
  std::set<ConnectionId> closing_;
  std::vector<CoordinatorAction> actions_;
};

}  // namespace isthmus::outer_sync::protocol
