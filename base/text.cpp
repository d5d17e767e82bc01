#include "isthmus/base/text.h"

#include <algorithm>
#include <utility>

namespace isthmus {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
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

std::string printable(std::string text, std::size_t most) {
  auto out = cut(std::move(text), most);
  std::ranges::replace_if(out, is_control, '?');
  return out;
}

std::string printable_ascii(std::string text, std::size_t most) {
  std::ranges::replace_if(
      text, [](char c) { return !is_column(c); }, '?');
  return cut(std::move(text), most);
}

}  // namespace isthmus
