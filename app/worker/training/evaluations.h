#pragma once
// Evaluates the global parameters for a worker: loss on held-out text, distance from its own parameters, and
// a sample of text.

#include <cstdint>
#include <filesystem>
#include <string>

#include "isthmus/data/device_timeline.h"
#include "isthmus/outer_sync/net/member/member_node.h"
#include "isthmus/trainer/replica.h"
#include "participant/participant.h"
#include "worker/setup/model_setup.h"

namespace isthmus::app {

class Evaluations {
 public:
  /// Must outlive this.
  struct Parts {
    const Experiment& experiment;
    ModelSetup& setup;
    trainer::Replica& replica;
    Participant& participant;
    outer_sync::MemberNode& node;
    data::DeviceTimeline& timeline;
    std::filesystem::path metrics;  ///< the file of this replica
  };
  explicit Evaluations(Parts parts) : parts_(std::move(parts)) {}

  /// Evaluates this replica's share, and reports it.
  void evaluate(std::uint64_t step);
  /// Repeats the newest reports: those of a killed run may not have arrived, and their steps are not trained
  /// again.
  void report_again();
  /// Text from the global parameters; empty if the run wants none from this replica.
  [[nodiscard]] std::string sample();

 private:
  [[nodiscard]] double drift();

  Parts parts_;
};

}  // namespace isthmus::app
