// The report as text for a terminal, and as CSV.

#include <fmt/format.h>

#include <algorithm>

#include "compare/report/certificate.h"
#include "compare/report/columns.h"
#include "compare/report/report.h"
#include "compare/statistics/statistics.h"
#include "compare/statistics/words.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t terminal_columns = 79;

/// Width in a terminal, where every code point takes one column.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width > width_of(text) ? width - width_of(text) : 0, ' ');
}

/// Breaks the text at spaces, and indents each further line.
std::string wrapped(const std::string& text, std::size_t width, const std::string& indent) {
  std::string out, line;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    const std::string_view word(text.data() + begin, end - begin);
    if (!line.empty() && width_of(line) + 1 + width_of(word) > width) {
      out.append(line).push_back('\n');
      line.assign(indent).append(word);
    } else {
      if (!line.empty()) line.push_back(' ');
      line += word;
    }
    begin = end + 1;
  }
  return out + line + "\n";
}

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
  const auto inner = [](const std::string& line) {
    return "  " + wrapped(line, terminal_columns - 2, "    ");
  };
  auto text = fmt::format("certificate: {}\n", certificate_summary(certificate));
  for (const auto& gate : certificate["gates"]) {
    const auto c = gate_cells(gate);
    text += wrapped(gate["name"].get<std::string>() + ": " + c.verdict, terminal_columns, "  ");
    auto figures = fmt::format("{} against {}: {} ({:.0f} % interval {}; at most {})",
                               gate["arm"].get<std::string>(), gate["against"].get<std::string>(),
                               c.difference, 100 * confidence, c.interval, c.at_most);
    if (c.bits != "-") figures += fmt::format(", {} bits", c.bits);
    if (c.max_bits != "-") figures += fmt::format(" (at most {})", c.max_bits);
    text += inner(figures + ", seeds " + c.seeds);
  }
  text += wrapped(fmt::format("commit {}, protocol {}, numerics {}", certificate["commit"].get<std::string>(),
                              certificate["protocol"].dump(), certificate["numerics"].dump()),
                  terminal_columns, "  ");
  for (const auto& arm : certificate["arms"]) {
    const auto name = arm["name"].get<std::string>();
    text += wrapped(fmt::format("{}: config {}", name, short_hash(arm["config_fingerprint"])),
                    terminal_columns, "  ");
    for (const auto& run : certificate["runs"])
      if (run["arm"] == name)
        text +=
            inner(fmt::format("seed {}: global hash {}", run["seed"].dump(), short_hash(run["global_hash"])));
  }
  for (const auto& note : certificate["notes"]) text += wrapped(note, terminal_columns, "  ");
  return text;
}

}  // namespace

std::string terminal_report(const ordered_json& report) {
  std::string text;
  const auto row = [&](const std::string& name, const auto& cell_of) {
    auto line = padded(name.substr(0, 18), 18);
    for (const auto& column : columns())
      if (column.terminal.width > 0) line += " " + padded(cell_of(column), column.terminal.width);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  row("arm", [](const Column& column) { return std::string(column.terminal.heading); });
  for (const auto& arm : report["arms"])
    row(arm["name"], [&](const Column& column) { return column.cell(arm); });
  text += "\n";
  for (const auto& arm : report["arms"])
    text += wrapped(arm["name"].get<std::string>() + ": " + arm["verdict"].get<std::string>(),
                    terminal_columns, "  ");
  text += "\n";
  if (report["target_loss"].is_number())
    text +=
        wrapped(fmt::format("sent: by a replica; bits: per parameter and step; target: time to a loss of {}",
                            loss_words(report["target_loss"])),
                terminal_columns, "  ");
  if (const auto steps = outer_steps(report); !steps.empty()) text += wrapped(steps, terminal_columns, "  ");
  for (const auto& note : report["notes"]) text += wrapped(note, terminal_columns, "  ");
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
