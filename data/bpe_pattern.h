#pragma once
// The regular expressions by which a tokenizer.json cuts text into words.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace isthmus::data {

/// A pattern as the `tokenizers` package reads it (Oniguruma), for PCRE2 (UTF, Unicode properties, JIT). The
/// two differ in places, so this takes the part of the syntax on which they agree once \s is written out, and
/// refuses the rest by name. That part is: characters, \r \n \t \f \v, \s \S \d \D, \p{} and \P{} of general
/// categories and of Han, classes of those, groups (plain, ?: ?i: ?= ?! ?>), alternatives, and one quantifier
/// each. Immutable.
class CutPattern {
 public:
  /// Throws Error(config) that begins with `place` for a pattern that is not supported or may match nothing.
  CutPattern(const std::string& place, std::string_view pattern);
  ~CutPattern();
  CutPattern(CutPattern&&) noexcept;
  CutPattern& operator=(CutPattern&&) noexcept;

  /// What matching one text needs; for one thread at a time, and for any pattern.
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
  /// The first match in `text`, which is UTF-8, from `from` on; false if there is none. Throws Error(data)
  /// when it takes more steps than any sane pattern needs.
  bool find(std::string_view text, std::size_t from, Scratch& scratch, Match& match) const;

 private:
  struct Compiled;
  /// PCRE2's answers: of the first match from a place on, and of a match at a place, with more steps as long
  /// as there are any.
  int attempt(std::string_view text, std::size_t from, Scratch& scratch) const;
  int attempt_at(std::string_view text, std::size_t at, Scratch& scratch) const;
  std::unique_ptr<const Compiled> compiled_;
};

/// As PCRE2 has to read it. Throws as CutPattern does.
[[nodiscard]] std::string translate_pattern(const std::string& place, std::string_view pattern);

}  // namespace isthmus::data
