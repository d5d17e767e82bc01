#pragma once
// Findings of `isthmus doctor`, on one machine and on all: as JSON, which the doctors send each other, and as
// a table.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/coordinator/preflight.h"
#include "run/output/json_output.h"

namespace isthmus::app {

enum class Level : std::uint8_t { ok, warn, fail };

struct Finding {
  std::string check;  ///< its row in the table: one word
  Level level = Level::ok;
  std::string says{};  ///< what was found, with values
  std::string todo{};  ///< remedy; empty if all is well
};

/// Findings on one machine.
struct MachineReport {
  std::string name;
  std::vector<Finding> findings{};
  /// Must be equal on all machines; empty if unknown.
  std::string build{}, versions{}, model{}, tokenizer{}, corpus{}, authority{};
  config::SharedItems config{};

  /// The table shows the worst of several findings for one check.
  void add(Finding finding);
  [[nodiscard]] bool failed(const std::string& check) const;
};

[[nodiscard]] nlohmann::ordered_json to_json(const MachineReport& report);
/// Parses another machine's report. Throws Error(network) if it is invalid. Texts are cut and made printable.
[[nodiscard]] MachineReport machine_report(const std::string& json);

/// Findings on the whole run.
struct Diagnosis {
  std::vector<MachineReport> machines{};
  std::vector<outer_sync::PathTest> paths{};
  std::vector<Finding> between{};  ///< findings about paths, by "A -> B"
  [[nodiscard]] int count(Level level) const;
};
[[nodiscard]] nlohmann::ordered_json to_json(const Diagnosis& diagnosis);
/// Parses a diagnosis. Throws Error(network) if it is invalid.
[[nodiscard]] Diagnosis diagnosis_of(const std::string& json);

/// Exit status of `isthmus doctor`: 0 if no check failed, otherwise that of Error by the checks that failed:
/// 2 config or build, 3 something on a machine, 4 the rest.
[[nodiscard]] int exit_status_of(const Diagnosis& diagnosis);

/// Table of 80 columns: a cell for each check and machine, a line for each path, and a remedy for each
/// problem. `colours`: for a terminal; the words stay the same.
[[nodiscard]] std::string table_of(const Diagnosis& diagnosis, bool colours);
/// Prints the JSON document if one is wanted, otherwise the table.
void print(const Diagnosis& diagnosis, JsonOutput& output);

}  // namespace isthmus::app
