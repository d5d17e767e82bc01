#include "run/output/lines.h"

#include <algorithm>

namespace isthmus::app {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The position in bytes after `columns` columns.
std::size_t after_columns(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues_character(text[at]) && columns-- == 0) break;
  }
  return at;
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return !continues_character(c); }));
}

std::string short_name(std::string_view name, std::size_t columns) {
  const auto all = columns_of(name);
  if (all <= columns) return std::string(name);
  if (columns == 0) return {};
  const auto end = columns / 2, begin = columns - 1 - end;
  std::string out(name.substr(0, after_columns(name, begin)));
  return out.append(1, '~').append(name.substr(after_columns(name, all - end)));
}

std::vector<std::string> wrapped_lines(std::string_view text, std::size_t indent, std::size_t columns) {
  std::vector<std::string> lines;
  for (std::string begin; !text.empty() || lines.empty(); begin.assign(indent, ' ')) {
    const auto fits = after_columns(text, columns - std::min(columns, begin.size()));
    auto end = text.substr(0, fits + 1).find('\n');
    if (end == std::string_view::npos && fits == text.size()) end = fits;
    if (end == std::string_view::npos) {
      // Breaks neither before the first word nor within it.
      const auto word = std::min(text.find_first_not_of(' '), text.size());
      end = text.rfind(' ', fits);
      if (end == std::string_view::npos || end < word)
        end = std::min(text.find_first_of(" \n", word), text.size());
    }
    const auto line = text.substr(0, end);
    lines.push_back(begin + std::string(line.substr(0, line.find_last_not_of(' ') + 1)));
    const bool at_newline = end < text.size() && text[end] == '\n';
    text.remove_prefix(end + (at_newline ? 1 : 0));
    if (!at_newline) text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return lines;
}

std::string in_lines(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string out;
  for (const auto& line : wrapped_lines(text, indent, columns)) out += line + "\n";
  return out;
}

}  // namespace isthmus::app
