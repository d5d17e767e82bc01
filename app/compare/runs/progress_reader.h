#pragma once
// Reads how far a run is from the metrics that it appends.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "compare/runs/run_record.h"

namespace isthmus::app {

/// Reads a growing file; each read continues where the last one ended.
class GrowingFile {
 public:
  explicit GrowingFile(std::filesystem::path file) : file_(std::move(file)) {}
  /// Lines added since the last call; empty if the file does not exist yet. Leaves out lines longer than 64
  /// KiB.
  [[nodiscard]] std::vector<std::string> lines();

 private:
  std::filesystem::path file_;
  std::uint64_t offset_ = 0;
  std::string rest_;
};

class ProgressReader {
 public:
  explicit ProgressReader(const RunPlan& run);
  /// Reads the lines added since the last call.
  void look();

  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] double loss() const { return loss_; }
  /// Training time, without evaluations and checkpoints.
  [[nodiscard]] double seconds() const { return seconds_; }
  /// Step and loss of each evaluation so far.
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
