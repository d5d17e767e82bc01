#pragma once
// Draws on a whole terminal and restores it afterwards.

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace isthmus::app {

class Terminal {
 public:
  /// Uses standard input and output. The destructor restores what the terminal showed.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] static bool there();  ///< whether both are a terminal

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
