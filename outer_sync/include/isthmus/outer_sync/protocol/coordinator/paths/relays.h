#pragma once
// Chooses the members that forward chunks between two members that cannot connect to each other. Part of the
// coordinator; nothing here is agreed state.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/paths.h"

namespace isthmus::outer_sync::protocol {

/// Every heartbeat lists the members to which its sender has no connection. Such a pair gets a relay: a
/// member connected to both; of several the one with the fewest relayed pairs, then a reducer, then the first
/// by name. The relay stays until both ends report a connection. Members that reach each other only through
/// the mailbox have one whenever a member with a port is connected to both, since it is faster.
class RunRelays {
 public:
  /// Two members of the view, the smaller id first.
  using Pair = std::pair<ReplicaId, ReplicaId>;

  /// Drops the reports of older views. Keeps a relay if all three members are present, and replaces relays
  /// that are gone. Pairs of members without ports, and pairs that needed a relay under the same names
  /// before, get one at once.
  void begin(const View& view);
  /// Takes the connections that a member of the view reports.
  void add(ReplicaId from, const Heartbeat& heartbeat);
  /// Chooses relays for pairs without a relay that helps, once all members have had time to report: after
  /// half of `patience`, or all of it after a relay was just chosen; for pairs in the mailbox, at once.
  /// Returns the pairs that no member can help.
  [[nodiscard]] std::vector<Pair> settle(Time now, Time patience);

  [[nodiscard]] const std::map<Pair, ReplicaId>& relays() const { return relays_; }
  /// The list of relays for the members, if it has changed.
  [[nodiscard]] std::optional<Relays> take_news();
  /// Log lines since the last call.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

 private:
  /// A member's last report in this view.
  struct Report {
    std::uint64_t heard = 0;          ///< Relays::number that it has received
    std::set<ReplicaId> apart;        ///< no connection to these
    std::set<ReplicaId> unreachable;  ///< and no relay either
    friend bool operator==(const Report&, const Report&) = default;
  };
  using Loads = std::map<ReplicaId, std::size_t>;  ///< number of pairs that a member relays for

  [[nodiscard]] std::pair<std::string, std::string> names_of(const Pair& pair) const;
  [[nodiscard]] bool are_apart(const Pair& pair) const;
  [[nodiscard]] bool have_no_ports(const Pair& pair) const;
  [[nodiscard]] bool share_a_mailbox(const Pair& pair) const;
  [[nodiscard]] bool lacks_help(const Pair& pair) const;
  [[nodiscard]] bool reach_each_other(const Pair& pair) const;
  [[nodiscard]] std::set<Pair> pairs_apart() const;
  [[nodiscard]] Loads loads() const;
  [[nodiscard]] std::optional<ReplicaId> relay_for(const Pair& pair, const Loads& loads) const;
  bool name_relay(const Pair& pair, Loads& loads);
  [[nodiscard]] bool reaches_both(const Pair& pair, ReplicaId relay) const;
  [[nodiscard]] bool relays_for_each_other(const Pair& pair) const;
  [[nodiscard]] bool is_of_no_use(const Pair& pair, ReplicaId relay, Time now, Time patience);
  void end_what_is_over(Time now, Time patience);
  void relieve_the_mailbox();

  std::map<ReplicaId, MemberInfo> members_;
  std::map<ReplicaId, Report> reports_;
  std::map<Pair, ReplicaId> relays_;
  std::map<Pair, std::set<ReplicaId>> tried_;  ///< relays that did not help
  std::set<ReplicaId> in_mailbox_;             ///< members that have only the mailbox's address
  std::map<Pair, Time> unused_since_;          ///< the pair has a relay, and is connected through the mailbox
  std::set<Pair> doubted_;  ///< got more time, because no report explained why their last relay did not help
  std::set<std::pair<std::string, std::string>>
      known_;                 ///< by name: they had a relay, and no connection since
  std::uint64_t number_ = 0;  ///< of the list sent last
  bool has_news_ = false;
  bool changed_ = false;               ///< reports have changed since `settle`
  std::optional<Time> lacking_since_;  ///< when a pair first lacked a relay
  bool named_since_ = false;           ///< a relay was chosen since then
  std::vector<std::string> lines_;
};

}  // namespace isthmus::outer_sync::protocol
