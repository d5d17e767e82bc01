#pragma once
// Finds added tokens in text.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_merges.h"
#include "tokenizer/bpe_spec.h"

namespace isthmus::data {

/// Finds tokens like the `tokenizers` package: from left to right, at each position the longest. Immutable.
class AddedTokens {
 public:
  /// Throws Error(config), beginning with `name`, if two tokens have the same text.
  AddedTokens(const std::string& name, std::vector<AddedToken> tokens);

  /// Calls `on_text` with the text between tokens (never empty) and `on_token` with the tokens' ids, in
  /// order.
  template <class OnText, class OnToken>
  void split(std::string_view text, OnText on_text, OnToken on_token) const {
    std::size_t begin = 0;  // end of the last token
    Found found;
    for (std::size_t from = 0; find(text, from, found); from = found.end) {
      const auto& token = tokens_[found.token];
      auto first = found.begin, end = found.end;
      if (token.lstrip) first = std::max(begin, first - white_space_before(text.substr(0, first)));
      if (token.rstrip) end += white_space_behind(text.substr(end));
      if (begin < first) on_text(text.substr(begin, first - begin));
      on_token(token.id);
      begin = end;
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

 private:
  struct Found {
    std::size_t begin = 0, end = 0;
    std::uint32_t token = 0;
  };
  bool find(std::string_view text, std::size_t from, Found& found) const;
  static std::size_t white_space_before(std::string_view text);
  static std::size_t white_space_behind(std::string_view text);

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};   ///< first bytes of tokens
  PairTable steps_;                  ///< a trie: from a node and a byte to the next node
  std::vector<std::uint32_t> ends_;  ///< by node: the token that ends there
};

}  // namespace isthmus::data
