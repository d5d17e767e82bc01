#pragma once
// The files of a run's folder that a launch reads and writes.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "launch/sites/launch_places.h"
#include "run/experiment/experiment.h"

namespace isthmus::app {

class LaunchFolder {
 public:
  /// Refers to the experiment, which must outlive this.
  explicit LaunchFolder(const Experiment& experiment) : experiment_(experiment) {}

  [[nodiscard]] std::filesystem::path path() const { return experiment_.folder(); }
  [[nodiscard]] std::filesystem::path config() const { return path() / "config.yaml"; }
  [[nodiscard]] std::filesystem::path log_of(const std::string& worker) const {
    return path() / worker / "worker.log";
  }

  /// Remembers the config and the metrics, which are those of earlier launches.
  void remember();
  /// Undoes the settings of a failed resume, so that they do not affect the next one.
  void restore_config() const;
  /// Whether the run had metrics before this launch, and whether a local replica has added some since.
  [[nodiscard]] bool had_metrics() const { return metrics_before_ > 0; }
  [[nodiscard]] bool has_new_metrics() const { return metrics_size() > metrics_before_; }

  /// The coordinator's port, for a launch that takes the run over; 0 if unknown. A full disk is reported and
  /// ignored.
  void keep_port(std::uint16_t port) const;
  [[nodiscard]] std::uint16_t kept_port() const { return kept_port(path()); }
  [[nodiscard]] static std::uint16_t kept_port(const std::filesystem::path& folder);

  /// The run's secret: configured, kept from an earlier launch if this one resumes, or new. Empty with
  /// certificates or without any authentication.
  [[nodiscard]] std::string find_secret(bool resume) const;
  void write_secret(const std::string& secret) const;

  /// Throws Error(data) if no replica has a checkpoint, or, in a data-parallel run, if they have none in
  /// common. With replicas on other machines, or an object store, the coordinator reports it.
  void check_checkpoints(const Places& places) const;

  /// Why there is nothing to resume if the run has finished: its summary is of the last step, and each
  /// replica here has a checkpoint of that step.
  [[nodiscard]] std::optional<std::string> finished(const Places& places) const;

  /// The step of the summary; nullopt without one.
  [[nodiscard]] std::optional<std::uint64_t> last_step() const;

  /// Stores the summary of a coordinator on another machine. Errors are reported and ignored.
  void keep_summary(const std::string& text) const;
  [[nodiscard]] std::string summary() const;
  /// Whether the coordinator's state is there, which it removes at the end of the run.
  [[nodiscard]] bool run_is_unfinished() const;
  /// Throws Error(config) if the run is unfinished: workers that `launch` does not start may be training.
  void refuse_unfinished() const;
  /// When the run ended in order, by the time of its summary; nullopt if it has not ended, or continues.
  [[nodiscard]] std::optional<std::filesystem::file_time_type> ended_at() const;

 private:
  /// Bytes of metrics of all local replicas; grows once one of them trains.
  [[nodiscard]] std::uintmax_t metrics_size() const;

  const Experiment& experiment_;
  std::string config_before_;
  std::uintmax_t metrics_before_ = 0;
};

}  // namespace isthmus::app
