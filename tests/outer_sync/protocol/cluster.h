#pragma once
// Several members and their coordinator in one process, for scenes that a test plays step by step. A message
// arrives at once and in order unless the test has cut the path; time passes only in `pass`.

#include <gmock/gmock.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/member_actions.h"
#include "isthmus/outer_sync/protocol/work_order.h"

namespace isthmus::outer_sync::protocol {

using namespace std::chrono_literals;

class Cluster {
 public:
  static constexpr Time detect_timeout = 1s;
  static constexpr std::uint64_t samples_per_round = 4;
  struct Replica {
    MemberInfo info;
    std::unique_ptr<Member> member;
    ConnectionId connection = 0;
    std::map<Round, Deliver> rounds;  ///< delivered, applied or not
    WorkOrder order;
    SampleSet pending;                     ///< samples trained on since the last contribution
    std::map<Round, SampleSet> handed_in;  ///< samples of contributions to rounds that are not applied yet
    bool takes_part = false, admitted = false, done = false;
    bool applies = true;  ///< whether a delivered round is applied at once
    std::string evicted;  ///< the reason
    std::string refused;  ///< the reason
    std::size_t seals = 0;
    Digest token;
  };

  /// The trainers `names`, in this order, form the first view, which has begun; `reducers` are members of it
  /// too. The trainers start with `initial`, of one fragment; empty: a run that begins anew.
  explicit Cluster(const std::vector<std::string>& names, std::size_t least = 1, ClosingRule closing = {},
                   const std::vector<std::string>& reducers = {}, InitialState initial = {});

  [[nodiscard]] Replica& at(const std::string& name) { return replicas_.at(name); }
  [[nodiscard]] Coordinator& coordinator() { return *coordinator_; }
  [[nodiscard]] Round round_of(const std::string& name) { return at(name).member->fragments()[0].round; }
  [[nodiscard]] Digest chain_of(const std::string& name) { return at(name).member->fragments()[0].chain; }
  /// Members of the current view, as the coordinator sees them; empty while rounds do not commit.
  [[nodiscard]] std::vector<std::string> view() const;
  [[nodiscard]] bool was_said(const std::string& part) const;

  /// Each named replica contributes to its next round, having trained on `samples_per_round` sequences.
  void contribute(const std::vector<std::string>& names);
  /// All participating replicas contribute, `times` times.
  void train(int times = 1);
  void apply(const std::string& name);
  /// The next samples for a replica; they count as trained on with its next contribution.
  SampleRange draw(const std::string& name, std::uint64_t most = samples_per_round);
  /// The run's ledger as this member has it.
  [[nodiscard]] Ledger ledger(const std::string& name) { return at(name).member->ledger(); }

  /// Cuts one direction. "coordinator" names the coordinator; a cut from or to it goes unnoticed until time
  /// passes.
  void cut(const std::string& from, const std::string& to) { cuts_.insert({from, to}); }
  void isolate(const std::string& name);
  void heal();
  /// Ends the process and closes its connections.
  void kill(const std::string& name);
  /// Starts the process anew, without any state.
  void start(const std::string& name);
  void start_reducer(const std::string& name);
  /// Reconnects as the same replica.
  void reconnect(const std::string& name);
  /// Copies the donor's rounds and reports that the member is ready, as an admitted member does.
  void learn(const std::string& name, const std::string& donor);
  void say(const std::string& name, const ControlMessage& message);
  void kill_coordinator() { coordinator_.reset(); }
  /// Starts the coordinator with what it had stored, or with nothing and `--recover`; then all members
  /// reconnect.
  void start_coordinator(std::optional<ViewNumber> recover = {});
  void pass(Time time);
  /// Runs until no message is on its way.
  void settle();

  /// A message of the coordinator is dropped if this returns true.
  std::function<bool(const std::string& to, const ControlMessage&)> lost = [](auto&, auto&) { return false; };
  std::optional<LastView> disk;
  std::set<std::string> given_up;  ///< members that were given up with `--recover`
  std::optional<Ended> ended;

 private:
  [[nodiscard]] bool is_cut(const std::string& from, const std::string& to) const {
    return cuts_.contains({from, to});
  }
  void dial(Replica& replica);
  void handle(Replica& replica, const ControlMessage& message);
  void begin(Replica& replica, const NewView& message);
  bool act(Replica& replica);
  void carry_out(Replica& replica, const SendChunk& chunk);
  void carry_out(Replica& replica, const SendAck& ack);
  void carry_out(Replica& replica, const SendBegun& begun);
  void carry_out(Replica& replica, const Reduce& job);
  void carry_out(Replica&, const ForgetResidual&) {}  // these results have no residual
  void carry_out(Replica& replica, Deliver& round);
  bool act_coordinator();
  void set_up(Replica& replica);
  void send(Replica& from, MemberIndex peer, const std::function<void(Member&, MemberIndex)>& arrive);
  [[nodiscard]] static SharedBytes mean_of(const Reduce& job);

  FragmentLayout layout_{{{0, 32}}, 16};  // two chunks, so two owners
  CodecPlan codecs_{.codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::fp32}};
  ClosingRule closing_;
  InitialState initial_;
  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<std::string, Replica> replicas_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::vector<std::string> said_;
  ConnectionId next_connection_ = 1;
  Time now_ = 0s;
};

/// Fails the test unless these members have the same history and are all at `round`.
void expect_equal(Cluster& cluster, const std::vector<std::string>& names, Round round);

}  // namespace isthmus::outer_sync::protocol
