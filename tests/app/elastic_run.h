#pragma once
// A coordinator and workers as processes of their own, some of which come later; what they write is read
// while they run.

#include <map>
#include <memory>
#include <optional>

#include "site.h"

namespace isthmus {

class ElasticRun {
 public:
  /// Of the tiny config with these settings.
  explicit ElasticRun(Words settings);
  /// Nothing is left running.
  ~ElasticRun();
  ElasticRun(const ElasticRun&) = delete;
  ElasticRun& operator=(const ElasticRun&) = delete;

  /// A coordinator and the workers that the run begins with.
  void start(const Words& workers);
  /// After a stop: a coordinator that resumes with these settings besides; workers that are added then resume
  /// too.
  void resume(const Words& settings);
  /// One more, with flags of its own.
  void add(const std::string& worker, const Words& flags = {});
  /// One that comes in another way than by `isthmus worker`.
  void add_by(const std::string& worker, Words command);
  /// The process is gone at once, and nobody waits for it.
  void kill(const std::string& worker);
  void signal(const std::string& worker, int number) const { workers_.at(worker)->signal(number); }
  void kill_coordinator();
  /// Again at the same address, with flags of its own.
  void restart_coordinator(const Words& flags = {});
  /// Blocks until the coordinator of now has said it, with a whole line. False when it does not.
  [[nodiscard]] bool coordinator_says(const std::string& words) const;
  /// Waits for a worker that ends before the run does.
  Result end_of(const std::string& worker, std::chrono::milliseconds limit = patience);
  /// Ctrl-C at the coordinator; all must end well.
  void stop();
  /// Waits for the end, which must be a good one.
  void finish();

  /// Blocks until the worker has made this step. False when it does not come.
  [[nodiscard]] bool reaches(const std::string& worker, std::uint64_t step) const;
  /// What it has said.
  [[nodiscard]] std::string output(const std::string& worker) const { return workers_.at(worker)->output(); }
  /// The agreed step from which one that came later takes part; blocks until it has made a step.
  [[nodiscard]] std::optional<std::uint64_t> joined_at(const std::string& worker) const;
  /// Bytes that the worker has sent by its newest step.
  [[nodiscard]] double sent(const std::string& worker) const;
  /// Whole lines of its metrics.jsonl so far.
  [[nodiscard]] std::vector<nlohmann::json> metrics(const std::string& worker) const;
  [[nodiscard]] const std::string& address() const { return address_; }  ///< the coordinator's
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
