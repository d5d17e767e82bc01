#pragma once
// The regular expressions with which a tokenizer.json cuts text into words.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace isthmus::data {

/// A pattern in the syntax of the `tokenizers` package (Oniguruma), matched by PCRE2 (UTF, Unicode
/// properties, JIT). Accepts only what means the same in both once \s is written out, and rejects the rest by
/// name: characters, \r
/// \t \f \v, \s \S \d \D, \p{} and \P{} of general categories and of Han, classes of those, groups (plain, ?:
/// ?i: ?= ?! ?>), alternatives, and one quantifier each. Immutable.
class CutPattern {
 public:
  /// Throws Error(config), beginning with `place`, if the pattern is not supported or may match the empty
  /// string.
  CutPattern(const std::string& place, std::string_view pattern);
  ~CutPattern();
  CutPattern(CutPattern&&) noexcept;
  CutPattern& operator=(CutPattern&&) noexcept;

  /// Working memory for matching one text with any patterns; for one thread at a time.
  class Scratch {
   public:
    explicit Scratch(std::size_t text_bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class CutPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// Finds the first match in `text` (UTF-8) from `from` on; returns false if nothing matches. Throws
  /// Error(data) if that takes more steps than any sensible pattern needs.
  bool find(std::string_view text, std::size_t from, Scratch& scratch, Match& match) const;

 private:
  struct Compiled;
  /// Results of PCRE2: for the first match from a position on, and for a match at one position, with more
  /// steps as long as any are left.
  int attempt(std::string_view text, std::size_t from, Scratch& scratch) const;
  int attempt_at(std::string_view text, std::size_t at, Scratch& scratch) const;
  std::unique_ptr<const Compiled> compiled_;
};

/// The pattern in PCRE2's syntax. Throws like CutPattern.
[[nodiscard]] std::string translate_pattern(const std::string& place, std::string_view pattern);

}  // namespace isthmus::data
