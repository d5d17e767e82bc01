#pragma once
// Lines for people on standard output and standard error, from any thread. What cannot be written (a full
// disk, a closed descriptor, a reader that is gone) is lost and nothing is thrown: who speaks goes on. A
// line may hold words of others, so control characters in it but newlines and tabs become '?'.

#include <cstdio>
#include <string_view>

namespace isthmus {

/// Writes `text` as it is, terminal's orders too, and flushes.
void say_to(std::FILE* out, std::string_view text);
/// Writes one line, to which it adds the newline.
void say_line(std::string_view line);
void say_error(std::string_view line);

/// Opens /dev/null at each of the descriptors 0 to 2 that is closed. Without it the next file or socket would
/// get that number, and what is said would be written into it. Call it before anything is opened.
void open_standard_descriptors();

}  // namespace isthmus
