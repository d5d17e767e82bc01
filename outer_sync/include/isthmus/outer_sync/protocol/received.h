#pragma once
// Validates messages from the network, with one pure function for each kind. Called on entry: by the
// coordinator for messages of members, by a member for messages of the coordinator. Later code may rely on
// all sizes, steps and rounds. Returns why a message is refused, with the value and what was expected; empty:
// it is valid.

#include <cstdint>
#include <string>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// Limits that the receiver knows for this run.
struct Bounds {
  /// Maximum steps of any run; leaves room for additions without overflow.
  static constexpr std::uint64_t max_steps = std::uint64_t{1} << 48;

  std::uint64_t steps = 0;                 ///< of the run; 0: not known
  const FragmentLayout* layout = nullptr;  ///< of the run; null: not known

  [[nodiscard]] std::uint64_t max_step() const { return steps > 0 ? steps : max_steps; }
  /// A fragment has at most one round per step, and one more at the end of the run.
  [[nodiscard]] Round max_round() const { return max_step() + 1; }
};

[[nodiscard]] std::string problem_of(const Hello& hello, const Bounds& bounds);
/// A reducer that has been in no view may send an empty answer.
[[nodiscard]] std::string problem_of(const Sealed& sealed, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Heartbeat& heartbeat, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const CalendarChanged& changed, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const EvalReport& report, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Announce& announce, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const StopRequest& request, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const CheckpointRequest& request, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Held& held, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Done& done, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Leave& leave, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Evicted& evicted, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Records& records, const Bounds& bounds);

[[nodiscard]] std::string problem_of(const Seal& seal, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const NewView& message, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const HeartbeatReply& reply, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const StopAt& stop, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const CheckpointAt& checkpoint, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Admitted& admitted, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Steered& steered, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Relays& relays, const Bounds& bounds);

/// Validates a message of any kind. Kinds without limits, such as those with only human-readable text, are
/// always valid.
[[nodiscard]] std::string problem_of_message(const ControlMessage& message, const Bounds& bounds);

}  // namespace isthmus::outer_sync::protocol
