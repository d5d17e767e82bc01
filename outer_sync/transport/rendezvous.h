#pragma once
// Where the trainer's thread and the io thread of a member meet: values under one mutex, and one condition.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/messages.h"
#include "isthmus/outer_sync/transport/member_node.h"

namespace isthmus::outer_sync::transport {

/// What the trainer's thread and the io thread meet in.
struct Rendezvous {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Error> failure;
  std::optional<protocol::Seal> seal;
  std::optional<protocol::NewView> view;
  std::optional<protocol::Finished> finished;
  std::optional<std::string> announced;
  std::map<std::pair<FragmentId, protocol::Round>, std::vector<protocol::SharedBytes>> results;
  bool hold = false;
  std::optional<std::uint64_t> stop_at;
  std::uint64_t begun = 0;  ///< step that the trainer is in
  bool stopped = false;
  bool gone = false;  ///< the control connection has ended
  StepReport report;

  /// Blocks until `ready()` or failure.
  template <class Ready>
  void wait_for(std::unique_lock<std::mutex>& lock, Ready ready) {
    changed.wait(lock, [&] { return failure.has_value() || ready(); });
    if (!ready()) throw *failure;
  }
  template <class Change>
  void update(Change change) {
    {
      const std::lock_guard lock(mutex);
      change();
    }
    changed.notify_all();
  }
};

}  // namespace isthmus::outer_sync::transport
