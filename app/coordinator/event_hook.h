#pragma once
// `run.on_event`: a command of the operator's that the coordinator runs when something happens to the run.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace isthmus::app {

/// Runs `sh -c COMMAND` for each event, one at a time and in order, on a thread of its own. The event is a
/// JSON object on the command's standard input; $1 is its kind and $2 the same JSON, or, of one longer than
/// 64 KiB, {"event": kind, "too_long": true}. Nothing of an event is ever part of the command's text. A
/// command that fails, or takes longer than `limit` and is killed with all that it has started, is said and
/// harms nothing; so is an event for which there is no room any more.
class EventHook {
 public:
  using Say = std::function<void(const std::string&)>;  ///< from any thread
  static constexpr std::chrono::milliseconds usual_limit{30'000};
  static constexpr std::size_t max_waiting = 64;

  /// `command` empty: nothing is run.
  EventHook(std::string command, Say say, std::chrono::milliseconds limit = usual_limit);
  /// Once the events that wait have been handled; no new one is begun after `limit`.
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
