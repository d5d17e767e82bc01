#pragma once
// Run folders as `launch` leaves them, without a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "compare/arms/comparison.h"
#include "compare/report/report.h"
#include "isthmus/base/error.h"
#include "temporary_folder.h"

namespace isthmus {

/// Losses of a run's evaluations, by step.
using Losses = std::vector<std::pair<std::uint64_t, double>>;

class Recorded {
 public:
  /// Commit of every run.
  static constexpr const char* commit = "0123456789ab";
  static constexpr const char* global_hash =
      "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

  /// Two replicas, batch 4, sequences of 32: 256 tokens per step; 40 steps.
  Recorded();

  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    return folder_.write(name, text);
  }
  /// Reads a comparison that extends the base; "out" is in this folder.
  [[nodiscard]] app::Comparison comparison(const std::string& text, const std::string& size = {}) const;
  [[nodiscard]] std::filesystem::path file() const { return folder_ / "comparison.yaml"; }

  /// Records a finished run: each replica sends `bytes` in total, and a step takes .1 s.
  void finish(const app::RunPlan& run, const Losses& losses, double bytes) const;
  /// Records all runs of an arm by seed, each with losses 3, 2 and the given one at steps 0, 20 and 40.
  void finish_arm(const app::Comparison& comparison, std::size_t arm, const std::vector<double>& losses,
                  double bytes) const;

 private:
  TemporaryFolder folder_;
};

/// The message of the Error that `act` throws; fails the test and returns "" if it throws none.
[[nodiscard]] std::string error_of(const std::function<void()>& act);

/// The records as the command reads them.
[[nodiscard]] app::Records records_of(const app::Comparison& comparison);

}  // namespace isthmus
