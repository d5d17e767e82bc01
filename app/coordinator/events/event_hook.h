#pragma once
// `run.on_event`: an operator's command that the coordinator runs when something happens to the run.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace isthmus::app {

/// Runs `sh -c COMMAND` for each event, one at a time and in order, on a thread of its own. The command gets
/// the event as a JSON object on standard input, its kind as $1, and the same JSON as $2 (above 64 KiB:
/// {"event": kind, "too_long": true}). No part of an event is ever put into the command's text. A command
/// that takes longer than `limit` is killed with all its processes. Failed commands and dropped events are
/// only reported.
class EventHook {
 public:
  using Say = std::function<void(const std::string&)>;  ///< called from any thread
  static constexpr std::chrono::milliseconds usual_limit{30'000};
  static constexpr std::size_t max_waiting = 64;

  /// An empty `command` runs nothing.
  EventHook(std::string command, Say say, std::chrono::milliseconds limit = usual_limit);
  /// Waits until the queued events have been handled; starts no command after `limit`.
  ~EventHook();
  EventHook(const EventHook&) = delete;
  EventHook& operator=(const EventHook&) = delete;

  void fire(const std::string& kind, nlohmann::ordered_json event);

 private:
  struct Event {
    std::string kind, json;
  };
  void work();
  void run(const Event& event, std::chrono::steady_clock::time_point until) const;

  const std::string command_;
  const Say say_;
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> waiting_;
  bool ending_ = false;
  std::chrono::steady_clock::time_point end_by_ = std::chrono::steady_clock::time_point::max();
  std::thread thread_;
};

}  // namespace isthmus::app
