#pragma once
// The screen of `isthmus top` as lines of text, made from the coordinator's answer, which is not trusted.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

/// The speed of the run, from successive answers.
class Pace {
 public:
  void look(std::uint64_t step, double seconds);
  /// Agreed steps per second over the last minute; 0 while unknown.
  [[nodiscard]] double steps_per_second() const;

 private:
  struct Look {
    std::uint64_t step;
    double seconds;
  };
  std::vector<Look> looks_;
};

/// At most `rows` lines of at most `columns` printable ASCII characters, regardless of the answer's contents.
/// Below the members there is a row for each fragment, with its newest committed round. Members and fragments
/// that do not fit are counted. `status` is an answer to `ctl status` (run_status.h). Throws Error(data) if
/// it is not.
[[nodiscard]] std::vector<std::string> top_screen(const nlohmann::json& status, const Pace& pace,
                                                  std::size_t columns, std::size_t rows);

}  // namespace isthmus::app
