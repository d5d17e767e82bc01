#pragma once
// Reads and checks a Hugging Face tokenizer.json. Rejects by name what byte-level BPE does not have and what
// is not supported: ids are those of the `tokenizers` package, or there is an Error.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::data {

/// Text that is one token everywhere, found before any other step.
struct AddedToken {
  std::string content;
  std::uint32_t id = 0;
  bool lstrip = false;      ///< includes the whitespace before it
  bool rstrip = false;      ///< includes the whitespace after it
  bool normalized = false;  ///< is searched for in the normalised text
};

/// A step that cuts text into words; each step cuts the pieces that the previous one left.
struct CutStep {
  enum class Kind : std::uint8_t {
    pattern,       ///< every match is a piece, and so is the text between two matches
    prefix_space,  ///< cuts nothing: puts a space before a piece that does not begin with one
  };
  Kind kind = Kind::pattern;
  std::string pattern;
};

/// Two neighbours that become one token. Earlier rules in the list are applied first.
struct MergeRule {
  std::uint32_t left = 0, right = 0, result = 0;
};

/// A token that byte-level text can produce.
struct WordToken {
  std::string bytes;
  std::uint32_t id = 0;
};

struct BpeSpec {
  /// By id: what the token decodes to. Empty for an unused id.
  std::vector<std::string> tokens;
  std::vector<WordToken> words;  ///< by rising id; all 256 bytes are included
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  ///< a word that is a token becomes that token, without merges
  bool nfc = false;            ///< text is first brought to Unicode normalization form C
  std::vector<CutStep> steps;
  std::vector<AddedToken> added;
  std::uint32_t separator = 0;
};

inline constexpr std::size_t max_tokenizer_file = std::size_t{64} << 20;

/// `json` is the content of the file `name`. Throws Error(config) with file, place, value and what was
/// expected.
[[nodiscard]] BpeSpec read_bpe_spec(std::string_view json, const std::string& name);

/// Hash of everything that decides ids.
[[nodiscard]] Digest fingerprint_of(const BpeSpec& spec);

}  // namespace isthmus::data
