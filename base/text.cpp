#include "isthmus/base/text.h"

#include <algorithm>
#include <utility>

namespace isthmus {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}
/// Includes UTF-8 control characters (two bytes, U+0080 to U+009F), which some terminals obey.
void hide_controls(std::string& text, bool with_newlines) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (text[i] == '\xc2' && next >= 0x80 && next < 0xa0) {
      text.replace(i, 2, "?");
    } else if (is_control(text[i]) && (with_newlines || text[i] != '\n')) {
      text[i] = '?';
    }
  }
}
bool is_column(char c) { return c >= 0x20 && c < 0x7f; }
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string cut(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  if (most == 0) return {};
  auto end = most - 1;
  while (end > 0 && continues_character(text[end])) --end;
  text.resize(end);
  return text + '~';
}

}  // namespace

std::string_view trimmed(std::string_view text, std::string_view characters) {
  const auto first = text.find_first_not_of(characters);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(characters) - first + 1);
}

std::string printable(std::string text, std::size_t most) {
  hide_controls(text, true);
  return cut(std::move(text), most);
}

std::string printable_lines(std::string text) {
  hide_controls(text, false);
  return text;
}

std::string printable_ascii(std::string text, std::size_t most) {
  std::ranges::replace_if(
      text, [](char c) { return !is_column(c); }, '?');
  return cut(std::move(text), most);
}

}  // namespace isthmus
