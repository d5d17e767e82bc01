#include "tokenizer/bpe_added.h"

#include <algorithm>

#include "isthmus/base/error.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

constexpr std::uint32_t none = ~std::uint32_t{0};

std::size_t content_bytes(const std::vector<AddedToken>& tokens) {
  std::size_t bytes = 0;
  for (const auto& token : tokens) bytes += token.content.size();
  return bytes;
}

/// Unicode's property White_Space.
bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace

AddedTokens::AddedTokens(const std::string& name, std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), steps_(content_bytes(tokens_)), ends_(1, none) {
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const auto& content = tokens_[i].content;
    begins_[static_cast<unsigned char>(content[0])] = true;
    std::uint32_t node = 0;
    for (const char c : content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto* step = steps_.find(node, byte);
      const auto to = step != nullptr ? step->first : static_cast<std::uint32_t>(ends_.size());
      if (step == nullptr) {
        steps_.put(node, byte, {to, 0});
        ends_.push_back(none);
      }
      node = to;
    }
    if (ends_[node] != none)
      config_error(name + ": added_tokens has \"" + content +
                   "\" twice after normalisation: expected every token once");
    ends_[node] = i;
  }
}

bool AddedTokens::find(std::string_view text, std::size_t from, Found& found) const {
  if (tokens_.empty()) return false;
  for (; from < text.size(); ++from) {
    if (!begins_[static_cast<unsigned char>(text[from])]) continue;
    std::uint32_t node = 0, longest = none;
    std::size_t end = from;
    for (auto i = from; i < text.size(); ++i) {
      const auto* step = steps_.find(node, static_cast<unsigned char>(text[i]));
      if (step == nullptr) break;
      node = step->first;
      if (ends_[node] != none) {
        longest = ends_[node];
        end = i + 1;
      }
    }
    if (longest == none) continue;
    found = {from, end, longest};
    return true;
  }
  return false;
}

std::size_t AddedTokens::white_space_behind(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() && is_white_space(first_character(text.substr(size))))
    size += utf8_length(text.substr(size));
  return size;
}

std::size_t AddedTokens::white_space_before(std::string_view text) {
  auto begin = text.size();
  while (begin > 0) {
    auto first = begin - 1;
    while (continues_character(text[first])) --first;
    if (!is_white_space(first_character(text.substr(first)))) break;
    begin = first;
  }
  return text.size() - begin;
}

}  // namespace isthmus::data
