#include "isthmus/base/say.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "isthmus/base/text.h"

namespace isthmus {
namespace {

/// One write, because other threads and processes write to the same file.
void say_line_to(std::FILE* out, std::string_view line) {
  say_to(out, printable_lines(std::string(line)) + '\n');
}

}  // namespace

void say_to(std::FILE* out, std::string_view text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), out));
  std::fflush(out);
}

void say_line(std::string_view line) { say_line_to(stdout, line); }
void say_error(std::string_view line) { say_line_to(stderr, line); }

void open_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) close(descriptor);
}

}  // namespace isthmus
