#pragma once
// The interfaces between a Participant and its program: hooks that train, and observers that record. The
// participant makes all calls, on its own thread.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "isthmus/outer_sync/net/member/io/reports.h"
#include "isthmus/outer_sync/protocol/ledger.h"
#include "run/metrics/summary.h"

namespace isthmus::app {

class Participant;

/// One inner step, as the training program describes it. Unknown values are left out.
struct InnerStep {
  std::uint64_t tokens = 0;
  std::span<const SampleRange> samples = {};    ///< that it was trained on
  std::optional<std::uint64_t> data_step = {};  ///< by the sequences trained on
  std::optional<double> loss = {}, lr = {}, grad_norm = {};
  std::optional<std::uint64_t> loss_spikes = {};  ///< so far
  std::optional<double> compute_seconds = {};     ///< default: all since `next` returned, without waits
  double waited_seconds = 0;                      ///< for other members, elsewhere than in the outer loop
  std::optional<double> busy_seconds = {};        ///< seconds of the step without waits; default: as measured
  // So far:
  double data_wait_seconds = 0, all_reduce_seconds = 0, rank_average_seconds = 0;
  std::uint64_t all_reduce_bytes = 0;  ///< sent, in addition to the node's
};

/// An inner step that has been made, with what outer loop and run know after it.
struct StepRecord {
  InnerStep inner;         ///< without its samples
  std::uint64_t step = 0;  ///< agreed
  std::uint64_t inner_steps = 0;
  bool committing = true;
  bool was_due = false;                       ///< something was sent or applied
  double own_speed = 0, reference_speed = 0;  ///< given to the outer loop, in inner steps per second
  double step_seconds = 0, tokens_per_second = 0;
  double utilization = 0;  ///< 0..1
  outer_sync::OuterLoop::Stats stats;
  outer_sync::Gossip::Stats gossip;
  outer_sync::Participation who;
  std::uint64_t bytes_sent = 0;
  nlohmann::ordered_json outer_steps;  ///< new figures of checked rounds; null without
};

/// An evaluation of the global parameters on this replica's share of the held-out data.
struct EvaluatedShare {
  std::uint64_t step = 0;
  double sum_nats = 0;
  std::uint64_t tokens = 0;
  std::size_t share = 0, shares = 1;
  std::optional<double> drift = {};  ///< distance of the local from the global parameters
};

/// Watches a participant: writes metrics, draws progress.
class ParticipantObserver {
 public:
  virtual ~ParticipantObserver() = default;
  /// The participant's state has changed.
  virtual void entered(const Participant& /*participant*/) {}
  /// The run's state was copied from other members, which took `seconds`.
  virtual void took_state(const Participant& /*participant*/, double /*seconds*/) {}
  virtual void stepped(const Participant& /*participant*/, const StepRecord& /*record*/) {}
  /// An agreed step has been made.
  virtual void agreed(const Participant& /*participant*/) {}
  virtual void evaluated(const EvaluatedShare& /*evaluation*/) {}
};

/// The program that trains. An exception from it ends its part in the run, and the others learn the reason.
/// Its functions of ParticipantObserver are called before those of other observers.
class TrainingHooks : public ParticipantObserver {
 public:
  virtual void say(const std::string& text) = 0;
  /// Restores the checkpoint of this step, the outer loop included.
  struct Restored {
    outer_sync::protocol::Ledger ledger;
    SampleSet trained;  ///< on and not yet in the ledger
  };
  [[nodiscard]] virtual Restored restore(std::uint64_t step) = 0;
  /// Called once, when this replica has joined, before its first step.
  virtual void joined() {}
  /// Only for Participant::run: makes an inner step on the local parameters.
  [[nodiscard]] virtual InnerStep train_step() { return {}; }
  /// An evaluation of this step is due; Participant::report_evaluation takes its result, now or before the
  /// next step.
  virtual void evaluate(std::uint64_t /*step*/) {}
  /// A checkpoint of this step is due.
  virtual void save_checkpoint() {}
  /// Whether a replica that has failed like this is started again, with its checkpoints. If it is the only
  /// one, it does not leave then, since the run would end.
  [[nodiscard]] virtual bool comes_back_after(const Error& /*error*/) { return false; }
  /// This replica is about to report its end, or to leave: waits for what must be on disk by then.
  virtual void before_the_end() {}
  /// The final report for the coordinator, given what the participant knows.
  [[nodiscard]] virtual std::string summary(const MemberReport& report) { return to_json(report).dump(); }
};

}  // namespace isthmus::app
