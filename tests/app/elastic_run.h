#pragma once
// A coordinator and workers as separate processes, some of which join later. Their output is read while they
// run.

#include <map>
#include <memory>
#include <optional>

#include "site.h"

namespace isthmus {

class ElasticRun {
 public:
  /// A run of the tiny config with these settings.
  explicit ElasticRun(Words settings);
  /// Ends all processes.
  ~ElasticRun();
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  /// Starts a coordinator and the workers that begin the run.
  void start(const Words& workers);
  /// After a stop: starts a coordinator that resumes, with these settings added. Workers added afterwards
  /// resume too.
  void resume(const Words& settings);
  /// Starts one more worker, with flags of its own.
  void add(const std::string& worker, const Words& flags = {});
  /// Starts a worker with a command other than `isthmus worker`.
  void add_by(const std::string& worker, Words command);
  /// Kills the worker without waiting for its end.
  void kill(const std::string& worker);
  void signal(const std::string& worker, int number) const { workers_.at(worker)->signal(number); }
  void kill_coordinator();
  /// Starts the coordinator again at the same address, with flags of its own.
  void restart_coordinator(const Words& flags = {});
  /// Blocks until the current coordinator has printed a whole line with `words`; false if it does not.
  [[nodiscard]] bool coordinator_says(const std::string& words) const;
  /// Waits for a worker that ends before the run.
  Result end_of(const std::string& worker, std::chrono::milliseconds limit = patience);
  /// Stops the run with Ctrl-C at the coordinator; all must end well.
  void stop();
  /// Waits for the end of the run; all must end well.
  void finish();

  /// Blocks until the worker has made this step; false if it does not.
  [[nodiscard]] bool reaches(const std::string& worker, std::uint64_t step) const;
  /// The worker's output so far.
  [[nodiscard]] std::string output(const std::string& worker) const { return workers_.at(worker)->output(); }
  /// The agreed step from which a newcomer takes part; blocks until it has made a step.
  [[nodiscard]] std::optional<std::uint64_t> joined_at(const std::string& worker) const;
  /// Bytes that the worker has sent by its newest step.
  [[nodiscard]] double sent(const std::string& worker) const;
  /// The complete lines of its metrics.jsonl so far.
  [[nodiscard]] std::vector<nlohmann::json> metrics(const std::string& worker) const;
  [[nodiscard]] const std::string& address() const { return address_; }  ///< the coordinator's address
  [[nodiscard]] nlohmann::json summary() const { return site_.summary(); }
  [[nodiscard]] std::string hash() const { return site_.hash(); }
  [[nodiscard]] std::string logs() const { return site_.logs(); }
  [[nodiscard]] const Site& site() const { return site_; }

 private:
  void start_coordinator(const std::string& listen, const Words& flags);

  Site site_;
  Words settings_;
  std::string address_;
  bool resume_ = false;
  std::unique_ptr<Command> coordinator_;
  std::map<std::string, std::unique_ptr<Command>> workers_;
};

}  // namespace isthmus
