#pragma once
// Gates of a comparison: how far an arm's final loss may be above another arm's, and how much the arm may
// send.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/base/config.h"

namespace isthmus::app {

struct Comparison;

/// One entry of `gates`.
struct Gate {
  std::string name;
  std::size_t arm = 0, against = 0;  ///< indices of arms
  double at_most = 0;                ///< fraction of the other arm's loss by which the arm may be worse
  std::optional<double> bits;        ///< maximum payload bits per parameter and step
};

/// Reads the entries of the section `gates`. `comparison` must already have its arms and its baseline. Throws
/// Error(config) with place, value and what was expected.
[[nodiscard]] std::vector<Gate> read_gates(std::vector<config::Source::Entry> section,
                                           const Comparison& comparison);

/// Throws Error(config) if there are gates and the runs cannot be judged: an arm has several configs, or the
/// two arms of a gate are trained on different numbers of tokens.
void check_gates(const Comparison& comparison);

}  // namespace isthmus::app
