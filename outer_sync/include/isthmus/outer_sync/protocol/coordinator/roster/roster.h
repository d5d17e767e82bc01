#pragma once
// The processes present: records of the members of the view and of the replicas that want to join it. Owned
// by Coordinator; decides nothing.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/calendar.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/actions.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/observations.h"
#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/ending.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/views.h"

namespace isthmus::outer_sync::protocol {

/// All that the coordinator knows about one process: what it said in its hello, its answer to a seal, its
/// last heartbeat, and how far it is. Large because the rules of admission, views and ends all read it.
struct MemberStatus {
  /// State of a replica. A reducer is never `joining`, since it needs no state.
  enum class Role {
    joining,  ///< waits for the first view, or copies the state from members
    ready,    ///< has the state: may enter the next view
    member    ///< in the current view
  };
  ConnectionId connection = 0;
  Hello hello;
  Role role = Role::joining;
  Time heard{};
  Time lease_end{};            ///< until then it may close chunks without the others
  bool admitted = false;       ///< has received the donors' addresses
  bool found_no_port = false;  ///< logged already: no donor can be dialled
  bool answered = false, held = false, done = false;
  /// The run is resumed, and this replica lacks the checkpoint taken: it copies the state from the others.
  bool has_nothing = false;
  std::optional<std::uint64_t> begins_at;  ///< step of the checkpoint that it was ordered to restore
  Sealed state;
  std::vector<Round> to_reach;  ///< by fragment: the others' newest rounds at `lags_since`
  Time lags_since{};
  std::uint64_t held_step = 0;
  std::uint64_t uplink = 0;            ///< bytes per second, as last reported; 0: not known
  std::uint64_t usual_uplink = 0;      ///< the last rate not set by a calendar
  Calendar calendar;                   ///< of its link
  std::optional<Allowance> allowance;  ///< by the calendar, at present
  bool closed = false;                 ///< by the calendar, so it is in no view
  Heartbeat heartbeat;
  Time beat{};                      ///< when it arrived
  Time paths_at = Time::min() / 2;  ///< when it last reported its paths
  RateMeter rates;
  Done result;
  [[nodiscard]] friend bool trains(const MemberStatus& member) { return trains(member.hello.member); }
};

[[nodiscard]] std::size_t trainers_among(const std::vector<MemberInfo>& members);
/// Highest view that has begun at a member, by its reports.
[[nodiscard]] ViewNumber begun(const MemberStatus& member);
/// A member's rounds as last reported, but at least those with which it sealed.
[[nodiscard]] std::vector<Round> rounds_of(const MemberStatus& member);
/// By fragment: its newest round as last reported.
[[nodiscard]] std::vector<Round> reported_rounds(const MemberStatus& member);
/// Raises each of `newest` to at least that of `rounds`.
void raise(std::vector<Round>& newest, const std::vector<Round>& rounds);
/// Past the first `warmup_rounds` rounds of every fragment, by its last heartbeat. During the warm-up there
/// is more to copy than the global parameters.
[[nodiscard]] bool is_past_warmup(const MemberStatus& member, Round warmup_rounds);
/// Adds `name` to a list separated by `separator`.
void append(std::string& list, const std::string& name, const char* separator = ", ");

class Roster {
 public:
  using Role = MemberStatus::Role;
  using Members = std::map<std::string, MemberStatus>;  ///< by name, so in member order

  /// Bars and leases are judged at this time.
  void advance(Time now) { now_ = now; }

  [[nodiscard]] const Members& members() const { return members_; }
  [[nodiscard]] Members& members() { return members_; }
  /// Null if no member has this name.
  [[nodiscard]] const MemberStatus* find(const std::string& name) const;
  [[nodiscard]] MemberStatus* find(const std::string& name);
  /// Adds a replica after its hello was accepted.
  MemberStatus& add(ConnectionId from, const Hello& hello);
  /// The member may still hold a lease.
  void remove(const std::string& name);
  /// Name of the member on this connection, or empty.
  [[nodiscard]] std::string name_of(ConnectionId connection) const;

  template <class Select>
  [[nodiscard]] std::size_t count(Select select) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(members_, [&](const auto& entry) { return select(entry.second); }));
  }
  [[nodiscard]] std::size_t trainers() const;
  /// Trainers that can be in a view now.
  [[nodiscard]] std::size_t able_trainers() const;
  /// Members that were asked to seal and have not answered.
  [[nodiscard]] std::size_t unanswered() const;
  /// The names of the members of the view.
  [[nodiscard]] std::string names_in_view() const;
  /// The first trainer that does not copy the state from others; or null.
  [[nodiscard]] const MemberStatus* first_trainer() const;

  /// Whether the member may be in the next view.
  [[nodiscard]] bool able(const MemberStatus& member) const;
  /// Leaves the member out of views for a while, each time for longer: from 6 to 24 times `unit`.
  void bar(const std::string& name, Time unit) { bars_.add(name, now_, unit); }
  /// Name of a member after its bar has ended, once for each bar.
  [[nodiscard]] std::optional<std::string> take_bar_over();
  /// Whether the leases of all members that have not answered, or were removed, have ended.
  [[nodiscard]] bool leases_are_out() const;

  /// The share of the training data that belongs to a name.
  void keep_slot(const std::string& name, std::uint16_t slot) { slots_[name] = slot; }
  /// Its own slot, or the lowest free one if another member has that.
  [[nodiscard]] std::uint16_t claim_slot(const std::string& name);

  /// Trainers that have the run's state and serve it: members of the view, or of those present the ones for
  /// which the highest view has begun.
  [[nodiscard]] std::vector<MemberInfo> with_state(Round warmup_rounds) const;

 private:
  Members members_;
  Bars bars_;
  std::map<std::string, std::uint16_t> slots_;  ///< of every name that was ever a member
  Time now_{};
  Time foreign_leases_end_{};  ///< latest lease end of removed members
};

}  // namespace isthmus::outer_sync::protocol
