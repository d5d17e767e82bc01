#pragma once
// What `bench outer` measures: one report of each replica, which its coordinator makes a table of.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/report_json.h"

namespace isthmus::app {

/// Of one replica. Times in seconds. `measured_*`, `*_seconds` and `fragment_*` are of the measured steps
/// alone: not of those that fill the pipeline, and not of what comes after the last step.
struct OuterBenchMember {
  std::string name;
  std::string global_hash;
  std::uint64_t parameters = 0;
  double step_time = 0;  ///< of one step, as it was asked for
  std::uint64_t steps = 0;
  std::uint64_t measured_steps = 0;
  double measured_seconds = 0;   ///< wall time; the five below and what is left over make it up
  double compute_seconds = 0;    ///< steps times their time
  double waiting_seconds = 0;    ///< for results that had not come
  double encoding_seconds = 0;   ///< outer gradients, and handing them over
  double applying_seconds = 0;   ///< decoding, outer step, merge, hash chain
  double late_wake_seconds = 0;  ///< that the sleep for a step lasted longer than it was to
  double noise_seconds = 0;      ///< changing parameters, within the steps' time
  std::uint64_t rounds = 0;      ///< applied in all, of all fragments
  std::uint64_t measured_rounds = 0;
  std::uint64_t late_rounds = 0;       ///< of these, waited for
  double fragment_seconds_median = 0;  ///< from the first encoded chunk to the last result
  double fragment_seconds_p99 = 0;
  std::uint64_t payload_bytes = 0, total_bytes = 0;  ///< sent in all; total with headers and control
  double link_bits_per_second = 0;                   ///< as configured; 0 any
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

/// The settings that the figures are of.
struct OuterBenchSettings {
  std::string codec;
  std::int64_t sync_every = 0;  ///< in the measured part
  std::int64_t num_fragments = 0, sync_delay = 0;
};

/// The figures outside of "members" are of the replica that computed least. At least one member.
[[nodiscard]] nlohmann::ordered_json outer_bench_json(const OuterBenchSettings& settings,
                                                      const std::vector<OuterBenchMember>& members);
/// At most 80 columns wide.
[[nodiscard]] std::string outer_bench_table(const nlohmann::ordered_json& report);

/// The nearest-rank quantile, 0 <= q <= 1; 0 of nothing.
[[nodiscard]] double quantile(std::vector<double> values, double q);

}  // namespace isthmus::app
