#pragma once
// How far a run is, from what it appends to its metrics.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compare/run_record.h"

namespace isthmus::app {

/// A file that grows, read on from where the last look ended.
class GrowingFile {
 public:
  explicit GrowingFile(std::filesystem::path file) : file_(std::move(file)) {}
  /// Lines that have come since; nothing where the file is not there yet. A line longer than 64 KiB is left
  /// out.
  [[nodiscard]] std::vector<std::string> lines();

 private:
  std::filesystem::path file_;
  std::uint64_t offset_ = 0;
  std::string rest_;
};

class ProgressReader {
 public:
  explicit ProgressReader(const RunPlan& run);
  /// Reads what has come since.
  void look();

  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] double loss() const { return loss_; }
  /// Of training, without evaluations and checkpoints.
  [[nodiscard]] double seconds() const { return seconds_; }
  /// Evaluations so far, by step.
  [[nodiscard]] const std::vector<std::pair<std::uint64_t, double>>& evaluations() const {
    return evaluations_;
  }

 private:
  GrowingFile worker_, coordinator_;
  std::uint64_t step_ = 0;
  double loss_ = 0, seconds_ = 0;
  std::vector<std::pair<std::uint64_t, double>> evaluations_;
};

}  // namespace isthmus::app
