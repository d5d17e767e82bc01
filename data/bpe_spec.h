#pragma once
// What a Hugging Face tokenizer.json says, checked. What a byte-level BPE does not have, and what is not
// supported, is refused by name: ids are those of the `tokenizers` package, or there is an Error.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::data {

/// Text that is one token wherever it stands, before anything else is done.
struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool lstrip = false;      ///< takes the whitespace before it along
  bool rstrip = false;      ///< and that behind it
  bool normalized = false;  ///< is looked for in the normalised text
};

/// Text is cut into words by these, one after the other; each cuts the pieces that the one before has left.
struct CutStep {
  enum class Kind : std::uint8_t {
    pattern,       ///< every match is a piece, and so is what lies between two
    prefix_space,  ///< no cut: a space is put before a piece that begins with none
  };
  Kind kind = Kind::pattern;
  std::string pattern;
};

/// Two neighbours that become one token. Earlier ones in the list go first.
struct MergeRule {
  std::uint32_t left = 0, right = 0, result = 0;
};

/// A token that byte-level text can give.
struct WordToken {
  std::string bytes;
  std::uint32_t id = 0;
};

struct BpeSpec {
  /// By id: what the token is decoded to. Empty for an id that nobody has.
  std::vector<std::string> tokens;
  std::vector<WordToken> words;  ///< in rising order of ids; all 256 bytes are there
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges make of it
  bool nfc = false;            ///< text is brought to Unicode's normalization form C first
  std::vector<CutStep> steps;
  std::vector<AddedToken> added;
  std::uint32_t separator = 0;
};

inline constexpr std::size_t largest_tokenizer_file = std::size_t{64} << 20;

/// `json` is the text of the file `name`. Throws Error(config) with file, place, value and what was expected.
[[nodiscard]] BpeSpec read_bpe_spec(std::string_view json, const std::string& name);

/// Of all in it that decides ids.
[[nodiscard]] Digest fingerprint_of(const BpeSpec& spec);

}  // namespace isthmus::data
