#pragma once
// Sends what waits in a RecordQueue to the coordinator. Everything here runs on the io thread.

#include <memory>
#include <string>
#include <utility>

#include "isthmus/outer_sync/net/member/record_queue.h"
#include "net/link/control_link.h"

namespace isthmus::outer_sync::transport {

/// Has one message under way at a time, so that no heartbeat waits behind more. Without a queue it does
/// nothing.
class RecordSender {
 public:
  /// The link must outlive it.
  explicit RecordSender(ControlLink& control) : control_(control) {}

  void use(std::shared_ptr<RecordQueue> records) { records_ = std::move(records); }
  /// A line of the log.
  void add(const std::string& text) const;
  /// A new connection: what was under way on another is said again.
  void connected() { under_way_ = false; }
  void send();
  /// `send`, where so much waits that it is worth a message before the next heartbeat.
  void send_if_enough();
  /// All there are, before this member is gone. Nobody waits for the answers: what arrives does so before
  /// whatever is said after it.
  void send_all();
  void on_taken(const protocol::RecordsTaken& taken);

 private:
  ControlLink& control_;
  std::shared_ptr<RecordQueue> records_;  ///< null: they stay here
  bool under_way_ = false;
  bool wanted_ = false;  ///< as far as is known: the first line is also a question
};

}  // namespace isthmus::outer_sync::transport
