#pragma once
// When a worker that has died is started again: at most so many times in all, and later each time, so that a
// machine that is away for a while does not use them all up at once.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace isthmus::app {

class Restarts {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Restarts(std::int64_t left) : left_(left) {}

  enum class Answer { now, later, no };
  /// Asked again and again about one that has died; `now` is one of those that are left, and is given once.
  [[nodiscard]] Answer ask(const std::string& worker, Clock::time_point now);
  /// Somebody is to be started again, and not yet.
  [[nodiscard]] bool any_waits() const;
  /// How often it was started again.
  [[nodiscard]] std::int64_t of(const std::string& worker) const;
  /// Before the next one, after so many: none, then a second, doubling to a minute.
  [[nodiscard]] static std::chrono::seconds pause(std::int64_t restarts);

 private:
  struct Worker {
    std::int64_t restarts = 0;
    Clock::time_point at;
    bool waits = false;
  };
  std::int64_t left_;
  std::map<std::string, Worker> workers_;
};

}  // namespace isthmus::app
