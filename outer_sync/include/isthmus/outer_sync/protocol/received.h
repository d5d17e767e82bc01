#pragma once
// What a message from the network must be like to be taken: one pure function for each kind. Called where
// messages enter, by the coordinator for what members say and by a member for what the coordinator says;
// nothing behind that has to doubt a size, a step or a round again. Each returns why a message is refused,
// with the value and what was expected; empty: it is taken.

#include <cstdint>
#include <string>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/messages.h"

namespace isthmus::outer_sync::protocol {

/// What the receiver knows of the run.
struct Bounds {
  /// No run has more steps, so that a few more are still a number in any arithmetic.
  static constexpr std::uint64_t max_steps = std::uint64_t{1} << 48;

  std::uint64_t steps = 0;                 ///< that the run has; 0: not known
  const FragmentLayout* layout = nullptr;  ///< of the run; null: not known

  [[nodiscard]] std::uint64_t max_step() const { return steps > 0 ? steps : max_steps; }
  /// A fragment has one round a step at most, and one more when the run ends.
  [[nodiscard]] Round max_round() const { return max_step() + 1; }
};

[[nodiscard]] std::string problem_of(const Hello& hello, const Bounds& bounds);
/// Of one that only reduces and knows of nothing yet the answer may be empty.
[[nodiscard]] std::string problem_of(const Sealed& sealed, const Bounds& bounds);
[[nodiscard]] std::string problem_of(const Heartbeat& heartbeat, const Bounds& bounds);
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

/// Of any kind. Those that have nothing to judge, and words for people alone, are taken as they are.
[[nodiscard]] std::string problem_of_message(const ControlMessage& message, const Bounds& bounds);

}  // namespace isthmus::outer_sync::protocol
