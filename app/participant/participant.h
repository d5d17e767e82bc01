#pragma once
// The life of a process that trains in a run: it joins, makes inner steps, copies the state of other members
// when it was evicted, pauses, leaves or finishes, and reports. `isthmus worker`, `bench outer` and the
// Python binding are hooks on it. A program with its own loop calls it step by step:
//
//   participant.join(hello);
//   while (participant.next()) {
//     ... inner step, with participant.average_gradients() in the warm-up ...
//     participant.made(step);
//   }
//   participant.close();
//
// run() is this loop around TrainingHooks::train_step. Used by one thread, except where noted. Observers and
// reducers do not use it, since they make no steps: app/worker/followers/follower.h,
// app/worker/followers/reducer.h.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "isthmus/base/trace.h"
#include "isthmus/outer_sync/engine/outer_loop.h"
#include "participant/figures.h"
#include "participant/hooks.h"
#include "participant/membership.h"
#include "run/experiment/experiment.h"
#include "run/process/stopper.h"

namespace isthmus::app {

/// Parts of a participant. References and pointers must outlive it.
struct ParticipantParts {
  const Experiment& experiment;
  std::string name;
  const outer_sync::FragmentLayout& layout;
  std::unique_ptr<outer_sync::OuterState> state;
  std::unique_ptr<Membership> member;
  Trace& trace;
  std::vector<ParticipantObserver*> observers = {};
  std::filesystem::path folder = {};  ///< its disk's free space is reported; empty: none is
  /// Where an error is logged before this replica leaves; may be null.
  std::shared_ptr<outer_sync::RecordQueue> records = nullptr;
  Stopper* stopper = nullptr;  ///< signals that ask this replica to leave; null: none do
  /// It writes checkpoints itself: before it leaves for a signal, all write one.
  bool writes_checkpoints = false;
};

/// It has many functions and fields because the caller's loop may stand between any two of its calls.
class Participant {
 public:
  enum class State {
    joining,
    training,
    taking_state,  ///< it was evicted, and copies the state of other members
    finishing,     ///< the run is over; `close` reports the end
    leaving,       ///< asked to, or failed; `close` leaves the run
    closed
  };

  Participant(ParticipantParts parts, TrainingHooks& hooks);
  ~Participant();
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  /// Joins, trains until there is no next step, and closes. Throws what the functions below throw, after it
  /// has left the run for that reason.
  void run(outer_sync::protocol::Hello hello);

  /// Joins the run: blocks until this replica is in its first view, with the others' state if they have
  /// begun. Leaves the run if that fails.
  void join(outer_sync::protocol::Hello hello);
  /// Call before each inner step. Blocks while the run is paused or this replica must wait. False: there is
  /// no further step, since the run is over or was stopped, or this replica leaves; then call `close`. Throws
  /// Error(network) if the run cannot continue.
  [[nodiscard]] bool next();
  /// Call before the inner optimizer in the synchronous warm-up, as OuterLoop::average_gradients.
  void average_gradients(std::span<float> gradients, std::uint64_t tokens,
                         std::span<const SampleRange> samples = {});
  /// Call after each inner step: sends and applies what is due, reports, and makes the agreed steps that it
  /// completes, each with its evaluation and checkpoint. Does nothing if this replica was evicted meanwhile.
  void made(const InnerStep& step);
  /// The outer loop's part of a checkpoint; nullopt if rounds do not commit at present, or
  /// this replica was evicted.
  [[nodiscard]] std::optional<outer_sync::SavedOuterLoop> save();
  /// Ends this replica's part, once: reports the end of the run and waits for the others, or leaves the run;
  /// `why`: of a program that ends earlier. Throws Error(divergence) if the replicas disagree.
  void close(const std::string& why = {});
  /// For destructors: leaves the run unless it is closed, and calls nothing else.
  void drop(const std::string& why) noexcept;

  /// Asks this replica to leave, as a signal does; `why` is human-readable. Any thread.
  void request_leave(const std::string& why);
  /// Call it while the membership waits: ends the wait for the run or its state after a request to leave.
  void look_up() const;

  /// Call once for each evaluation that is due.
  void report_evaluation(const EvaluatedShare& evaluation);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const Experiment& experiment() const { return config_; }
  [[nodiscard]] outer_sync::OuterLoop& outer() { return outer_; }
  [[nodiscard]] const outer_sync::OuterLoop& outer() const { return outer_; }
  [[nodiscard]] outer_sync::NodeStatus status() const { return member_->status(); }
  /// Whether the next `made` may send or apply something; then the parameters must be in place.
  [[nodiscard]] bool is_due() const;
  /// Whether the run wants an evaluation or a checkpoint of the present agreed step.
  [[nodiscard]] bool wants_evaluation() const { return wants_.evaluation; }
  [[nodiscard]] bool wants_checkpoint() const { return wants_.checkpoint; }

  [[nodiscard]] std::uint64_t first_step() const { return first_step_; }
  [[nodiscard]] bool resumed() const { return resumed_; }  ///< from a checkpoint of its own
  /// How often the state was copied from others.
  [[nodiscard]] std::uint64_t states_taken() const { return states_taken_; }
  /// Whether there is anything to finish and save. False for a replica that was resumed at the run's end.
  /// True for a member that joined at the last step: the others wait for its last rounds.
  [[nodiscard]] bool has_gone_on() const { return outer_.step() > first_step_ || states_taken_ > 0; }
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  [[nodiscard]] double train_seconds() const { return train_seconds_; }
  /// The run was stopped, for all replicas, before its last step.
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// An operator has asked this replica to leave, and it does.
  [[nodiscard]] bool drained() const { return left_ && drained_.has_value(); }
  /// Why this replica was asked to leave, and does; empty otherwise.
  [[nodiscard]] std::string leaves() const { return left_ ? reason_ : ""; }
  /// The error that ended its training; empty without.
  [[nodiscard]] std::string failure() const { return failed_ ? reason_ : ""; }
  /// Hash of the global parameters at the end of the run, once it is over.
  [[nodiscard]] const std::optional<Digest>& final_hash() const { return final_hash_; }
  /// The log's line about the end; requires `final_hash`.
  [[nodiscard]] std::string last_line() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// Ends a wait after a request to leave.
  class AskedToLeave final : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
  };

  enum class Turn { step, paused, over };
  /// Requests of the run for the present agreed step.
  struct Wants {
    bool evaluation = false, checkpoint = false;
  };

  void enter(State state);
  template <class Tell>
  void tell(Tell tell);
  template <class Work>
  auto guarded(Work work);
  template <class Work>
  void step_guarded(Work work);
  void fail(const std::exception& error);

  void enter_run(outer_sync::protocol::Hello hello);
  void take_state();
  void lose_state(const std::string& why);
  [[nodiscard]] bool await_turn();
  [[nodiscard]] Turn turn(const outer_sync::NodeStatus& now);
  void count(const InnerStep& step);
  void report(const InnerStep& step, double took, bool was_due);
  [[nodiscard]] Wants regularly_wants() const;
  [[nodiscard]] bool make_agreed_step();
  void at_agreed_step();
  void evaluate();

  [[nodiscard]] std::optional<std::string> request_to_leave() const;
  [[nodiscard]] std::optional<std::string> leaves_now(const outer_sync::NodeStatus& now);
  [[nodiscard]] bool awaits_checkpoint_of_all(const outer_sync::NodeStatus& now);
  void begin_to_leave(const std::string& why);
  void finish();
  void report_end();
  void say_goodbye();
  [[nodiscard]] double waited() const;
  [[nodiscard]] std::uint64_t disk_free();

  const Experiment& config_;
  const std::string name_;
  const outer_sync::FragmentLayout& layout_;
  TrainingHooks& hooks_;
  const std::vector<ParticipantObserver*> observers_;
  const std::filesystem::path folder_;
  const std::shared_ptr<outer_sync::RecordQueue> records_;
  Stopper* const stopper_;
  const bool writes_checkpoints_;
  const std::uint64_t steps_, last_;  ///< of the run, and of this replica (run.stop_after)
  const std::unique_ptr<Membership> member_;
  outer_sync::OuterLoop outer_;

  State state_ = State::joining;
  bool resumed_ = false, stopped_ = false, paused_ = false;
  bool begins_ = false;  ///< the state is new: agreed steps may remain from before
  std::uint64_t first_step_ = 0, states_taken_ = 0;
  Wants wants_;
  std::optional<std::uint64_t> evaluated_;          ///< newest step
  std::optional<std::string> drained_;              ///< an operator's reason to leave
  std::optional<std::uint64_t> leave_by_;           ///< agreed step
  std::optional<Clock::time_point> leaving_since_;  ///< when it was asked to leave
  std::uint64_t leaves_at_ = 0;                     ///< agreed step at that time
  bool left_ = false, failed_ = false, comes_back_ = false;
  std::string reason_;  ///< why it leaves or has failed
  std::optional<Digest> final_hash_;
  mutable std::mutex requests_;
  std::optional<std::string> request_;  ///< to leave

  Clock::time_point began_;   ///< start of the inner step
  double waited_before_ = 0;  ///< `waited()` at that time
  std::uint64_t tokens_ = 0;
  double train_seconds_ = 0, compute_seconds_ = 0;
  double busy_step_seconds_ = 0;  ///< mean over the last inner steps; 0 before the first
  NewFigures new_figures_;
  std::uint64_t disk_free_ = 0;
  std::optional<Clock::time_point> disk_seen_;
};

}  // namespace isthmus::app
