#include "compare/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "compare/report/assets.h"
#include "compare/report/certificate.h"
#include "compare/report/columns.h"
#include "compare/statistics/statistics.h"
#include "compare/statistics/words.h"
#include "isthmus/base/progress.h"
#include "run/output/chart_js.h"

namespace isthmus::app {

using nlohmann::ordered_json;

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

namespace {

/// JSON for a script element. `<` is escaped, so that no text in it can end the element.
std::string script_json(const ordered_json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string html_of(const ordered_json& value) { return html_text(value.get<std::string>()); }

/// The arm's colour, with the same number as in the charts; the baseline has its own.
std::string swatch(const ordered_json& report, std::size_t arm) {
  if (report["arms"][arm]["baseline"].get<bool>()) return R"(<i class="swatch base"></i>)";
  return fmt::format(R"(<i class="swatch c{}"></i>)", arm % 8);
}

/// The first cell of a row is its heading.
std::string row(const std::vector<std::string>& cells, bool head = false) {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (head) {
      out += R"(<th scope="col">)" + cells[i] + "</th>";
    } else if (i == 0) {
      out += R"(<th scope="row">)" + cells[i] + "</th>";
    } else {
      out += "<td>" + cells[i] + "</td>";
    }
  }
  return out + "</tr>\n";
}

std::string table(const std::string& id, const std::string& caption, const std::vector<std::string>& head,
                  const std::string& rows) {
  return fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{0}-caption\"><table "
      "id=\"{0}\"><caption "
      "id=\"{0}-caption\">{1}</caption>\n<thead>{2}</thead>\n<tbody>{3}</tbody></table></div>\n",
      id, caption, row(head, true), rows);
}

std::string arms_table(const ordered_json& report) {
  std::vector<std::string> head = {"arm"};
  for (const auto& column : columns()) head.emplace_back(column.heading);
  std::string rows;
  for (std::size_t i = 0; i < report["arms"].size(); ++i) {
    const auto& arm = report["arms"][i];
    std::vector<std::string> cells = {swatch(report, i) + html_of(arm["name"])};
    for (const auto& column : columns()) cells.push_back(column.cell(arm));
    rows += row(cells);
  }
  auto caption =
      fmt::format("Final loss in nats per token, with {:.0f} % intervals over seeds; means of the seeds",
                  100 * report["confidence"].get<double>());
  if (report["target_loss"].is_number())
    caption += fmt::format("; the target is a loss of {}", loss_words(report["target_loss"]));
  return table("arms", caption, head, rows);
}

std::string runs_table(const ordered_json& report) {
  std::string rows;
  for (const auto& arm : report["arms"]) {
    for (const auto& run : arm["runs"]) {
      const auto number = [&](const char* key, const char* format) {
        return run[key].is_number() ? fmt::format(fmt::runtime(format), run[key].get<double>()) : "-";
      };
      rows += row({html_of(arm["name"]), run["seed"].is_number() ? run["seed"].dump() : "-",
                   number("final_loss", "{:.4f}"), format_count(run["tokens"]), number("steps", "{:.0f}"),
                   run["bytes"].is_number() ? format_bytes(run["bytes"]) : "-", number("seconds", "{:.1f} s"),
                   html_of(run["ended"]), html_of(run["source"])});
    }
  }
  return table("runs", "Every run",
               {"arm", "seed", "final loss", "tokens", "steps", "sent", "time", "ended early", "where"},
               rows);
}

std::string differences_table(const ordered_json& report) {
  const auto& differences = report["differences"];
  if (differences.empty()) return "<p>The arms' configs are equal.</p>\n";
  std::vector<std::string> head = {"key"};
  for (const auto& arm : report["arms"]) head.push_back(html_of(arm["name"]));
  std::string rows;
  for (const auto& [key, values] : differences.items()) {
    std::vector<std::string> cells = {"<code>" + html_text(key) + "</code>"};
    for (const auto& arm : report["arms"]) {
      const auto value = values.find(arm["name"].get<std::string>());
      cells.push_back(value == values.end() ? "-" : html_of(*value));
    }
    rows += row(cells);
  }
  return table("differences", "Settings in which the arms differ", head, rows);
}

/// The figures of the charts, thinned out; curves.csv has all of them.
std::string points_table(const ordered_json& report) {
  constexpr std::size_t most = 12;
  std::string rows;
  for (const auto& arm : report["arms"]) {
    const auto& band = arm["band"];
    const auto every = std::max<std::size_t>(1, (band.size() + most - 1) / most);
    for (std::size_t i = 0; i < band.size(); ++i) {
      if (i % every != 0 && i + 1 != band.size()) continue;
      const auto& p = band[i];
      rows += row({html_of(arm["name"]), format_count(p["tokens"]), loss_words(p["loss"]),
                   loss_words(p["low"]), loss_words(p["high"]),
                   p["seconds"].is_number() ? fmt::format("{:.1f} s", p["seconds"].get<double>()) : "-",
                   p["bytes"].is_number() ? format_bytes(p["bytes"]) : "-"});
    }
  }
  return table("points", "Loss during training (curves.csv has every point of every run)",
               {"arm", "tokens", "mean loss", "lowest seed", "highest seed", "time", "sent by a replica"},
               rows);
}

std::string gates_table(const ordered_json& certificate) {
  std::string rows;
  for (const auto& gate : certificate["gates"]) {
    const auto c = gate_cells(gate);
    rows += row({html_of(gate["name"]), html_of(gate["arm"]), html_of(gate["against"]), c.difference,
                 c.interval, c.at_most, c.bits, c.max_bits, c.seeds, html_text(c.verdict)});
  }
  return table(
      "gates",
      fmt::format("Differences of final losses at equal seeds, with {:.0f} % intervals", 100 * confidence),
      {"gate", "arm", "against", "difference", "interval", "at most", "bits per parameter and step",
       "at most", "seeds", "verdict"},
      rows);
}

std::string certified_runs_table(const ordered_json& certificate) {
  std::string rows;
  const auto known = [](const ordered_json& value) {
    return value.is_string() ? "<code>" + html_of(value) + "</code>" : std::string("unknown");
  };
  for (const auto& arm : certificate["arms"]) {
    for (const auto& run : certificate["runs"]) {
      if (run["arm"] == arm["name"])
        rows += row({html_of(arm["name"]), run["seed"].dump(), known(arm["config_fingerprint"]),
                     known(run["commit"]), known(run["global_hash"])});
    }
  }
  return table("certified", "Runs behind the verdicts",
               {"arm", "seed", "fingerprint of the config", "trained by commit", "global hash"}, rows);
}

std::string certificate(const ordered_json& report) {
  const auto found = report.find("certificate");
  if (found == report.end()) return {};
  const auto& json = *found;
  auto out = fmt::format(
      "<h2>Certificate: {}</h2>\n<p class=\"what\">Commit <code>{}</code>, protocol {}, numerics {}.",
      certificate_summary(json), html_of(json["commit"]), json["protocol"].dump(), json["numerics"].dump());
  for (const auto& note : json["notes"]) out += " " + html_of(note);
  return out + "</p>\n" + gates_table(json) + certified_runs_table(json);
}

std::string verdicts(const ordered_json& report) {
  std::string out = "<ul class=\"verdicts\">\n";
  for (std::size_t i = 0; i < report["arms"].size(); ++i) {
    const auto& arm = report["arms"][i];
    out += "<li>" + swatch(report, i) + "<div><b>" + html_of(arm["name"]) + "</b>: <span class=\"verdict\">" +
           html_of(arm["verdict"]) + "</span>";
    if (const auto about = html_of(arm["about"]); !about.empty()) out += "<br><small>" + about + "</small>";
    for (const auto& fault : arm["faults"]) out += "<br><small>fault: " + html_of(fault) + "</small>";
    out += "</div></li>\n";
  }
  return out + "</ul>\n";
}

/// A chart, and its final figures in words for a screen reader.
std::string figure(const char* id, const std::string& title, const std::string& words) {
  return fmt::format(
      "<figure><figcaption id=\"{0}-title\">{1}</figcaption><div class=\"chart\"><canvas id=\"{0}\" "
      "role=\"img\" aria-labelledby=\"{0}-title\" aria-describedby=\"{0}-text\"></canvas></div>"
      "<p class=\"unseen\" id=\"{0}-text\">{2}</p></figure>\n",
      id, title, words);
}

/// "At the end: data_parallel 2.1234 after 10.2k tokens; four_bits ...": where the arms' curves end.
std::string ends_of_curves(const ordered_json& report, const char* axis, std::string (*words)(double)) {
  std::string out;
  for (const auto& arm : report["arms"]) {
    if (arm["band"].empty() || !arm["band"].back()[axis].is_number()) continue;
    const auto& last = arm["band"].back();
    out += fmt::format("{} {} {} after {}", out.empty() ? "At the end:" : ";", html_of(arm["name"]),
                       loss_words(last["loss"]), words(last[axis]));
  }
  return out.empty() ? "No arm has such a curve." : out + ".";
}

std::string differences_in_words(const ordered_json& report) {
  const auto column = std::ranges::find(columns(), std::string_view("difference"), &Column::key);
  std::string out;
  for (const auto& arm : report["arms"]) {
    if (arm["difference"].is_object())
      out += (out.empty() ? "" : "; ") + html_of(arm["name"]) + " " + column->cell(arm);
  }
  return out.empty() ? "No arm has a difference." : out + ".";
}

/// A box for each arm that shows or hides its curves.
std::string arm_boxes(const ordered_json& report) {
  std::string out = "<fieldset><legend>Curves:</legend>";
  for (std::size_t i = 0; i < report["arms"].size(); ++i)
    out += fmt::format(R"(<label><input type="checkbox" name="arm" value="{}" checked> {}{}</label>)", i,
                       swatch(report, i), html_of(report["arms"][i]["name"]));
  return out + "</fieldset>";
}

std::string charts(const ordered_json& report) {
  std::string out = "<h2>Charts</h2>\n<div class=\"charts\">\n";
  out += figure("by-tokens", "Loss against tokens",
                ends_of_curves(report, "tokens", [](double n) { return format_count(n) + " tokens"; }));
  out += figure("by-seconds", "Loss against training time, evaluations not counted",
                ends_of_curves(report, "seconds", [](double s) { return fmt::format("{:.1f} s", s); }));
  out += figure("by-bytes", "Loss against bytes sent by a replica",
                ends_of_curves(report, "bytes", [](double bytes) { return format_bytes(bytes); }));
  out += figure("by-arm", "Difference from " + html_of(report["baseline"]) + ", with its interval",
                differences_in_words(report));
  return out + "</div>\n<div class=\"controls\">" + arm_boxes(report) +
         "<label><input type=\"checkbox\" id=\"whole\"> whole curves, from the first evaluation on</label> "
         "<span>Bands reach from the lowest seed to the highest.</span></div>\n<noscript><p>The charts need "
         "JavaScript; the tables have "
         "their figures.</p></noscript>\n";
}

std::string heading(const ordered_json& report) {
  auto title = html_of(report["name"]);
  if (const auto size = html_of(report["size"]); !size.empty()) title += " (" + size + ")";
  return title;
}

std::string what_it_is(const ordered_json& report) {
  const auto base = html_of(report["base"]);
  std::string seeds;  // none if all arms are curves
  for (const auto& seed : report["seeds"]) seeds += (seeds.empty() ? "; seeds " : ", ") + seed.dump();
  std::string budget;
  if (const double tokens = report["budget"]["tokens"]; tokens > 0)
    budget = "; " + format_count(tokens) + " tokens for each run";
  if (const double seconds = report["budget"]["seconds"]; seconds > 0)
    budget = "; " + format_duration(seconds) + " of training for each run";
  return fmt::format("<p class=\"what\">{} arms{}{}{}; compared with <b>{}</b>.</p>\n", report["arms"].size(),
                     base.empty() ? "" : fmt::format(" over <code>{}</code>", base), seeds, budget,
                     html_of(report["baseline"]));
}

}  // namespace

std::string report_page(const ordered_json& report) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  page += "<title>" + heading(report) + ": a comparison of convergence</title>\n<style>\n";
  page += assets::page_css();
  page += "</style>\n</head>\n<body>\n<main>\n<h1>" + heading(report) + "</h1>\n" + what_it_is(report);
  page += certificate(report);
  page +=
      "<h2>Verdict</h2>\n" + verdicts(report) + charts(report) + "<h2>Figures</h2>\n" + arms_table(report);
  page += "<h2>Differences in settings</h2>\n" + differences_table(report);
  page += "<h2>Notes</h2>\n<ul class=\"notes\">\n";
  for (const auto& note : report["notes"]) page += "<li>" + html_of(note) + "</li>\n";
  page += "</ul>\n<h2>Runs</h2>\n" + runs_table(report);
  page += "<details><summary>Chart data as a table</summary>\n" + points_table(report) + "</details>\n";
  page += "</main>\n<script type=\"application/json\" id=\"report\">" + script_json(report) + "</script>\n";
  page += "<script>\n";
  page += assets::chart_js();
  page += "</script>\n<script>\n";
  page += assets::page_js();
  page += "</script>\n</body>\n</html>\n";
  return page;
}

}  // namespace isthmus::app
