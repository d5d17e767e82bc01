#pragma once
// Who carries chunks between members that cannot connect to each other. The coordinator's part; nothing here
// is agreed state.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// Members say with each heartbeat whom they have no connection to. Such a pair gets a relay: a member that
/// has connections to both, of several the one that relays least, then one that only reduces, then the first
/// by name. It stays until both ends have told of a connection.
class RunRelays {
 public:
  /// Two members of the view, the smaller id first.
  using Pair = std::pair<ReplicaId, ReplicaId>;

  /// What was said in older views is void. Relays go on where all three are there; where the relay is gone
  /// another one is named at once. So is one for two of whom neither has a port, and for two that have needed
  /// one before, under these names.
  void begin(const View& view);
  /// What a member of the view says of its connections.
  void add(ReplicaId from, const Heartbeat& heartbeat);
  /// Names relays for pairs that lack one, or whose relay is of no use, when all have had time to report:
  /// after half of `patience`, and, of one that was named, after all of it. Returns the pairs that nobody can
  /// help.
  [[nodiscard]] std::vector<Pair> settle(Time now, Time patience);

  [[nodiscard]] const std::map<Pair, ReplicaId>& relays() const { return relays_; }
  /// What members are to be told, if that has changed.
  [[nodiscard]] std::optional<Relays> take_news();
  /// For people.
  [[nodiscard]] std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

 private:
  /// What a member has said last, in this view.
  struct Report {
    std::uint64_t heard = 0;    ///< Relays::number
    std::set<ReplicaId> apart;  ///< no connection to these
    std::set<ReplicaId> lost;   ///< and no other way
    friend bool operator==(const Report&, const Report&) = default;
  };
  using Loads = std::map<ReplicaId, std::size_t>;  ///< for how many pairs it relays

  [[nodiscard]] std::pair<std::string, std::string> names_of(const Pair& pair) const;
  [[nodiscard]] bool are_apart(const Pair& pair) const;
  [[nodiscard]] bool have_no_ports(const Pair& pair) const;
  [[nodiscard]] bool lacks_help(const Pair& pair) const;
  [[nodiscard]] bool reach_each_other(const Pair& pair) const;
  [[nodiscard]] std::set<Pair> pairs_apart() const;
  [[nodiscard]] Loads loads() const;
  [[nodiscard]] std::optional<ReplicaId> relay_for(const Pair& pair, const Loads& loads) const;
  bool name_relay(const Pair& pair, Loads& loads);
  void end_what_is_over();

  std::map<ReplicaId, MemberInfo> members_;
  std::map<ReplicaId, Report> reports_;
  std::map<Pair, ReplicaId> relays_;
  std::map<Pair, std::set<ReplicaId>> tried_;  ///< in vain
  std::set<Pair> doubted_;  ///< got more time, since nobody had reported why their last relay did not help
  std::set<std::pair<std::string, std::string>>
      known_;                 ///< by name: they had a relay, and no connection since
  std::uint64_t number_ = 0;  ///< of what members were told last
  bool has_news_ = false;
  bool changed_ = false;               ///< something was said since that was settled
  std::optional<Time> lacking_since_;  ///< that some pair lacks help
  bool named_since_ = false;           ///< a relay was named then
  std::vector<std::string> lines_;
};

}  // namespace isthmus::outer_sync::protocol
