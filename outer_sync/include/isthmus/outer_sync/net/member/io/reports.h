#pragma once
// Values that a member's application reports, and that are reported to it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync {

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;  ///< nats per token
  double tokens_per_second = 0;
  double utilization = 0;                        ///< 0..1
  std::uint64_t other_bytes = 0;                 ///< sent outside this node (by the data-parallel baseline)
  double inner_steps_per_second = 0;             ///< waiting time excluded
  std::uint64_t disk_free = 0;                   ///< free bytes on the run folder's disk; 0: unknown
  double outer_gain = 0, outer_correlation = 0;  ///< as in protocol::Heartbeat
  std::uint64_t late_results = 0;                ///< likewise
};

/// How a replica enters a run.
struct Admission {
  enum class How {
    begins,   ///< together with the others, at the first step
    resumes,  ///< together with the others, at the checkpoint of `step`
    joins     ///< the run has begun: it copies the state from the members
  } how = How::begins;
  std::uint64_t step = 0;
};

/// Which trainers take part, as this replica sees it.
struct Participation {
  std::size_t live = 0;  ///< trainers of the view that are connected to this replica, itself included
  std::size_t participating = 0;  ///< trainers of the view; 0 while rounds do not commit
  std::size_t contributed = 0;    ///< trainers that contributed to the last applied round
};

/// A replica's position among the trainers of the view, in order of their names.
struct Rank {
  std::size_t index = 0, of = 0;
};

/// Bytes that a node has sent.
struct SentBytes {
  std::uint64_t payload = 0;  ///< codec data, after packing
  std::uint64_t total = 0;    ///< everything: data, headers, control
};

/// The run as a member sees it at one moment. Copying it allocates no memory, except for the texts of the
/// last three fields, which are set only towards the end.
struct NodeStatus {
  /// In force here; without members if none is. Never null.
  std::shared_ptr<const protocol::View> view = std::make_shared<const protocol::View>();
  protocol::MemberIndex self = 0;  ///< this member's position in the view
  Participation participation;
  SentBytes sent;
  bool reaches_coordinator = false;       ///< whether this member is connected to it
  double reference_speed = 0;             ///< inner steps per second: the median over the members; 0: unknown
  std::uint64_t common_checkpoint = 0;    ///< newest step that all trainers have a checkpoint of; 0: none
  std::optional<std::uint64_t> stops_at;  ///< step at which all members have agreed to stop
  std::optional<std::string> drains;      ///< why this replica must write a checkpoint and leave
  std::optional<protocol::Finished> finished;  ///< the run's outcome, once it has ended

  [[nodiscard]] bool in_view() const { return !view->members.empty(); }
  [[nodiscard]] Rank rank() const {
    Rank rank;
    for (std::size_t m = 0; m < view->members.size(); ++m) {
      if (!trains(view->members[m])) continue;
      rank.index += m < self ? 1 : 0;  // members are sorted by name
      ++rank.of;
    }
    return rank;
  }
};

/// The result of MemberNode::follow, for an observer.
struct Following {
  bool goes_on = true;      ///< false: the run has ended, and nothing more that may be applied will arrive
  bool has_state = false;   ///< the loop has all fragments
  bool is_current = false;  ///< nothing is queued, and every fragment is at most one round behind
};

}  // namespace isthmus::outer_sync
