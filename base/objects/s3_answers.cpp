#include "objects/s3_answers.h"

#include <array>
#include <charconv>
#include <utility>

#include "isthmus/base/number.h"
#include "isthmus/base/text.h"

namespace isthmus {
namespace {

constexpr std::size_t max_reason = 300;

/// The content of the first element of this name at or after `from`, which then is behind it.
std::optional<std::string_view> next_element(std::string_view xml, std::string_view element,
                                             std::size_t& from) {
  const auto open = "<" + std::string(element) + ">";
  const auto close = "</" + std::string(element) + ">";
  const auto begin = xml.find(open, from);
  if (begin == std::string_view::npos) return std::nullopt;
  const auto end = xml.find(close, begin + open.size());
  if (end == std::string_view::npos) return std::nullopt;
  from = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}

std::string without_entities(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 5> entities = {
      {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};
  std::string out;
  while (!text.empty()) {
    std::size_t taken = 1;
    char c = text.front();
    for (const auto& [name, meant] : entities) {
      if (!text.starts_with(name)) continue;
      c = meant;
      taken = name.size();
    }
    out += c;
    text.remove_prefix(taken);
  }
  return out;
}

/// nullopt if an escape is incomplete.
std::optional<std::string> url_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      unsigned value = 0;
      const auto* begin = text.data() + i + 1;
      if (i + 2 >= text.size() || std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2)
        return std::nullopt;
      out += static_cast<char>(value);
      i += 2;
    }
  }
  return out;
}

std::optional<ObjectEntry> entry_of(std::string_view contents) {
  const auto key = xml_text(contents, "Key");
  const auto size = xml_text(contents, "Size");
  if (!key || !size) return std::nullopt;
  auto decoded = url_decoded(*key);
  const auto bytes = whole_number(*size);
  if (!decoded || !bytes) return std::nullopt;
  return ObjectEntry{std::move(*decoded), *bytes};
}

}  // namespace

std::optional<std::string> xml_text(std::string_view xml, std::string_view element) {
  std::size_t from = 0;
  const auto content = next_element(xml, element, from);
  return content ? std::optional(without_entities(*content)) : std::nullopt;
}

std::optional<S3Page> s3_page(std::string_view xml) {
  if (xml.find("<ListBucketResult") == std::string_view::npos) return std::nullopt;
  S3Page page;
  for (std::size_t from = 0; const auto contents = next_element(xml, "Contents", from);)
    if (auto entry = entry_of(*contents)) page.objects.push_back(std::move(*entry));
  if (xml_text(xml, "IsTruncated") == "true") page.next = xml_text(xml, "NextContinuationToken").value_or("");
  return page;
}

std::string s3_reason(std::string_view xml) {
  const auto code = xml_text(xml, "Code").value_or("");
  const auto message = xml_text(xml, "Message").value_or("");
  return printable(code.empty() || message.empty() ? code + message : code + ": " + message, max_reason);
}

}  // namespace isthmus
