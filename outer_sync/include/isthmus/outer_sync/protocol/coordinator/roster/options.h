#pragma once
// The settings of a coordinator, and the state that it must remember across a restart.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/member.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/topology.h"

namespace isthmus::outer_sync::protocol {

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
  /// Owners keep nothing from one round of a chunk to the next, so another owner of the chunk changes no bit
  /// of the run.
  bool owners_keep_nothing = false;
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

  [[nodiscard]] std::size_t min_replicas() const { return std::max<std::size_t>(least, 1); }
  /// Trainers that may have the run's state are given up after as long as the rounds since a checkpoint can
  /// have taken: waiting longer costs more than repeating these rounds.
  [[nodiscard]] Time patience() const { return std::max(join_timeout, checkpoint_interval); }
};

}  // namespace isthmus::outer_sync::protocol
