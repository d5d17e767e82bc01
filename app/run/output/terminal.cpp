#include "run/output/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace isthmus::app {
namespace {

/// Ignores errors: the terminal has gone.
void put(std::string_view text) {
  while (!text.empty()) {
    const auto written = write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

constexpr std::string_view begin = "\x1b[?1049h\x1b[?25l";  // alternate screen, hidden cursor
constexpr std::string_view end = "\x1b[?25h\x1b[?1049l";

/// Empty without it.
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  return value == nullptr ? std::string_view() : value;
}

}  // namespace

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) == 1 && environment("TERM") != "dumb"; }

bool wants_colours(std::FILE* stream) { return is_terminal(stream) && environment("NO_COLOR").empty(); }

Terminal::Terminal() {
  tcgetattr(STDIN_FILENO, &before_);
  auto raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);  // keys as they are pressed, Ctrl-C too
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  put(begin);
}

Terminal::~Terminal() {
  put(end);
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

bool Terminal::there() { return isatty(STDIN_FILENO) == 1 && is_terminal(stdout); }

Terminal::Size Terminal::size() {
  winsize now{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &now) != 0 || now.ws_col == 0 || now.ws_row == 0) return {80, 24};
  return {now.ws_col, now.ws_row};
}

void Terminal::draw(const std::vector<std::string>& lines, std::size_t marked_row) {
  // Overwrites line by line, so that nothing flickers.
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\r\n";
    const bool marked = i == marked_row;
    text += (marked ? "\x1b[7m" : "") + lines[i] + (marked ? "\x1b[0m" : "") + "\x1b[K";
  }
  put(text + "\x1b[J");
}

char Terminal::key(std::chrono::milliseconds limit) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, static_cast<int>(limit.count())) <= 0) return 0;
  char pressed = 4;
  return read(STDIN_FILENO, &pressed, 1) == 1 ? pressed : '\x04';
}

}  // namespace isthmus::app
