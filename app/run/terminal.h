#pragma once
// A terminal that is drawn on as a whole, and given back as it was.

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace isthmus::app {

class Terminal {
 public:
  /// Of standard input and output. What the terminal showed is back when this is gone.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] static bool there();  ///< both are a terminal

  struct Size {
    std::size_t columns, rows;
    friend bool operator==(const Size&, const Size&) = default;
  };
  [[nodiscard]] static Size size();  ///< 80 x 24 where it is not known
  /// Lines of printable characters, no longer than the terminal is wide; that of `marked_row` stands out.
  void draw(const std::vector<std::string>& lines, std::size_t marked_row);
  /// The next key, or 0 when none has come for so long. Ctrl-C is 3; 4 (end of input) once there is nobody
  /// who could press one.
  [[nodiscard]] char key(std::chrono::milliseconds limit);

 private:
  termios before_{};
};

}  // namespace isthmus::app
