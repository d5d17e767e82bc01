#pragma once
// A folder with a corpus, the config of a run so small that it takes a second, and the `isthmus` binary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"
#include "temporary_folder.h"

namespace isthmus {

using Words = std::vector<std::string>;

class Site {
 public:
  Site();
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return folder_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    return folder_.write(name, text);
  }
  [[nodiscard]] std::filesystem::path config() const { return folder_ / "tiny.yaml"; }
  /// Run folder of `config()`.
  [[nodiscard]] std::filesystem::path run() const { return folder_ / "runs/tiny"; }

  /// Starts `isthmus WORDS`.
  [[nodiscard]] Command start(Words words);
  /// Runs `isthmus WORDS` to its end.
  Result isthmus(Words words);
  /// `isthmus launch tiny.yaml --set SETTING ...`
  [[nodiscard]] Command start_launch(const Words& settings = {});
  Result launch(const Words& settings = {});
  /// `isthmus launch --resume runs/tiny --set SETTING ...`
  Result resume(const Words& settings = {});

  [[nodiscard]] nlohmann::json summary() const;
  /// The run's global hash; fails the test unless the summary has it equal for all replicas.
  [[nodiscard]] std::string hash() const;
  /// Number of lines in a replica's metrics.jsonl, which shows its progress.
  [[nodiscard]] std::size_t metric_lines(const std::string& replica = "replica-0") const;
  /// Whether a checkpoint is on disk; they are written in the background.
  [[nodiscard]] bool has_checkpoint(const std::string& replica) const;
  /// Processes with this folder in their command line.
  [[nodiscard]] std::vector<RunningProcess> processes() const {
    return processes_with(folder_.path().string());
  }
  /// The process of `isthmus VERB` with `text` in its command line. Fails the test unless there is exactly
  /// one.
  [[nodiscard]] pid_t process(const std::string& text) const;
  /// The ends of all logs, for failure messages.
  [[nodiscard]] std::string logs() const;

 private:
  TemporaryFolder folder_;
  int commands_ = 0;
};

/// Result of the uninterrupted run of the unchanged config; run once for all tests that compare with it.
struct Outcome {
  std::string hash;
  nlohmann::json evaluations;
};
[[nodiscard]] const Outcome& reference();

/// Appends `--set SETTING` for each setting.
[[nodiscard]] Words with_settings(Words words, const Words& settings);

}  // namespace isthmus
