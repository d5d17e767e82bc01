#pragma once
// Human-readable lines on standard output and standard error, from any thread. Text that cannot be written
// (full disk, closed descriptor, reader gone) is lost, nothing is thrown, and the caller continues. A line
// may contain untrusted text, so control characters except newlines and tabs become '?'.

#include <cstdio>
#include <string_view>

namespace isthmus {

/// Writes `text` unchanged, including terminal control sequences, and flushes.
void say_to(std::FILE* out, std::string_view text);
/// Writes one line and adds the newline.
void say_line(std::string_view line);
void say_error(std::string_view line);

/// Opens /dev/null at each closed descriptor among 0 to 2. Otherwise the next file or socket would get that
/// number, and output would be written into it. Call before anything is opened.
void open_standard_descriptors();

}  // namespace isthmus
