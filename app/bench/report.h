#pragma once
// The figures of `bench outer`: each replica reports to the coordinator, which makes one table of them.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/metrics/report_json.h"

namespace isthmus::app {

/// Report of one replica, one field for each key of its JSON. Times in seconds. `measured_*`, `*_seconds` and
/// `fragment_*` cover only the measured steps, without the steps that fill the pipeline and the work after
/// the last step.
struct OuterBenchMember {
  std::string name;
  std::string global_hash;
  std::uint64_t parameters = 0;
  double step_time = 0;  ///< requested time of one step
  std::uint64_t steps = 0;
  std::uint64_t measured_steps = 0;
  double measured_seconds = 0;   ///< wall time, which includes the next five
  double compute_seconds = 0;    ///< number of steps times step_time
  double waiting_seconds = 0;    ///< for results that had not arrived
  double encoding_seconds = 0;   ///< encoding outer gradients and handing them over
  double applying_seconds = 0;   ///< decoding, outer step, merge, hash chain
  double late_wake_seconds = 0;  ///< by which sleeps lasted too long
  double noise_seconds = 0;      ///< changing parameters; part of compute_seconds
  std::uint64_t rounds = 0;      ///< applied in the whole run, over all fragments
  std::uint64_t measured_rounds = 0;
  std::uint64_t late_rounds = 0;       ///< measured rounds that the replica waited for
  double fragment_seconds_median = 0;  ///< from the first encoded chunk to the last result
  double fragment_seconds_p99 = 0;
  std::uint64_t payload_bytes = 0, total_bytes = 0;  ///< sent in the run; total with headers and control
  double link_bits_per_second = 0;                   ///< as configured; 0: no limit
  bool stopped = false;

  template <class Self, class Visit>
  static void fields(Self& m, Visit visit) {
    visit("name", m.name);
    visit("global_hash", m.global_hash);
    visit("parameters", m.parameters);
    visit("step_time", m.step_time);
    visit("steps", m.steps);
    visit("measured_steps", m.measured_steps);
    visit("measured_seconds", m.measured_seconds);
    visit("compute_seconds", m.compute_seconds);
    visit("waiting_seconds", m.waiting_seconds);
    visit("encoding_seconds", m.encoding_seconds);
    visit("applying_seconds", m.applying_seconds);
    visit("late_wake_seconds", m.late_wake_seconds);
    visit("noise_seconds", m.noise_seconds);
    visit("rounds", m.rounds);
    visit("measured_rounds", m.measured_rounds);
    visit("late_rounds", m.late_rounds);
    visit("fragment_seconds_median", m.fragment_seconds_median);
    visit("fragment_seconds_p99", m.fragment_seconds_p99);
    visit("payload_bytes", m.payload_bytes);
    visit("total_bytes", m.total_bytes);
    visit("link_bits_per_second", m.link_bits_per_second);
    visit("stopped", m.stopped);
  }
};

/// The settings that were measured.
struct OuterBenchSettings {
  std::string codec;
  std::int64_t sync_every = 0;  ///< in the measured steps
  std::int64_t num_fragments = 0, sync_delay = 0;
};

/// The figures outside of "members" are those of the replica that spent the smallest part of its time
/// computing. Needs at least one member.
[[nodiscard]] nlohmann::ordered_json outer_bench_json(const OuterBenchSettings& settings,
                                                      const std::vector<OuterBenchMember>& members);
/// At most 80 columns wide.
[[nodiscard]] std::string outer_bench_table(const nlohmann::ordered_json& report);

/// The nearest-rank quantile, 0 <= q <= 1; 0 without values.
[[nodiscard]] double quantile(std::vector<double> values, double q);

}  // namespace isthmus::app
