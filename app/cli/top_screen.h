#pragma once
// What `isthmus top` shows, as lines of text: made of a coordinator's answer, which need not be right.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::app {

/// How fast the run is, from one look to the next.
class Pace {
 public:
  void look(std::uint64_t step, double seconds);
  /// Agreed steps per second over the last minute; 0 while that is not known.
  [[nodiscard]] double steps_per_second() const;

 private:
  struct Look {
    std::uint64_t step;
    double seconds;
  };
  std::vector<Look> looks_;
};

/// At most `rows` lines of at most `columns` printable ASCII characters, whatever stands in the answer;
/// members that find no room are counted, and below them so are fragments, of which there is a row each with
/// its newest round that has committed. `status` is an answer to `ctl status` (run_status.h). Throws
/// Error(data) for what is none.
[[nodiscard]] std::vector<std::string> top_screen(const nlohmann::json& status, const Pace& pace,
                                                  std::size_t columns, std::size_t rows);

}  // namespace isthmus::app
