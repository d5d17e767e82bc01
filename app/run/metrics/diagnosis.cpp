#include "run/metrics/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "isthmus/base/progress.h"
#include "isthmus/base/text.h"
#include "run/output/lines.h"
#include "run/output/terminal.h"

namespace isthmus::app {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t width = 80;
constexpr std::size_t check_width = 14;
constexpr std::size_t cell_width = 13;
constexpr std::size_t machines_a_row = (width - check_width) / cell_width;
constexpr std::size_t longest_text = 500;
constexpr std::size_t max_entries = 4096;
constexpr std::array<const char*, 3> words = {"ok", "warn", "FAIL"};
constexpr std::array<const char*, 3> colour_codes = {"\033[32m", "\033[33m", "\033[1;31m"};

const char* word_of(Level level) { return words.at(static_cast<std::size_t>(level)); }

Level level_of(const std::string& word) {
  const auto at = std::ranges::find_if(words, [&](const char* one) { return word == one; });
  if (at == words.end())
    throw Error(ErrorKind::network, "a doctor's report has an unknown level '" + word + "'");
  return static_cast<Level>(at - words.begin());
}

std::string text_at(const Json& json, const char* key) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_string())
    throw Error(ErrorKind::network, std::string("a doctor's report has no text '") + key + "'");
  return printable(at->get<std::string>(), longest_text);
}

double number_or_zero(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_number() ? at->get<double>() : 0;
}

template <class Read>
void each(const Json& json, const char* key, Read read) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_array() || at->size() > max_entries)
    throw Error(ErrorKind::network, std::string("a doctor's report has no list '") + key + "'");
  for (const auto& one : *at) {
    if (!one.is_object())
      throw Error(ErrorKind::network,
                  std::string("in a doctor's report, an entry of '") + key + "' is not a JSON object");
    read(one);
  }
}

Json json_of(const Finding& finding) {
  return {{"check", finding.check},
          {"level", word_of(finding.level)},
          {"says", finding.says},
          {"todo", finding.todo}};
}
Finding finding_of(const Json& json) {
  return {.check = text_at(json, "check"),
          .level = level_of(text_at(json, "level")),
          .says = text_at(json, "says"),
          .todo = text_at(json, "todo")};
}

Json parse(const std::string& text) {
  auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw Error(ErrorKind::network, "a doctor's report is not a JSON object");
  return json;
}

MachineReport machine_of(const Json& json) {
  MachineReport report{.name = text_at(json, "name")};
  each(json, "checks", [&](const Json& one) { report.findings.push_back(finding_of(one)); });
  for (const auto& [key, value] : {std::pair("build", &report.build),
                                   {"versions", &report.versions},
                                   {"model", &report.model},
                                   {"tokenizer", &report.tokenizer},
                                   {"corpus", &report.corpus},
                                   {"authority", &report.authority}})
    *value = text_at(json, key);
  each(json, "config",
       [&](const Json& one) { report.config.emplace_back(text_at(one, "key"), text_at(one, "value")); });
  return report;
}

// ---- the table ----

std::string coloured(const std::string& text, Level level, bool colours) {
  return colours ? colour_codes.at(static_cast<std::size_t>(level)) + text + "\033[0m" : text;
}

/// "FROM -> TO" in at most `most` columns: a long name leaves the other one at least half of them.
std::string way_of(const std::string& from, const std::string& to, std::size_t most) {
  const auto room = most - 4;
  const auto own = std::max(room / 2, room - std::min(room, to.size()));
  const auto begin = short_name(from, own);
  return begin + " -> " + short_name(to, room - begin.size());
}

std::vector<std::string> checks_of(const std::vector<MachineReport>& machines) {
  std::vector<std::string> checks;
  for (const auto& machine : machines) {
    for (const auto& finding : machine.findings) {
      if (std::ranges::find(checks, finding.check) == checks.end()) checks.push_back(finding.check);
    }
  }
  return checks;
}

/// The worst level of the machine's findings for this check; nullopt without findings.
std::optional<Level> cell_of(const MachineReport& machine, const std::string& check) {
  std::optional<Level> worst;
  for (const auto& finding : machine.findings) {
    if (finding.check == check) worst = std::max(worst.value_or(Level::ok), finding.level);
  }
  return worst;
}

/// Ends the line without the padding of its last column.
void end_line(std::string& out) {
  out.resize(out.find_last_not_of(' ') + 1);
  out += "\n";
}

std::string cells_of(const std::vector<MachineReport>& machines, bool colours) {
  std::string out;
  const auto checks = checks_of(machines);
  for (std::size_t first = 0; first < machines.size(); first += machines_a_row) {
    const auto last = std::min(first + machines_a_row, machines.size());
    out += fmt::format("{:<{}}", "", check_width);
    for (auto m = first; m < last; ++m)
      out += fmt::format("{:<{}}", short_name(machines[m].name, cell_width - 1), cell_width);
    end_line(out);
    for (const auto& check : checks) {
      out += fmt::format("{:<{}}", short_name(check, check_width - 1), check_width);
      for (auto m = first; m < last; ++m) {
        const auto level = cell_of(machines[m], check);
        const auto text = fmt::format("{:<{}}", level ? word_of(*level) : "-", cell_width);
        out += level ? coloured(text, *level, colours) : text;
      }
      end_line(out);
    }
    out += "\n";
  }
  return out;
}

std::string rate_of(double bytes_per_second) {
  if (bytes_per_second <= 0) return "-";
  return format_rate(8 * bytes_per_second);
}

std::string paths_of(const Diagnosis& diagnosis, bool colours) {
  if (diagnosis.paths.empty()) return {};
  std::string out = fmt::format("{:<34}{:<6}{:>14}{:>18}\n", "connection", "", "round trip", "sends");
  for (const auto& path : diagnosis.paths) {
    const auto name = path.from + " -> " + path.to;
    auto level = Level::ok;
    for (const auto& finding : diagnosis.between) {
      if (finding.check == name) level = std::max(level, finding.level);
    }
    const bool dialled = path.problem.empty() && !path.address.empty();
    out += fmt::format("{:<34}{}{:>14}{:>18}\n", way_of(path.from, path.to, 33),
                       coloured(fmt::format("{:<6}", word_of(level)), level, colours),
                       dialled ? fmt::format("{:.1f} ms", path.round_trip_ms) : "-",
                       rate_of(path.bytes_per_second));
    if (path.back_bytes_per_second > 0)
      out +=
          fmt::format("{:<34}{:<6}{:>14}{:>18}\n", "  and back", "", "", rate_of(path.back_bytes_per_second));
  }
  return out + "\n";
}

void tell(std::string& out, const std::string& where, const Finding& finding, bool colours) {
  if (finding.level == Level::ok) return;
  // Wrap first: colour codes have no width.
  constexpr std::size_t indent = 5;
  const auto text =
      in_lines(fmt::format("{} {}: {}", word_of(finding.level), where, finding.says), indent, width);
  const std::string word = word_of(finding.level);
  out += coloured(word, finding.level, colours) + text.substr(word.size());
  if (!finding.todo.empty()) out += in_lines(std::string(indent, ' ') + finding.todo, indent, width);
}

}  // namespace

void MachineReport::add(Finding finding) { findings.push_back(std::move(finding)); }

bool MachineReport::failed(const std::string& check) const { return cell_of(*this, check) == Level::fail; }

Json to_json(const MachineReport& report) {
  Json json = {
      {"name", report.name},           {"build", report.build},         {"versions", report.versions},
      {"model", report.model},         {"tokenizer", report.tokenizer}, {"corpus", report.corpus},
      {"authority", report.authority}, {"checks", Json::array()},       {"config", Json::array()}};
  for (const auto& finding : report.findings) json["checks"].push_back(json_of(finding));
  for (const auto& [key, value] : report.config) json["config"].push_back({{"key", key}, {"value", value}});
  return json;
}

MachineReport machine_report(const std::string& json) { return machine_of(parse(json)); }

int Diagnosis::count(Level level) const {
  const auto is = [&](const Finding& finding) { return finding.level == level; };
  auto n = std::ranges::count_if(between, is);
  for (const auto& machine : machines) n += std::ranges::count_if(machine.findings, is);
  return static_cast<int>(n);
}

Json to_json(const Diagnosis& diagnosis) {
  Json json = {{"failures", diagnosis.count(Level::fail)}, {"warnings", diagnosis.count(Level::warn)}};
  json["machines"] = Json::array();
  for (const auto& machine : diagnosis.machines) {
    auto one = to_json(machine);
    one["config"] = Json::array();  // compared already
    json["machines"].push_back(std::move(one));
  }
  json["paths"] = Json::array();
  for (const auto& path : diagnosis.paths) {
    json["paths"].push_back({{"from", path.from},
                             {"to", path.to},
                             {"address", path.address},
                             {"problem", path.problem},
                             {"round_trip_ms", path.round_trip_ms},
                             {"bytes_per_second", path.bytes_per_second},
                             {"back_bytes_per_second", path.back_bytes_per_second}});
  }
  json["between"] = Json::array();
  for (const auto& finding : diagnosis.between) json["between"].push_back(json_of(finding));
  return json;
}

Diagnosis diagnosis_of(const std::string& text) {
  const auto json = parse(text);
  Diagnosis diagnosis;
  each(json, "machines", [&](const Json& one) { diagnosis.machines.push_back(machine_of(one)); });
  each(json, "paths", [&](const Json& one) {
    diagnosis.paths.push_back({.from = text_at(one, "from"),
                               .to = text_at(one, "to"),
                               .address = text_at(one, "address"),
                               .problem = text_at(one, "problem"),
                               .round_trip_ms = number_or_zero(one, "round_trip_ms"),
                               .bytes_per_second = number_or_zero(one, "bytes_per_second"),
                               .back_bytes_per_second = number_or_zero(one, "back_bytes_per_second")});
  });
  each(json, "between", [&](const Json& one) { diagnosis.between.push_back(finding_of(one)); });
  return diagnosis;
}

int exit_status_of(const Diagnosis& diagnosis) {
  const auto has = [&](std::initializer_list<const char*> checks) {
    return std::ranges::any_of(diagnosis.machines, [&](const MachineReport& machine) {
      return std::ranges::any_of(checks, [&](const char* check) { return machine.failed(check); });
    });
  };
  if (diagnosis.count(Level::fail) == 0) return 0;
  if (has({"config", "build"})) return exit_status(ErrorKind::config);
  if (has({"data", "disk", "memory", "device", "certificates"})) return exit_status(ErrorKind::data);
  return exit_status(ErrorKind::network);
}

std::string table_of(const Diagnosis& diagnosis, bool colours) {
  auto out = cells_of(diagnosis.machines, colours) + paths_of(diagnosis, colours);
  for (const auto& machine : diagnosis.machines) {
    for (const auto& finding : machine.findings)
      tell(out, machine.name + ", " + finding.check, finding, colours);
  }
  for (const auto& finding : diagnosis.between) tell(out, finding.check, finding, colours);
  const int failures = diagnosis.count(Level::fail), warnings = diagnosis.count(Level::warn);
  if (failures == 0 && warnings == 0) return out + coloured("all is well", Level::ok, colours) + "\n";
  const auto level = failures > 0 ? Level::fail : Level::warn;
  return out + coloured(fmt::format("failures: {}, warnings: {}", failures, warnings), level, colours) + "\n";
}

void print(const Diagnosis& diagnosis, JsonOutput& output) {
  output.print(to_json(diagnosis));
  if (!output.wanted()) fmt::print("{}", table_of(diagnosis, wants_colours(stdout)));
}

}  // namespace isthmus::app
