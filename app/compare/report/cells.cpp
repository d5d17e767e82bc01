#include "compare/report/cells.h"

#include <fmt/format.h>

#include "compare/statistics/words.h"
#include "isthmus/base/progress.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

std::string optional_words(const ordered_json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

}  // namespace

ArmCells cells_of(const ordered_json& arm) {
  ArmCells cells;
  const auto& loss = arm["final_loss"];
  cells.loss = loss["mean"].is_number() ? loss_words(loss["mean"]) : "-";
  if (loss["noise"].is_number()) cells.loss += fmt::format(" ± {:.4f}", loss["noise"].get<double>());
  cells.difference = arm.value("baseline", false) ? "baseline" : "-";
  if (const auto& difference = arm["difference"]; difference.is_object()) {
    cells.difference = signed_percent(difference["relative"]);
    if (difference["noise"].is_number())
      cells.difference += " ± " + percent(difference["noise"].get<double>());
  }
  cells.bytes = arm["bytes"].is_number() ? format_bytes(arm["bytes"]) : "-";
  cells.fewer = arm["fewer_bytes"].is_number() ? times(arm["fewer_bytes"]) + " x" : "-";
  cells.bits = optional_words(arm["bits_per_parameter_per_step"], "{:.3f}");
  cells.utilization = arm["compute_utilization"].is_number()
                          ? fmt::format("{:.0f} %", 100 * arm["compute_utilization"].get<double>())
                          : "-";
  cells.stalls = optional_words(arm["stall_seconds"], "{:.2f} s");
  cells.seconds = optional_words(arm["seconds"], "{:.1f} s");
  cells.gain = optional_words(arm["outer_gain"], "{:.2f}");
  cells.correlation = optional_words(arm["outer_correlation"], "{:.2f}");
  cells.target = optional_words(arm["seconds_to_target"], "{:.1f} s");
  return cells;
}

}  // namespace isthmus::app
