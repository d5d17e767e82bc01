// The report as text for a terminal, and as CSV.

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "compare/report/certificate.h"
#include "compare/report/columns.h"
#include "compare/report/report.h"
#include "compare/statistics/statistics.h"
#include "compare/statistics/words.h"
#include "run/output/lines.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t terminal_columns = 79;

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, columns_of(text)), ' ');
}

/// A sentence, its further lines indented.
std::string sentence(const std::string& text) { return in_lines(text, 2, terminal_columns); }

/// Quotes the text so that a spreadsheet reads it as one text, and never as a formula.
std::string csv_text(const std::string& text) {
  const bool formula =
      !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos;
  std::string out(1, '"');
  if (formula) out.push_back('\'');
  for (const char c : text) {
    if (c == '"') out.push_back('"');
    out.push_back(c);
  }
  out.push_back('"');
  return out;
}

/// Empty if no arm has figures of its outer steps.
std::string outer_steps(const ordered_json& report) {
  std::string text;
  for (const auto& arm : report["arms"]) {
    if (!arm["outer_gain"].is_number() || !arm["outer_correlation"].is_number()) continue;
    text += fmt::format("{} {} gain {:.2f}, correlation {:.2f}", text.empty() ? "outer steps:" : ";",
                        arm["name"].get<std::string>(), arm["outer_gain"].get<double>(),
                        arm["outer_correlation"].get<double>());
  }
  return text;
}

std::string csv_value(const ordered_json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? csv_text(value) : value.dump();
}

std::string certificate_text(const ordered_json& certificate) {
  constexpr std::size_t digits = 16;  // of a hash; report.json has all
  const auto short_hash = [](const ordered_json& hash) {
    return hash.is_string() ? hash.get<std::string>().substr(0, digits) : std::string("unknown");
  };
  const auto inner = [](const std::string& line) { return in_lines("  " + line, 4, terminal_columns); };
  auto text = fmt::format("certificate: {}\n", certificate_summary(certificate));
  for (const auto& gate : certificate["gates"]) {
    const auto c = gate_cells(gate);
    text += sentence(gate["name"].get<std::string>() + ": " + c.verdict);
    auto figures = fmt::format("{} against {}: {} ({:.0f} % interval {}; at most {})",
                               gate["arm"].get<std::string>(), gate["against"].get<std::string>(),
                               c.difference, 100 * confidence, c.interval, c.at_most);
    if (c.bits != "-") figures += fmt::format(", {} bits", c.bits);
    if (c.max_bits != "-") figures += fmt::format(" (at most {})", c.max_bits);
    text += inner(figures + ", seeds " + c.seeds);
  }
  text +=
      sentence(fmt::format("commit {}, protocol {}, numerics {}", certificate["commit"].get<std::string>(),
                           certificate["protocol"].dump(), certificate["numerics"].dump()));
  for (const auto& arm : certificate["arms"]) {
    const auto name = arm["name"].get<std::string>();
    text += sentence(fmt::format("{}: config {}", name, short_hash(arm["config_fingerprint"])));
    for (const auto& run : certificate["runs"])
      if (run["arm"] == name)
        text +=
            inner(fmt::format("seed {}: global hash {}", run["seed"].dump(), short_hash(run["global_hash"])));
  }
  for (const auto& note : certificate["notes"]) text += sentence(note);
  return text;
}

/// Arms have the columns that the figures leave to their names.
std::string arms_in_columns(const ordered_json& report) {
  constexpr std::size_t usual_name = 18, min_name = 4;
  std::vector<std::vector<std::string>> rows(1);
  std::vector<std::size_t> widths;
  for (const auto& column : columns()) {
    if (column.terminal.width == 0) continue;
    rows.front().emplace_back(column.terminal.heading);
    widths.push_back(column.terminal.width);
  }
  for (const auto& arm : report["arms"]) {
    std::vector<std::string> cells;
    for (const auto& column : columns())
      if (column.terminal.width > 0) cells.push_back(column.cell(arm));
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], columns_of(cells[i]));
    rows.push_back(std::move(cells));
  }
  std::size_t figures = 0;
  for (const auto width : widths) figures += 1 + width;
  const auto room = terminal_columns - std::min(terminal_columns, figures);
  const auto name_width = std::max(min_name, std::min(usual_name, room));
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto name = r == 0 ? std::string("arm") : report["arms"][r - 1]["name"].get<std::string>();
    auto line = padded(short_name(name, name_width), name_width);
    for (std::size_t i = 0; i < widths.size(); ++i) line += " " + padded(rows[r][i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

std::string terminal_report(const ordered_json& report) {
  auto text = arms_in_columns(report) + "\n";
  for (const auto& arm : report["arms"])
    text += sentence(arm["name"].get<std::string>() + ": " + arm["verdict"].get<std::string>());
  text += "\n";
  if (report["target_loss"].is_number())
    text +=
        sentence(fmt::format("sent: by a replica; bits: per parameter and step; target: time to a loss of {}",
                             loss_words(report["target_loss"])));
  if (const auto steps = outer_steps(report); !steps.empty()) text += sentence(steps);
  for (const auto& note : report["notes"]) text += sentence(note);
  if (report.contains("certificate")) text += "\n" + certificate_text(report["certificate"]);
  return text;
}

std::string runs_csv(const ordered_json& report) {
  std::vector<std::string_view> keys = {"seed",   "source", "ended",     "final_loss",
                                        "tokens", "steps",  "parameters"};
  for (const auto& column : columns())
    if (column.of_run != nullptr) keys.push_back(column.key);
  std::string text = "arm";
  for (const auto key : keys) text.append(1, ',').append(key);
  text += "\n";
  for (const auto& arm : report["arms"]) {
    for (const auto& run : arm["runs"]) {
      text += csv_text(arm["name"]);
      for (const auto key : keys) text.append(1, ',').append(csv_value(run.at(key)));
      text += "\n";
    }
  }
  return text;
}

std::string curves_csv(const ordered_json& report) {
  std::string text = "arm,seed,tokens,seconds,bytes,loss\n";
  for (const auto& arm : report["arms"]) {
    for (const auto& run : arm["runs"]) {
      for (const auto& p : run["curve"])
        text += fmt::format("{},{},{},{},{},{}\n", csv_text(arm["name"]), csv_value(run["seed"]),
                            csv_value(p["tokens"]), csv_value(p["seconds"]), csv_value(p["bytes"]),
                            csv_value(p["loss"]));
    }
  }
  return text;
}

}  // namespace isthmus::app
