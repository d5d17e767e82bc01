#pragma once
// Draws on a whole terminal and restores it afterwards.

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace isthmus::app {

/// Whether the stream is a terminal that can redraw a line: TERM=dumb cannot.
[[nodiscard]] bool is_terminal(std::FILE* stream);
/// Whether to print colours there: on such a terminal, unless the user has set NO_COLOR (no-color.org).
[[nodiscard]] bool wants_colours(std::FILE* stream);

class Terminal {
 public:
  /// Uses standard input and output. The destructor restores what the terminal showed.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] static bool there();  ///< whether both are a terminal that it can draw on

  struct Size {
    std::size_t columns, rows;
    friend bool operator==(const Size&, const Size&) = default;
  };
  [[nodiscard]] static Size size();  ///< 80 x 24 if unknown
  /// Lines of printable characters, no longer than the terminal is wide; the line `marked_row` is
  /// highlighted.
  void draw(const std::vector<std::string>& lines, std::size_t marked_row);
  /// The next key, or 0 if none is pressed within `limit`. Ctrl-C is 3; 4 (end of input) once the terminal
  /// has gone.
  [[nodiscard]] char key(std::chrono::milliseconds limit);

 private:
  termios before_{};
};

}  // namespace isthmus::app
