#pragma once
// Values that a member's application reports, and that are reported to it.

#include <cstddef>
#include <cstdint>

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

}  // namespace isthmus::outer_sync
