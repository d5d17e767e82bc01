#include "command_line/wrapped_text.h"

#include <algorithm>

namespace isthmus::app {

std::string wrapped(std::string_view label, std::string_view text, std::size_t margin,
                    std::string_view at_break) {
  const std::string indent(margin, ' ');
  std::string out(label);
  if (!text.empty() && label.size() < margin) out.append(margin - label.size(), ' ');
  if (!text.empty() && !label.empty() && label.size() >= margin) out.append("\n").append(indent);
  auto column = margin;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find_first_of(" \n", begin), text.size());
    const auto word = text.substr(begin, end - begin);
    const bool is_first = column == margin;
    if (!is_first && column + 1 + word.size() + at_break.size() > terminal_columns) {
      out.append(at_break).append("\n").append(indent);
      column = margin;
    } else if (!is_first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    if (end < text.size() && text[end] == '\n') {
      out.append("\n").append(indent);
      column = margin;
    }
    begin = end + 1;
  }
  return out + '\n';
}

}  // namespace isthmus::app
