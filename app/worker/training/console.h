#pragma once
// The output of a worker: log lines, which the coordinator gets too, and its progress.

#include <memory>
#include <mutex>
#include <string>

#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/net/member/io/record_queue.h"
#include "participant/hooks.h"

namespace isthmus::app {

class Console final : public ParticipantObserver {
 public:
  /// `quiet`: no progress line.
  Console(std::string name, bool quiet);

  /// Any thread.
  void say(const std::string& text);
  /// The lines on their way to the coordinator.
  [[nodiscard]] const std::shared_ptr<outer_sync::RecordQueue>& records() const { return records_; }

  void entered(const Participant& participant) override;
  void stepped(const Participant& participant, const StepRecord& record) override;

 private:
  const std::string name_;
  const std::shared_ptr<outer_sync::RecordQueue> records_ = std::make_shared<outer_sync::RecordQueue>();
  std::mutex output_;  ///< a stream's threads print too
  std::unique_ptr<Progress> progress_;
};

}  // namespace isthmus::app
