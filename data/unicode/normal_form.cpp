#include "unicode/normal_form.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "isthmus/base/error.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

void append_nfc(std::string_view text, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size < 0) data_error(std::string("text cannot be normalised: ") + utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    // ASCII is normalised already, except for the last character before others, which may take an accent.
    auto plain = ascii_prefix(text);
    if (plain < text.size() && plain > 0) --plain;
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    std::size_t other = text.empty() ? 0 : 1;
    while (other < text.size() && static_cast<unsigned char>(text[other]) >= 0x80) ++other;
    if (other > 0) append_nfc(text.substr(0, other), out);
    text.remove_prefix(other);
  }
  return out;
}

}  // namespace isthmus::data
