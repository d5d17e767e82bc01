#pragma once
// Sends the lines of a RecordQueue to the coordinator.

#include <memory>
#include <string>
#include <utility>

#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "net/link/control_link.h"

namespace isthmus::outer_sync::transport {

/// Keeps at most one message in flight, so that no heartbeat waits behind several. Does nothing without a
/// queue.
class RecordSender {
 public:
  /// The link must outlive it.
  explicit RecordSender(ControlLink& control) : control_(control) {}

  void use(std::shared_ptr<RecordQueue> records) { records_ = std::move(records); }
  /// Queues a log line.
  void add(const std::string& text) const;
  /// There is a new connection: the message in flight on the old one is sent again.
  void connected() { under_way_ = false; }
  void send();
  /// Calls `send` if enough is queued to be worth a message before the next heartbeat.
  void send_if_enough();
  /// Sends all lines before this member leaves. Does not wait for acknowledgements: messages stay in order,
  /// so these arrive before any later one.
  void send_all();
  void on_taken(const protocol::RecordsTaken& taken);

 private:
  ControlLink& control_;
  std::shared_ptr<RecordQueue> records_;  ///< null: lines are not sent
  bool under_way_ = false;
  bool wanted_ = false;  ///< false until the first acknowledgement: send one line to ask
};

}  // namespace isthmus::outer_sync::transport
