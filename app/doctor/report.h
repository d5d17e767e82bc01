#pragma once
// What `isthmus doctor` has found, on one machine and on all: as JSON, which travels between them, and as a
// table.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/outer_sync/net/coordinator/preflight.h"
#include "run/json_output.h"

namespace isthmus::app {

enum class Level : std::uint8_t { ok, warn, fail };

struct Finding {
  std::string check;  ///< its row in the table: one word
  Level level = Level::ok;
  std::string says{};  ///< what was seen, with values
  std::string todo{};  ///< what to do about it; empty where all is well
};

/// Of one machine.
struct MachineReport {
  std::string name;
  std::vector<Finding> findings{};
  /// What must be equal on all; empty where it could not be found out.
  std::string build{}, versions{}, model{}, tokenizer{}, corpus{}, authority{};
  config::SharedItems config{};

  /// Over what has been found for this check before, where that is no worse.
  void add(Finding finding);
  [[nodiscard]] bool failed(const std::string& check) const;
};

[[nodiscard]] nlohmann::ordered_json to_json(const MachineReport& report);
/// Of another machine: throws Error(network) for what is no report. Texts are cut to lines of bounded length.
[[nodiscard]] MachineReport machine_report(const std::string& json);

/// Of the whole run.
struct Diagnosis {
  std::vector<MachineReport> machines{};
  std::vector<outer_sync::PathTest> paths{};
  std::vector<Finding> between{};  ///< findings about paths, by "A -> B"
  [[nodiscard]] int count(Level level) const;
};
[[nodiscard]] nlohmann::ordered_json to_json(const Diagnosis& diagnosis);
/// Throws Error(network).
[[nodiscard]] Diagnosis diagnosis_of(const std::string& json);

/// As `isthmus doctor` ends: 0 when nothing is red; else 2, 3 or 4 by what the first red cell is about, as
/// with Error.
[[nodiscard]] int exit_status_of(const Diagnosis& diagnosis);

/// 80 columns: a cell for each check and machine, a line for each path, and what to do about what is not
/// well. `colours` of a terminal besides the words.
[[nodiscard]] std::string table_of(const Diagnosis& diagnosis, bool colours);
/// The document where that is wanted, else the table.
void print(const Diagnosis& diagnosis, JsonOutput& output);

}  // namespace isthmus::app
