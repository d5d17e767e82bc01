#include "compare/arms/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "compare/arms/comparison.h"
#include "isthmus/base/error.h"

namespace isthmus::app {

using config::Scope;
using config::Source;

namespace {

constexpr std::string_view prefix = "gates.";
constexpr std::size_t max_gates = 64;

/// A gate as written in the file.
struct GateKeys {
  std::string name, arm, against;
  double at_most = 1, bits = 0;

  void serialize(config::Archive& ar) {
    ar({"arm", &arm, Scope::agreed, "arm to judge"});
    ar({"against", &against, Scope::agreed, "arm to which it is compared; empty: the baseline"});
    ar({"at_most", &at_most, Scope::agreed, "percent by which its loss may be above the other arm's", 0,
        100});
    ar({"bits", &bits, Scope::agreed,
        "maximum payload bits that a replica may send per parameter and step; 0: no limit", 0, 1e6});
  }
};

/// A gate with its keys under their full names, which messages then show.
struct FullKeys {
  GateKeys& gate;
  void serialize(config::Archive& ar) { ar.section(std::string(prefix) + gate.name, gate); }
};

/// The gates as written in the file; `own` gets their entries.
std::vector<GateKeys> read_keys(std::vector<Source::Entry> section, Source& own) {
  std::vector<GateKeys> gates;
  for (auto& entry : section) {
    const auto dot = entry.key.find('.', prefix.size());
    const auto name = entry.key.substr(prefix.size(), dot - prefix.size());
    if (dot == std::string::npos)
      config_error(
          fmt::format("{}: the gate {} is a plain value; expected a section like {{arm: two, "
                      "against: data_parallel, at_most: 1}}",
                      entry.place, name));
    if (std::ranges::find(gates, name, &GateKeys::name) == gates.end()) {
      if (gates.size() == max_gates)
        config_error(fmt::format("{}: more than {} gates", entry.place, max_gates));
      gates.push_back({.name = name, .arm = {}, .against = {}});
    }
    own.put(std::move(entry));
  }
  config::Reader reader(own);
  for (auto& gate : gates) FullKeys{gate}.serialize(reader);
  reader.finish();
  return gates;
}

/// The place of a key of the gate, or of the gate's first key if this one was left out.
std::string place_of(const Source& own, const GateKeys& gate, const std::string& key) {
  const auto section = std::string(prefix) + gate.name + ".";
  if (const auto* entry = own.find(section + key)) return entry->place;
  const auto first = std::ranges::find_if(
      own.entries(), [&](const Source::Entry& entry) { return entry.key.starts_with(section); });
  return first->place;
}

/// Index of the arm that this key names.
std::size_t arm_of(const Comparison& comparison, const Source& own, const GateKeys& gate,
                   const std::string& key, const std::string& value) {
  const auto what = fmt::format("{}: {}{}.{}", place_of(own, gate, key), prefix, gate.name, key);
  if (value.empty()) config_error(what + " is empty; expected the name of the arm to judge");
  const auto arm = arm_named(value, what, comparison.arms);
  if (!comparison.arms[arm].curves.empty())
    config_error(
        fmt::format("{} is {}, which is a curve; expected an arm with runs, because gates pair runs by seed",
                    what, value));
  return arm;
}

double tokens_of(const RunPlan& run) {
  return static_cast<double>(run.experiment.run.steps) * tokens_per_step(run.experiment);
}

void check_one_config(const Comparison& comparison, std::size_t arm) {
  const RunPlan* first = nullptr;
  for (const auto& run : comparison.runs) {
    if (run.arm != arm) continue;
    if (first == nullptr) first = &run;
    if (config_fingerprint(run) != config_fingerprint(*first))
      config_error(
          fmt::format("{} and {} of the arm {} have different configs; with gates, expected runs that differ "
                      "only in their seed (`isthmus config A --diff B` shows the keys)",
                      first->folder().string(), run.folder().string(), comparison.arms[arm].name));
  }
}

void check_equal_tokens(const Comparison& comparison, const Gate& gate) {
  constexpr double rounding = 0.01;  // of budget.tokens to whole steps
  const auto tokens = [&](std::size_t arm) {
    return tokens_of(*std::ranges::find(comparison.runs, arm, &RunPlan::arm));
  };
  const double arm = tokens(gate.arm), against = tokens(gate.against);
  if (std::abs(arm - against) <= rounding * against) return;
  config_error(fmt::format(
      "gate {}: {} is trained on {:.0f} tokens and {} on {:.0f}; expected equal numbers: change "
      "replicas, inner.batch or run.steps of one of them",
      gate.name, comparison.arms[gate.arm].name, arm, comparison.arms[gate.against].name, against));
}

}  // namespace

std::vector<Gate> read_gates(std::vector<Source::Entry> section, const Comparison& comparison) {
  Source own;
  std::vector<Gate> gates;
  for (const auto& gate : read_keys(std::move(section), own)) {
    const auto arm = arm_of(comparison, own, gate, "arm", gate.arm);
    const auto& other_arm = gate.against.empty() ? comparison.arms[comparison.baseline].name : gate.against;
    const auto against = arm_of(comparison, own, gate, "against", other_arm);
    const auto place = place_of(own, gate, "arm");
    if (arm == against)
      config_error(fmt::format("{}: the gate {} compares {} with itself; expected two arms", place, gate.name,
                               gate.arm));
    for (const auto& other : gates) {
      if (other.arm == arm && other.against == against)
        config_error(fmt::format("{}: the gates {} and {} both judge {} against {}; expected one of them",
                                 place, other.name, gate.name, gate.arm, other_arm));
    }
    gates.push_back({.name = gate.name,
                     .arm = arm,
                     .against = against,
                     .at_most = gate.at_most / 100,
                     .bits = gate.bits > 0 ? std::optional(gate.bits) : std::nullopt});
  }
  return gates;
}

void check_gates(const Comparison& comparison) {
  if (comparison.gates.empty()) return;
  for (std::size_t i = 0; i < comparison.arms.size(); ++i) check_one_config(comparison, i);
  for (const auto& gate : comparison.gates) check_equal_tokens(comparison, gate);
}

}  // namespace isthmus::app
