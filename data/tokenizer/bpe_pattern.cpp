#include "tokenizer/bpe_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <new>

#include "isthmus/base/error.h"
#include "unicode/utf8.h"

namespace isthmus::data {
namespace {

constexpr int max_group_depth = 32;
constexpr std::uint32_t max_repeats = 1000;
constexpr std::size_t min_stack = 32 << 10, max_stack = 16 << 20;
constexpr std::uint32_t max_heap_kib = 256 << 10;
/// Steps that are enough at one position for any sensible pattern, except in long runs of one kind of
/// character.
constexpr std::uint32_t quick_steps = 1024;
/// Additional steps for all positions that need more: a fixed number, and a number for each byte of the text.
constexpr std::uint64_t more_steps = 20'000'000, more_steps_per_byte = 64;

/// The properties that newer_characters.h preserves: general categories, and Han.
constexpr std::array properties = {
    "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc",
    "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Han",
};

/// Pairs of letters that Oniguruma also matches with one character when case is ignored: ß, ﬀ, ﬁ, ﬂ and ﬆ.
constexpr std::array folded = {"ss", "ff", "fi", "fl", "st"};

/// Unicode's White_Space, inside a class. PCRE2's own \s also has U+180E, which Unicode removed in version
/// 6.3.
constexpr const char* white_space = R"(\t-\r\x{85}\p{Z})";

class Translator {
 public:
  Translator(const std::string& place, std::string_view pattern) : place_(place), pattern_(pattern) {
    if (utf8_prefix(pattern) != pattern.size()) refuse("UTF-8");
  }

  std::string translate() {
    alternatives(0);
    if (!done()) refuse("the end of the pattern, or ( before )");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& expected) const {
    config_error(
        fmt::format("{} is \"{}\", at byte {}: expected {}", place_, pattern_.substr(0, 200), at_, expected));
  }
  [[nodiscard]] bool done() const { return at_ == pattern_.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : pattern_[at_]; }
  [[nodiscard]] bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!follows(text)) return false;
    at_ += text.size();
    return true;
  }

  void alternatives(int depth) {
    if (depth > max_group_depth) refuse(fmt::format("at most {} nested groups", max_group_depth));
    while (true) {
      sequence(depth);
      if (!take("|")) return;
      out_ += '|';
    }
  }

  void sequence(int depth) {
    previous_letter_ = '\0';
    while (!done() && peek() != '|' && peek() != ')') {
      const bool can_repeat = atom(depth);
      quantifier(can_repeat);
    }
    previous_letter_ = '\0';
  }

  /// Returns false if the atom cannot be repeated.
  bool atom(int depth) {
    if (peek() == '(') return group(depth);
    const auto before = previous_letter_;
    previous_letter_ = '\0';
    if (peek() == '[') {
      character_class();
    } else if (peek() == '\\') {
      escape(false);
    } else {
      if (std::string_view(".^$*+?]{}").find(peek()) != std::string_view::npos)
        refuse("no . ^ $, and \\ before special characters");
      previous_letter_ = peek();
      const auto two = std::string{before, peek()};
      if (caseless_ && std::find(folded.begin(), folded.end(), lower(two)) != folded.end())
        refuse("no \"" + two + "\" where case is ignored");
      literal();
    }
    return true;
  }

  static std::string lower(std::string text) {
    for (auto& c : text)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return text;
  }

  bool group(int depth) {
    ++at_;
    out_ += '(';
    const bool caseless = caseless_;
    bool can_repeat = true;
    if (take("?")) {
      out_ += '?';
      if (follows(":") || follows(">")) {
        out_ += pattern_[at_++];
      } else if (follows("=") || follows("!")) {
        out_ += pattern_[at_++];
        can_repeat = false;
      } else if (take("i:")) {
        out_ += "i:";
        caseless_ = true;
      } else {
        refuse("(?: (?i: (?= (?! or (?>");
      }
    }
    alternatives(depth + 1);
    if (!take(")")) refuse(")");
    out_ += ')';
    caseless_ = caseless;
    previous_letter_ = '\0';
    return can_repeat;
  }

  void quantifier(bool can_repeat) {
    if (done() || std::string_view("*+?{").find(peek()) == std::string_view::npos) return;
    if (!can_repeat) refuse("no quantifier after (?= and (?!");
    previous_letter_ = '\0';
    if (peek() == '{') return repeats();
    out_ += pattern_[at_++];
    if (peek() == '?' || peek() == '+') out_ += pattern_[at_++];
    no_second_quantifier();
  }

  void repeats() {
    out_ += pattern_[at_++];
    const auto least = number();
    auto most = least;
    out_ += std::to_string(least);
    if (take(",")) {
      out_ += ',';
      if (peek() != '}') {
        most = number();
        out_ += std::to_string(most);
      }
    }
    if (most < least) refuse("{m,n} with m at most n");
    if (!take("}")) refuse("}");
    out_ += '}';
    // Oniguruma takes ? and + after {} as a second quantifier, PCRE2 as part of the first.
    no_second_quantifier();
  }

  void no_second_quantifier() const {
    if (!done() && std::string_view("*+?{").find(peek()) != std::string_view::npos)
      refuse("one quantifier, not two");
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    const auto begin = at_;
    while (peek() >= '0' && peek() <= '9' && value <= max_repeats)
      value = value * 10 + static_cast<std::uint32_t>(pattern_[at_++] - '0');
    if (begin == at_ || value > max_repeats) refuse(fmt::format("a number up to {}", max_repeats));
    return value;
  }

  /// A character that matches itself.
  char32_t literal() {
    const auto rest = pattern_.substr(at_);
    const auto character = first_character(rest);
    if (caseless_ && character >= 0x80) refuse("ASCII where case is ignored");
    if (character == 0) refuse("no byte 0");
    at_ += utf8_length(rest);
    append(character);
    return character;
  }

  /// Appends the character in a form that is a plain character anywhere in a pattern.
  void append(char32_t character) {
    const bool letter_or_digit = (character >= '0' && character <= '9') ||
                                 (character >= 'a' && character <= 'z') ||
                                 (character >= 'A' && character <= 'Z');
    if (letter_or_digit) {
      out_ += static_cast<char>(character);
      return;
    }
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "\\x{%x}", static_cast<unsigned>(character));
    out_ += text.data();
  }

  /// Returns the character, or 0 for a set of characters.
  char32_t escape(bool in_class) {
    ++at_;
    if (done()) refuse("a character after \\");
    const char c = pattern_[at_];
    constexpr std::string_view names = "rntfv", controls = "\r\n\t\f\v";
    if (const auto i = names.find(c); i != std::string_view::npos) {
      ++at_;
      append(static_cast<char32_t>(controls[i]));
      return static_cast<char32_t>(controls[i]);
    }
    if (c == 'p' || c == 'P') return property(), 0;
    if (c == 's' || c == 'S') {
      if (in_class && c == 'S') refuse("no \\S inside of []");
      ++at_;
      out_ += in_class ? white_space : std::string(c == 's' ? "[" : "[^") + white_space + "]";
      return 0;
    }
    if (c == 'd' || c == 'D') {
      ++at_;
      out_ += c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
      return 0;
    }
    const bool punctuation =
        c > ' ' && c < 0x7F && !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
    if (!punctuation && c != ' ') refuse("\\ before r n t f v s S d D p P or punctuation");
    ++at_;
    append(static_cast<char32_t>(c));
    return static_cast<char32_t>(c);
  }

  void property() {
    // If case is ignored the engines differ about \p{Lu} and the like.
    if (caseless_) refuse("no \\p where case is ignored");
    const bool negative = pattern_[at_++] == 'P';
    if (!take("{")) refuse("{ after \\p");
    const bool negated = take("^");
    const auto end = pattern_.find('}', at_);
    const auto name = pattern_.substr(at_, end == std::string_view::npos ? end : end - at_);
    if (end == std::string_view::npos ||
        std::find(properties.begin(), properties.end(), name) == properties.end())
      refuse("a general category such as L, Lu or N, or Han, and }");
    at_ = end + 1;
    out_ += negative != negated ? "\\P{" : "\\p{";
    out_ += std::string(name) + "}";
  }

  void character_class() {
    ++at_;
    out_ += '[';
    if (take("^")) out_ += '^';
    if (peek() == ']') refuse("a character in []");
    while (peek() != ']') {
      if (done()) refuse("]");
      class_item();
    }
    ++at_;
    out_ += ']';
  }

  void class_item() {
    const auto from = class_character();
    // A minus at the end is a plain character.
    if (peek() != '-' || follows("-]")) return;
    if (from == 0) refuse("no range that begins with a set");
    ++at_;
    out_ += '-';
    const auto to = class_character();
    if (to < from) refuse("a range that rises");
    if (peek() == '-' && !follows("-]")) refuse("\\ before - inside of []");
  }

  char32_t class_character() {
    if (done()) refuse("]");
    if (peek() == '[' || follows("&&")) refuse("\\ before [ and & inside of []");
    if (peek() == '\\') return escape(true);
    return literal();
  }

  const std::string& place_;
  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  bool caseless_ = false;
  char previous_letter_ = '\0';
};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 200> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* object) const { release(object); }
};
template <class T, void (*release)(T*)>
using Owned = std::unique_ptr<T, Release<T, release>>;

/// PCRE2 returns null if there is no memory.
template <class T>
T* made(T* object) {
  if (object == nullptr) throw std::bad_alloc();
  return object;
}

}  // namespace

std::string translate_pattern(const std::string& place, std::string_view pattern) {
  return Translator(place, pattern).translate();
}

struct CutPattern::Compiled {
  std::string place;
  Owned<pcre2_code, pcre2_code_free> code;
};

struct CutPattern::Scratch::State {
  Owned<pcre2_match_data, pcre2_match_data_free> match{made(pcre2_match_data_create(1, nullptr))};
  Owned<pcre2_match_context, pcre2_match_context_free> context{made(pcre2_match_context_create(nullptr))};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack;
  std::uint64_t more_steps_left = 0;
};

CutPattern::Scratch::Scratch(std::size_t text_bytes) : state_(std::make_unique<State>()) {
  state_->more_steps_left = more_steps + more_steps_per_byte * text_bytes;
  pcre2_set_match_limit(state_->context.get(), quick_steps);
  pcre2_set_heap_limit(state_->context.get(), max_heap_kib);
  // Null on a machine without JIT, which does not use it.
  state_->stack.reset(pcre2_jit_stack_create(min_stack, max_stack, nullptr));
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
CutPattern::Scratch::~Scratch() = default;

CutPattern::CutPattern(const std::string& place, std::string_view pattern) {
  const auto translated = translate_pattern(place, pattern);
  int error = 0;
  std::size_t at = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->place = place;
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_USE_OFFSET_LIMIT,
                                     &error, &at, nullptr));
  if (!compiled->code)
    config_error(place + " cannot be compiled: " + message_of(error) + ": expected another pattern");
  std::uint32_t may_be_empty = 0;
  pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0)
    config_error(
        place + " is \"" + std::string(pattern.substr(0, 200)) +
        "\", which may match the empty string: expected a pattern that matches at least one character");
  // Without JIT, on systems that lack it, matching is slower and gives the same result.
  static_cast<void>(pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE));
  compiled_ = std::move(compiled);
}

CutPattern::~CutPattern() = default;
CutPattern::CutPattern(CutPattern&&) noexcept = default;
CutPattern& CutPattern::operator=(CutPattern&&) noexcept = default;

int CutPattern::attempt(std::string_view text, std::size_t from, Scratch& scratch) const {
  return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                     PCRE2_NO_UTF_CHECK, scratch.state_->match.get(), scratch.state_->context.get());
}

int CutPattern::attempt_at(std::string_view text, std::size_t at, Scratch& scratch) const {
  auto& state = *scratch.state_;
  pcre2_set_offset_limit(state.context.get(), at);
  std::uint32_t steps = quick_steps;
  int found = attempt(text, at, scratch);
  while (found == PCRE2_ERROR_MATCHLIMIT && steps <= state.more_steps_left && steps <= UINT32_MAX / 2) {
    state.more_steps_left -= steps;
    steps *= 2;
    pcre2_set_match_limit(state.context.get(), steps);
    found = attempt(text, at, scratch);
  }
  pcre2_set_match_limit(state.context.get(), quick_steps);
  pcre2_set_offset_limit(state.context.get(), PCRE2_UNSET);
  return found;
}

bool CutPattern::find(std::string_view text, std::size_t from, Scratch& scratch, Match& match) const {
  int found = attempt(text, from, scratch);
  if (found == PCRE2_ERROR_MATCHLIMIT) {
    // PCRE2 counts steps separately at each position: to bound their sum, try one position after the other.
    auto at = from;
    do {
      found = attempt_at(text, at, scratch);
      at += utf8_length(text.substr(at));
    } while (found == PCRE2_ERROR_NOMATCH && at < text.size());
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    data_error(fmt::format("{} failed on a text of {} bytes, at byte {}: {}", compiled_->place, text.size(),
                           from, message_of(found)));
  const auto* bounds = pcre2_get_ovector_pointer(scratch.state_->match.get());
  match = {bounds[0], bounds[1]};
  return true;
}

}  // namespace isthmus::data
