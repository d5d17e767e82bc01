#pragma once
// The coordinator on the network. `run` serves until the run has ended.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "isthmus/outer_sync/config/config.h"
#include "isthmus/outer_sync/net/mailbox/mailbox_place.h"
#include "isthmus/outer_sync/protocol/coordinator/coordinator.h"
#include "isthmus/outer_sync/tls/enrolment.h"

namespace isthmus::outer_sync {

/// The application's callbacks, called on the thread of `run`. An exception from any of them except `store`
/// ends `run` and is thrown by it.
class CoordinatorObserver {
 public:
  virtual ~CoordinatorObserver() = default;
  virtual void message(const std::string& text) = 0;
  virtual void members_changed(const protocol::Coordinator& coordinator) = 0;
  virtual void evaluated(std::uint64_t step, double loss) = 0;
  /// Norms and agreement of the replicas' contributions to a round.
  virtual void round_judged(const protocol::RoundJudged& round) = 0;
  /// Writes the view to disk, for the next coordinator of this run, before it returns. If it throws (disk
  /// full), that is reported and it is called again until it returns; members receive no view before.
  virtual void store(const protocol::LastView& view) = 0;
  /// Stores a member's log and metrics lines before it returns: the member then forgets them. Returns false
  /// if no more are wanted; the member then sends none.
  virtual bool gathered(const protocol::Gathered&) { return false; }
  /// Called ten times a second, also while no member reports.
  virtual void ticked(const protocol::Coordinator&) {}
  /// The status of the run as a JSON object, in reply to a query.
  [[nodiscard]] virtual std::string status(const protocol::Coordinator&) { return "{}"; }
};

class CoordinatorNode {
 public:
  /// Binds `network.coordinator`. Throws Error(config) with the address if it is in use. Creates the run's
  /// token unless the options contain the last view. With a `desk`, and with `network.certs` set, invited
  /// machines get their certificates here. With a `mailbox`, members may also connect through it.
  CoordinatorNode(const NetworkConfig& network, protocol::CoordinatorOptions options,
                  CoordinatorObserver& observer, std::unique_ptr<tls::EnrolmentDesk> desk = nullptr,
                  const std::optional<MailboxPlace>& mailbox = std::nullopt);
  ~CoordinatorNode();
  CoordinatorNode(const CoordinatorNode&) = delete;
  CoordinatorNode& operator=(const CoordinatorNode&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  /// Blocks until the run has ended and all members know it.
  [[nodiscard]] protocol::Ended run();
  /// Safe from any thread.
  void request_stop(const std::string& reason);
  /// Coordinator::propose; safe from any thread.
  void propose(const protocol::ConfigItems& items, const std::string& by, const std::string& why);
  [[nodiscard]] const protocol::Coordinator& coordinator() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isthmus::outer_sync
