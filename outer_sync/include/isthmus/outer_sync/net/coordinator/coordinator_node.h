#pragma once
// The coordinator on the network. `run` serves until the run has ended.

#include <cstdint>
#include <memory>
#include <string>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/tls/enrolment.h"

namespace isthmus::outer_sync {

/// What the application is told; called on the thread of `run`, which ends with what any of these throws but
/// `store`.
class CoordinatorObserver {
 public:
  virtual ~CoordinatorObserver() = default;
  virtual void message(const std::string& text) = 0;
  virtual void members_changed(const protocol::Coordinator& coordinator) = 0;
  virtual void evaluated(std::uint64_t step, double loss) = 0;
  /// What the replicas' contributions to a round are like.
  virtual void round_judged(const protocol::RoundJudged& round) = 0;
  /// Returns when it is on disk: the next coordinator of this run begins with it. What it throws (the disk is
  /// full) is said; it is called again until it returns, and the members are told of no view before.
  virtual void store(const protocol::LastView& view) = 0;
  /// What a member has written for people. Returns when it is kept: the member forgets it then. False where
  /// no more of it is wanted: the member keeps it to itself from then on.
  virtual bool gathered(const protocol::Gathered&) { return false; }
  /// How the run stands, as a JSON object, for whoever asks.
  [[nodiscard]] virtual std::string status(const protocol::Coordinator&) { return "{}"; }
};

class CoordinatorNode {
 public:
  /// Binds `network.coordinator`; Error(config) naming the address when it is in use. A run's token is made
  /// here, unless the options bring the last view. With a desk, and `network.certs`, machines that are
  /// invited get their certificates here.
  CoordinatorNode(const NetworkConfig& network, protocol::CoordinatorOptions options,
                  CoordinatorObserver& observer, std::unique_ptr<tls::EnrolmentDesk> desk = nullptr);
  ~CoordinatorNode();
  CoordinatorNode(const CoordinatorNode&) = delete;
  CoordinatorNode& operator=(const CoordinatorNode&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  /// Blocks until the run has ended and everybody was told.
  [[nodiscard]] protocol::Ended run();
  /// Safe from any thread.
  void request_stop(const std::string& reason);
  /// `Coordinator::propose`, likewise.
  void propose(const protocol::ConfigItems& items, const std::string& by, const std::string& why);
  [[nodiscard]] const protocol::Coordinator& coordinator() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::outer_sync
