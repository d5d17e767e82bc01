#pragma once
// summary.json of a run, made by the coordinator from the members' final reports, and the human-readable
// table.

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "run/experiment/experiment.h"
#include "run/metrics/report_json.h"

namespace isthmus::app {

/// A member's final report, one field for each key of its JSON. Times in seconds, counts since this process
/// started.
struct MemberReport {
  std::string name;
  std::string global_hash;
  std::uint64_t parameters = 0;
  std::uint64_t first_step = 0, last_step = 0;  ///< trained (first_step, last_step]
  std::uint64_t inner_steps = 0;                ///< in its last sync interval
  std::uint64_t tokens = 0;
  double train_seconds = 0;         ///< wall time of the training loop without evaluations and checkpoints
  double compute_seconds = 0;       ///< of that, in inner steps
  double stall_seconds = 0;         ///< waited for a late outer result
  double warmup_wait_seconds = 0;   ///< waited for averaged gradients in synchronous steps
  double finish_seconds = 0;        ///< waited for the last rounds after the last step
  double data_wait_seconds = 0;     ///< waited for a batch
  double rank_average_seconds = 0;  ///< in averages over the ranks, with replica.average_every
  std::uint64_t payload_bytes = 0, total_bytes = 0;  ///< sent
  std::uint64_t rounds = 0, warmup_rounds = 0;
  std::uint64_t rejected = 0;  ///< rounds that left out some of its chunks because of their norm
  std::uint64_t exchanges = 0, exchanges_averaged = 0;  ///< with outer.gossip_every: ended, and averaged
  /// Outer steps with momentum that were measured (outer_sync/engine/step_figures.h), and means over them.
  std::uint64_t outer_steps = 0;
  double outer_gain = 0, outer_correlation = 0;
  std::string precision, device;
  std::string sample;  ///< generated text; only from the first member
  bool stopped = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit visit) {
    visit("name", r.name);
    visit("global_hash", r.global_hash);
    visit("parameters", r.parameters);
    visit("first_step", r.first_step);
    visit("last_step", r.last_step);
    visit("inner_steps", r.inner_steps);
    visit("tokens", r.tokens);
    visit("train_seconds", r.train_seconds);
    visit("compute_seconds", r.compute_seconds);
    visit("stall_seconds", r.stall_seconds);
    visit("warmup_wait_seconds", r.warmup_wait_seconds);
    visit("finish_seconds", r.finish_seconds);
    visit("data_wait_seconds", r.data_wait_seconds);
    visit("rank_average_seconds", r.rank_average_seconds);
    visit("payload_bytes", r.payload_bytes);
    visit("total_bytes", r.total_bytes);
    visit("rounds", r.rounds);
    visit("warmup_rounds", r.warmup_rounds);
    visit("rejected", r.rejected);
    visit("exchanges", r.exchanges);
    visit("exchanges_averaged", r.exchanges_averaged);
    visit("outer_steps", r.outer_steps);
    visit("outer_gain", r.outer_gain);
    visit("outer_correlation", r.outer_correlation);
    visit("precision", r.precision);
    visit("device", r.device);
    visit("sample", r.sample);
    visit("stopped", r.stopped);
  }
};

/// One replica's outer gradients, as seen by the coordinator. Norm and cosine (to the mean) are those of the
/// last round judged.
struct GradientReport {
  double norm = 0, cosine = 0;
  std::uint64_t rounds = 0, outlier_rounds = 0;
};

struct RunReport {
  std::vector<MemberReport> members;                   ///< trainers only
  std::map<std::string, std::uint64_t> reducer_bytes;  ///< sent by reducers, by name
  std::map<std::uint64_t, double> evaluations;      ///< step -> loss of the global parameters, nats per token
  std::map<std::string, GradientReport> gradients;  ///< by replica
  double wall_seconds = 0;
};

[[nodiscard]] nlohmann::ordered_json summary_json(Experiment& experiment, const RunReport& report);
/// At most 80 columns wide, except for the folder's path.
[[nodiscard]] std::string summary_table(const nlohmann::ordered_json& summary, const std::string& sample);

}  // namespace isthmus::app
