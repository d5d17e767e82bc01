#include "compare/report/columns.h"

#include <fmt/format.h>

#include "compare/statistics/words.h"
#include "isthmus/base/progress.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

using Target = std::optional<double>;

std::string number_cell(const ordered_json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

std::string loss_cell(const ordered_json& arm) {
  const auto& loss = arm["final_loss"];
  const auto noise = loss["noise"].is_number() ? fmt::format(" ± {:.4f}", loss["noise"].get<double>()) : "";
  return (loss["mean"].is_number() ? loss_words(loss["mean"]) : "-") + noise;
}

std::string difference_cell(const ordered_json& arm) {
  const auto& difference = arm["difference"];
  if (!difference.is_object()) return arm.value("baseline", false) ? "baseline" : "-";
  const auto& noise = difference["noise"];
  return signed_percent(difference["relative"]) +
         (noise.is_number() ? " ± " + percent(noise.get<double>()) : "");
}

Target at_end(const RunRecord& run, std::optional<double> CurvePoint::*what) {
  return run.curve.empty() ? std::nullopt : run.curve.back().*what;
}

// key, heading, the terminal's width and heading, figure of a run, text of an arm (columns.h). A new column
// is a row here. If no run has the figure yet, it also needs a field of RunRecord (../runs/run_record.h),
// read from summary.json (../../run/metrics/summary.h).
constexpr Column all_columns[] = {
    {"final_loss", "final loss", {15, "loss"}, nullptr, loss_cell},
    {"difference", "difference", {15, "difference"}, nullptr, difference_cell},
    {"seconds",
     "training time",
     {},
     [](const RunRecord& run, Target) { return at_end(run, &CurvePoint::seconds); },
     [](const ordered_json& arm) { return number_cell(arm["seconds"], "{:.1f} s"); }},
    {"bytes",
     "sent by a replica",
     {8, "sent"},
     [](const RunRecord& run, Target) { return at_end(run, &CurvePoint::bytes); },
     [](const ordered_json& arm) { return arm["bytes"].is_number() ? format_bytes(arm["bytes"]) : "-"; }},
    {"fewer_bytes",
     "fewer bytes",
     {},
     nullptr,
     [](const ordered_json& arm) {
       return arm["fewer_bytes"].is_number() ? times(arm["fewer_bytes"]) + " x" : "-";
     }},
    {"bits_per_parameter_per_step",
     "bits per parameter and step",
     {6, "bits"},
     [](const RunRecord& run, Target) { return run.bits; },
     [](const ordered_json& arm) { return number_cell(arm["bits_per_parameter_per_step"], "{:.3f}"); }},
    {"compute_utilization",
     "utilisation",
     {5, "util"},
     [](const RunRecord& run, Target) { return run.utilization; },
     [](const ordered_json& arm) {
       const auto& part = arm["compute_utilization"];
       return part.is_number() ? fmt::format("{:.0f} %", 100 * part.get<double>()) : "-";
     }},
    {"stall_seconds",
     "stalled",
     {},
     [](const RunRecord& run, Target) { return run.stall_seconds; },
     [](const ordered_json& arm) { return number_cell(arm["stall_seconds"], "{:.2f} s"); }},
    {"seconds_to_target",
     "time to the target loss",
     {8, "target"},
     [](const RunRecord& run, Target target) {
       return target ? first_at(run.curve, *target, &CurvePoint::seconds) : std::nullopt;
     },
     [](const ordered_json& arm) { return number_cell(arm["seconds_to_target"], "{:.1f} s"); }},
    {"outer_gain",
     "gain of outer steps",
     {},
     [](const RunRecord& run, Target) { return run.outer_gain; },
     [](const ordered_json& arm) { return number_cell(arm["outer_gain"], "{:.2f}"); }},
    {"outer_correlation",
     "correlation of outer steps",
     {},
     [](const RunRecord& run, Target) { return run.outer_correlation; },
     [](const ordered_json& arm) { return number_cell(arm["outer_correlation"], "{:.2f}"); }},
};

}  // namespace

std::span<const Column> columns() { return all_columns; }

}  // namespace isthmus::app
