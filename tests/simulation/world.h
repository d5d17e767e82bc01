#pragma once
// The protocol's members and coordinator on a simulated network, in one thread and virtual time. All
// randomness comes from one seed, so every run repeats exactly. Connections delay messages, break in the
// middle, and stall where the network is cut, in one direction or both. Processes crash, stand still, are
// slow and come back; disks are lost. After every event the invariants of docs/protocol.md are checked.

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "isthmus/base/random.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/exchanges.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/member_actions.h"
#include "isthmus/outer_sync/protocol/work_order.h"

namespace isthmus::outer_sync::protocol {

inline constexpr Time heartbeat = std::chrono::milliseconds(100);
inline constexpr Time detect_timeout = std::chrono::milliseconds(500);
inline constexpr Time tick_every = std::chrono::milliseconds(25);
inline constexpr Time redial_after = std::chrono::milliseconds(60);
inline constexpr Time fault_time = std::chrono::seconds(6);
inline constexpr Time calm_time = std::chrono::seconds(16);
inline constexpr Time severed_time = std::chrono::seconds(6);
inline constexpr Time longest_view_change = std::chrono::seconds(4);
inline constexpr Round rounds_in_calm = 3;

/// Moments at which an ambush strikes: between two steps of the protocol that belong together, which a fault
/// at a random time hardly ever hits.
enum class Moment {
  hello,
  seal_sent,
  sealed,
  stored,
  view_sent,
  view_begun,
  ready,
  evicted,
  made,
  delivered,
  applied
};
inline constexpr std::size_t moments = 11;

/// Faults of one member, or of the coordinator.
enum class Fault {
  crash,
  stand_still,
  one_way_cut,
  cut,
  alone,
  partition,
  lane,
  lane_down,
  control,
  coordinator,
  slow
};
inline constexpr std::size_t faults = 11;

/// How often each kind of event happened, by name, to show when the simulator no longer tests something.
using Tally = std::map<std::string, std::uint64_t>;

class World {
 public:
  World(std::uint64_t seed, bool tell);

  /// Runs the world to its end; returns the first broken rule, or "".
  [[nodiscard]] std::string run();
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] const Tally& tally() const { return tally_; }
  /// Hash of all events in their order and of all histories; two runs of a seed must have the same.
  [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }
  /// The events, one per line; empty unless the constructor asked for them.
  [[nodiscard]] const std::vector<std::string>& story() const { return story_; }

 private:
  using NodeId = std::size_t;  ///< a member's number, or members_ for the coordinator
  struct Process;

  /// The contributions of a chunk's result.
  struct Result {
    std::vector<ReplicaId> contributors;
    std::vector<ReplicaId> present;  ///< including the rejected ones
    std::size_t of = 0;              ///< number of trainers in the view
  };

  /// Both directions of one TCP connection.
  struct Link {
    NodeId a = 0, b = 0;
    bool open = true;
    Time survives_until = Time::max();  ///< messages that would arrive later are lost
    Time last_arrival[2] = {};          ///< messages arrive in order
    std::vector<std::function<void()>> stalled[2];
  };
  using LinkPtr = std::shared_ptr<Link>;

  /// One replica's process, from its start to its end.
  struct Process {
    NodeId id = 0;
    std::uint64_t incarnation = 0;
    bool alive = false, stopped = false, in_run = false, done = false;
    int slowness = 1;
    int patience = 1;   ///< its own network.detect_timeout, as a multiple of the coordinator's
    bool used = false;  ///< its parameters are no longer a run's initial ones
    std::vector<std::function<void()>> backlog;  ///< events while it stood still
    std::unique_ptr<Member> member;
    std::unique_ptr<Exchanges> exchanges;   ///< from its first view on, in worlds that have them
    std::vector<std::uint64_t> exchanging;  ///< by fragment: step of its exchange in this view; 0: none
    ReplicaId replica = 0;
    LinkPtr control;
    ConnectionId connection = 0;
    std::uint64_t beats = 0;
    std::map<std::uint64_t, Time> beat_times;
    std::vector<Round> contributed;  ///< by fragment: newest round
    std::vector<Round> first;        ///< by fragment: round from which it took part
    std::optional<Sealed> answer;    ///< to the newest Seal
    std::map<std::pair<FragmentId, Round>, std::string> sent_under;  ///< settings of rounds contributed to
    DeliveredRounds<Deliver> rounds;
    std::map<std::pair<FragmentId, Round>, Deliver> restored;  ///< in flight in its checkpoint
    std::optional<Deliver> applying;
    std::optional<NewView> waiting_view;
    // Training samples:
    WorkOrder order;
    SampleSet taken;                 ///< samples that its view withholds
    std::vector<Round> decided;      ///< by fragment: newest round committed when its view began
    SampleSet drawn;                 ///< samples assigned since it got its parameters
    std::vector<SampleSet> pending;  ///< by fragment: for its next contribution
    std::map<std::pair<FragmentId, Round>, SampleSet>
        handed_in;                    ///< samples of contributions to rounds not applied yet
    std::vector<SampleSet> rejected;  ///< by fragment
    Digest token;
    // While it copies the state from others:
    bool learning = false, said_ready = false;
    std::vector<std::optional<FragmentState>> learned;
    Ledger learned_ledger;
    Settings learned_settings;
    std::vector<NodeId> donors;
    std::vector<LinkPtr> sources;  ///< by fragment
    std::vector<Round> newest;
    std::vector<std::tuple<NodeId, FragmentId, LinkPtr>>
        followers;           ///< members that copy the state from this one
    Time heard{};            ///< last message from the coordinator
    std::uint64_t life = 0;  ///< changes whenever its scheduled events become void
    std::map<NodeId, Time> down_since;
    Relays relays;  ///< the newest announcement it got

    void forget_member() {
      member.reset();
      exchanges.reset();
    }
  };

  // chance and time
  std::uint64_t chance(std::uint64_t n) { return random_bits(seed_, 0, counter_++) % n; }
  Time some(Time most) {
    return Time(static_cast<std::int64_t>(chance(static_cast<std::uint64_t>(most.count()))));
  }
  void at(Time delay, std::function<void()> event);
  void in(Process& process, Time delay, std::function<void()> event);
  void fail(const std::string& what);
  void tell(const std::string& what);
  void mix(std::uint64_t value) { fingerprint_ = random_bits(fingerprint_, 2, value); }
  void count(const std::string& what) { ++tally_[what]; }

  // the network
  [[nodiscard]] bool cut(NodeId from, NodeId to) const { return cuts_.contains({from, to}); }
  [[nodiscard]] LinkPtr connect(NodeId a, NodeId b);
  void transmit(const LinkPtr& link, NodeId from, std::function<void()> arrive);
  void break_link(const LinkPtr& link);
  void heal();
  void closed(const LinkPtr& link, NodeId end);
  [[nodiscard]] LinkPtr& lane(NodeId a, NodeId b, ChunkId chunk);
  void dial_peer(NodeId a, NodeId b, std::size_t lane_index);
  [[nodiscard]] bool connected(NodeId a, NodeId b);
  [[nodiscard]] std::optional<NodeId> relay_told(NodeId m, NodeId a, NodeId b) const;
  [[nodiscard]] bool way_is_open(NodeId a, NodeId b);
  void send_bulk(NodeId from, NodeId to, std::size_t lane_index, std::function<void()> arrive);
  void on_relays(NodeId m, const Relays& relays);
  void repeat_by_relays();
  void dial_coordinator(NodeId m);

  // processes
  void resume_from_a_checkpoint();
  void start(NodeId m);
  void crash(NodeId m);
  void start_again(Process& process);
  void say_hello(Process& process);
  void on_control(NodeId m, const ControlMessage& message);
  void on_seal(Process& process, const Seal& seal);
  void set_up(Process& process);
  void try_view(Process& process);
  void view_begun(Process& process, const NewView& message, MemberIndex self, ViewNumber before,
                  const Settings& settings_before, bool of_reference);
  void on_evicted(Process& process);
  void learn(Process& process, const Admitted& admitted);
  void ask_for_state(Process& process, FragmentId p);
  void ask_others_for_state(Process& process);
  void give_state(NodeId donor, NodeId m, FragmentId p, const LinkPtr& link);
  void forward(Process& donor, FragmentId p, const FragmentState& state);
  void handle_state(NodeId m, FragmentId p, const FragmentState& state,
                    const std::optional<FragmentLedger>& snapshot);
  void be_ready(Process& process);
  void beat(NodeId m);
  void tick(NodeId m);
  void send_control(Process& process, ControlMessage message);

  // training
  [[nodiscard]] Time think(const Process& process);
  void train(NodeId m, FragmentId p);
  void look_for_results(NodeId m, FragmentId p);
  void apply(Process& process, FragmentId p, Round r);
  [[nodiscard]] bool is_of_checkpoint(const Deliver& round) const;
  void act(NodeId m);
  void carry_out(NodeId m, const SendChunk& send);
  void carry_out(NodeId m, const SendAck& ack);
  void carry_out(NodeId m, const SendBegun& begun);
  void carry_out(NodeId m, const Reduce& job);
  void carry_out(NodeId m, const ForgetResidual& forgotten);
  void carry_out(NodeId m, Deliver& round);
  void exchange(NodeId m, FragmentId p);
  static void end_exchange(Process& process, FragmentId p);
  void carry_out(NodeId m, const Exchanged& exchanged);
  void carry_out(NodeId m, const DropUnsent& dropped);
  void forget_samples(Process& process);
  [[nodiscard]] SampleSet draw_samples(Process& process, FragmentId p, Round round);
  void settle_samples(Process& process, const Deliver& round);
  [[nodiscard]] double squares_of(NodeId m, const Bytes& bytes) const;
  [[nodiscard]] std::optional<MemberIndex> index_of(const Process& process, NodeId other) const;
  [[nodiscard]] NodeId node_of(const MemberInfo& info) const;
  [[nodiscard]] MemberInfo info_of(const Process& process) const;

  // settings that change during the run
  void command(const std::string& verb);
  void steer();
  void go_on_in_the_calm();
  [[nodiscard]] std::uint64_t reach_of(const Process& process) const;
  [[nodiscard]] static std::string settings_at(const Process& process, Round round);
  [[nodiscard]] bool has_gone_on_otherwise(const Process& process, const Settings& before) const;
  void check_settings(Process& process, FragmentId p, const FragmentState& state);

  // the coordinator
  void start_coordinator(bool recover);
  void obey(Process& process, const Refused& refused);
  void watch(NodeId to, const ControlMessage& message);
  void listen(const std::string& said);
  [[nodiscard]] bool state_is_lost() const;
  void recover_if_the_survivors_are_gone();
  void crash_coordinator(bool lose_disk);
  void act_coordinator();

  // faults
  void ambush(Moment moment, NodeId m);
  void disturb();
  void strike(Fault fault, NodeId m);
  [[nodiscard]] bool may_crash(NodeId m) const;
  void crash_for(NodeId m, Time away);
  void stand_still(NodeId m, Time away);
  void cut_off(const std::set<NodeId>& side, Time away);
  void cut_for(NodeId from, NodeId to, bool both_ways, Time away);
  void remember_side(const std::set<NodeId>& side);
  void end_cuts_after(Time away);
  void take_lane_down(NodeId m, Time away);
  void lose_coordinator(Time away);
  void lose_the_state(NodeId fetcher);
  void leave_alone(NodeId newcomer);
  void tear();
  void sever();
  void break_what_is_cut();
  [[nodiscard]] std::vector<Round> newest_rounds() const;

  struct Answer;

  // invariants
  void check(const Process& process);
  void check_chain(const Process& process);
  void settle(const Process& process, FragmentId p);
  void check_settled(const NewView& message);
  void check_beginning(const NewView& message);
  void check_view(const NewView& message);
  [[nodiscard]] bool is_held(const NewView& message, FragmentId p, Round r) const;
  void check_holdings(const Process& process, const NewView& message, MemberIndex self);
  void note_evicted(const std::vector<CoordinatorAction>& actions);
  void check_evicted(NodeId m, const std::string& reason);
  [[nodiscard]] static bool knows(const Sealed& sealed, FragmentId p, const FragmentState& state);
  [[nodiscard]] FragmentState newest_of_reference(const Answer& own, FragmentId p) const;
  void check_left(const NewView& message);
  void check_result(const Process& process, const Deliver& round);
  void check_drawn(const Process& process, const SampleRange& range);
  void check_ledger(const Process& process, FragmentId p);
  void check_twice(const SampleSet& twice);
  void check_taken(const Process& process);
  void check_nothing_is_lost(const Process& process);
  void check_forgotten(const Process& process, const Sealed& sealed);
  [[nodiscard]] std::string rejection_problem(const Result& result) const;
  void check_end();
  [[nodiscard]] std::string missing_at_the_end();

  struct Event {
    Time time;
    std::uint64_t order;
    std::function<void()> happen;
    friend bool operator>(const Event& a, const Event& b) {
      return std::pair(a.time, a.order) > std::pair(b.time, b.order);
    }
  };
  /// A member's answer to the newest Seal. It may be counted on even if the member has died since.
  struct Answer {
    Sealed sealed;
    std::vector<Round> first;  ///< by fragment: results after this round are kept; empty: none
    bool evicted = false;
  };
  struct Ambush {
    Moment moment;
    std::uint64_t countdown;  ///< number of such moments to skip
    Fault fault;
  };
  struct Made {
    int settled = 0;
  };
  struct ExchangedChunk {
    ReplicaId from = 0, to = 0;
    ViewNumber view = 0;
    FragmentId fragment = 0;
    std::uint64_t step = 0;
    ChunkId chunk = 0;
  };

  std::uint64_t seed_, counter_ = 0, order_ = 0;
  bool telling_;
  Time now_{}, calm_from_{}, end_{};
  std::size_t members_, lanes_;
  std::optional<NodeId> reducer_;  ///< the reducer, in some worlds
  std::size_t disturbances_;
  bool doomed_;  ///< once a member copies the run's state, all members that have it are lost
  bool torn_;    ///< only two members lose each other, and continue by quorum
  bool lonely_;  ///< a view may begin only at members that enter it without state
  std::optional<std::pair<NodeId, NodeId>> severed_pair_;  ///< the two that are apart at present
  std::optional<NodeId> late_;  ///< is cut off before it applies the rounds of its checkpoint
  bool severed_;                ///< in the calm, only two members lose each other for long, or one loses all
  std::vector<Ambush> ambushes_;
  Time latency_, apply_delay_;  ///< maxima: latency of a message; delay until a result is applied
  int pace_;                    ///< how many times faster than usual rounds follow each other
  Round in_flight_;             ///< rounds of a fragment to which a member contributes at a time
  CoordinatorOptions options_;
  ClosingRule closing_;
  FragmentLayout layout_;
  CodecPlan codecs_;
  InitialState initial_;  ///< of all trainers; in some worlds of a checkpoint
  std::vector<Process> processes_;
  std::map<std::tuple<NodeId, NodeId, std::size_t>, LinkPtr> lanes_up_;
  std::vector<std::weak_ptr<Link>> links_;  ///< all existing links
  std::set<std::pair<NodeId, NodeId>> cuts_;
  std::set<std::pair<NodeId, NodeId>> open_ways_;        ///< relayed ways between two members without lanes
  std::set<std::pair<NodeId, std::size_t>> lanes_down_;  ///< lanes of one member to all others

  std::unique_ptr<Coordinator> coordinator_;
  std::optional<LastView> disk_;
  bool disk_was_lost_ = false;
  std::map<ConnectionId, std::pair<LinkPtr, NodeId>> control_;
  ConnectionId next_connection_ = 1;
  std::uint64_t coordinator_life_ = 0;

  std::map<std::tuple<ReplicaId, Round, ChunkId>, Made> made_;
  std::map<const Bytes*, ReplicaId> maker_;
  std::map<const Bytes*, ExchangedChunk> exchanged_;
  std::set<std::tuple<ReplicaId, ViewNumber, FragmentId, std::uint64_t>> completed_;  ///< exchanges
  std::map<ReplicaId, NodeId> node_of_;
  std::map<NodeId, Answer> answers_;
  std::set<ReplicaId> dead_;    ///< crashed while in the run
  std::optional<NodeId> sick_;  ///< member with far larger outer gradients than the others, with outer.reject
  std::vector<SharedBytes> kept_;  ///< keeps buffers alive so that addresses stay unique
  std::set<std::tuple<ViewNumber, Round, ChunkId>> produced_;
  std::map<std::tuple<ViewNumber, FragmentId, Round>, Digest> agreed_;
  std::map<const Bytes*, Result> results_;
  std::map<std::tuple<FragmentId, Round, std::uint64_t>, std::set<ReplicaId>>
      applied_by_;                                          ///< the last key is the chain's prefix
  std::map<std::pair<FragmentId, Round>, Digest> settled_;  ///< applied by all members of the newest view
  ViewNumber checked_ = 0;                                  ///< newest announced view
  std::map<ReplicaId, SampleSet> drawn_by_;
  std::map<std::tuple<FragmentId, Round, std::uint64_t>, std::string>
      made_under_;  ///< the last key is the chain's prefix
  std::uint64_t commands_ = 0;
  std::map<std::tuple<FragmentId, Round, std::uint64_t>, FragmentLedger>
      ledgers_;      ///< the last key is the chain's prefix
  SampleSet twice_;  ///< explained duplicates in all ledgers
  struct CutSide {
    Time from;
    std::map<NodeId, std::vector<Round>> applied;
  };
  std::optional<CutSide> without_coordinator_;
  ViewNumber newest_begun_ = 0;  ///< newest view that has begun at any member
  std::vector<Round> calm_rounds_;
  std::vector<Digest> begun_tokens_;  ///< runs that announced their first view to all replicas
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::string problem_;
  std::uint64_t fingerprint_ = 0;
  bool over_ = false;
  Tally tally_;
  std::vector<std::string> story_;
};

}  // namespace isthmus::outer_sync::protocol
