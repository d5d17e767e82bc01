#pragma once
// Follows a run's global parameters without taking part in the run. No Python here.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/log/log_header.h"
#include "run/experiment/experiment.h"
#include "worker/followers/follower.h"

namespace isthmus::python {

struct ObserverRequest {
  app::Experiment experiment;
  std::string name;
  std::string build;  ///< of the observing program, for messages about different builds
  std::vector<outer_sync::log::LoggedTensor> tensors;  ///< in buffer order
  std::vector<outer_sync::Range> fragments;
  outer_sync::FragmentId averaged = 0;  ///< the last fragments, which hold buffers
  std::function<void()> while_waiting;
};

/// Used by one thread.
class Observer {
 public:
  /// Joins the run. Throws Error as `isthmus observe` does, and what `while_waiting` throws.
  explicit Observer(ObserverRequest request);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// As in app::Follower; false once the run has ended.
  bool next();
  bool catch_up();
  /// Step of the global parameters; nullopt between steps.
  [[nodiscard]] std::optional<std::uint64_t> step() const { return step_; }
  [[nodiscard]] app::Follower::Rounds rounds() const { return follower_.rounds(); }
  [[nodiscard]] bool has_state() const { return follower_.has_state(); }
  [[nodiscard]] std::span<const float> global_parameters() { return follower_.global_parameters(); }
  [[nodiscard]] std::string global_hash() { return follower_.global_hash().hex(); }
  [[nodiscard]] std::string verdict() { return follower_.verdict(); }
  /// Leaves the run. Further calls do nothing.
  void close();

 private:
  app::Experiment config_;
  const int process_;
  outer_sync::FragmentLayout layout_;
  app::Follower follower_;
  std::optional<std::uint64_t> step_;
  bool closed_ = false;
};

}  // namespace isthmus::python
