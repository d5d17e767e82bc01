#pragma once
// A few members and their coordinator in one place, for scenes that a test tells step by step: what is sent
// arrives at once, in order, unless the test has cut the way; time passes when the test says so.

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
    SampleSet pending;                     ///< trained on since the last contribution
    std::map<Round, SampleSet> handed_in;  ///< with contributions to rounds that are not applied
    bool takes_part = false, admitted = false, done = false;
    bool applies = true;  ///< at once, whatever is delivered
    std::string evicted;  ///< why
    std::string refused;  ///< why
    std::size_t seals = 0;
    Digest token;
  };

  /// `names` in their order are the trainers of the first view, which has begun, and `reducers` are there
  /// too.
  explicit Cluster(const std::vector<std::string>& names, std::size_t least = 1, ClosingRule closing = {},
                   const std::vector<std::string>& reducers = {});

  [[nodiscard]] Replica& at(const std::string& name) { return replicas_.at(name); }
  [[nodiscard]] Coordinator& coordinator() { return *coordinator_; }
  [[nodiscard]] Round round_of(const std::string& name) { return at(name).member->fragments()[0].round; }
  [[nodiscard]] Digest chain_of(const std::string& name) { return at(name).member->fragments()[0].chain; }
  /// Members of the view in force, as the coordinator sees them; empty while rounds do not commit.
  [[nodiscard]] std::vector<std::string> view() const;
  [[nodiscard]] bool was_said(const std::string& part) const;

  /// Each named replica hands in its part of its next round, trained on `samples_per_round` sequences.
  void contribute(const std::vector<std::string>& names);
  /// All that take part do, `times` times.
  void train(int times = 1);
  void apply(const std::string& name);
  /// What a replica is given next, trained on with its next contribution.
  SampleRange draw(const std::string& name, std::uint64_t most = samples_per_round);
  /// Of the run, as one member has it.
  [[nodiscard]] Ledger ledger(const std::string& name) { return at(name).member->ledger(); }

  /// One way; "coordinator" is the coordinator, of whom nobody notices a cut before time passes.
  void cut(const std::string& from, const std::string& to) { cuts_.insert({from, to}); }
  void isolate(const std::string& name);
  void heal();
  /// The process is gone, and its connections with it.
  void kill(const std::string& name);
  /// Again, as a process that knows nothing.
  void start(const std::string& name);
  void start_reducer(const std::string& name);
  /// On a new connection, as the one that it was.
  void reconnect(const std::string& name);
  /// What an admitted one does: takes a donor's rounds, and says that it is ready.
  void learn(const std::string& name, const std::string& donor);
  void say(const std::string& name, const ControlMessage& message);
  void kill_coordinator() { coordinator_.reset(); }
  /// From what it had stored, or with nothing and `--recover`; then all reconnect.
  void start_coordinator(std::optional<ViewNumber> recover = {});
  void pass(Time time);
  /// Until nothing is on its way any more.
  void settle();

  /// What the coordinator says is dropped if this says so.
  std::function<bool(const std::string& to, const ControlMessage&)> lost = [](auto&, auto&) { return false; };
  std::optional<LastView> disk;
  std::set<std::string> given_up;  ///< by whoever starts a coordinator with `--recover`
  std::optional<Ended> ended;

 private:
  [[nodiscard]] bool is_cut(const std::string& from, const std::string& to) const {
    return cuts_.contains({from, to});
  }
  void dial(Replica& replica);
  void handle(Replica& replica, const ControlMessage& message);
  void begin(Replica& replica, const NewView& message);
  bool act(Replica& replica);
  bool act_coordinator();
  void send(Replica& from, MemberIndex peer, const std::function<void(Member&, MemberIndex)>& arrive);
  [[nodiscard]] static SharedBytes mean_of(const Reduce& job);

  FragmentLayout layout_{{{0, 32}}, 16};  // of two chunks, so of two owners
  CodecPlan codecs_{.codec = {quant::CodecKind::fp32}, .warmup_codec = {quant::CodecKind::fp32}};
  ClosingRule closing_;
  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<std::string, Replica> replicas_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::vector<std::string> said_;
  ConnectionId next_connection_ = 1;
  Time now_ = 0s;
};

/// The same history everywhere, and nobody behind.
void expect_equal(Cluster& cluster, const std::vector<std::string>& names, Round round);

}  // namespace isthmus::outer_sync::protocol
