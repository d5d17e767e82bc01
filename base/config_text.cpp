#include "config_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>

#include "isthmus/base/error.h"

namespace isthmus::config {
namespace {

std::string double_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.append({'\\', c});
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  return out + '"';
}

bool reads_as_itself(std::string_view text) {
  constexpr std::string_view first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/_";
  constexpr std::string_view others = "0123456789.-+@:,=%~";
  if (text.empty() || first.find(text.front()) == std::string_view::npos || text.back() == ':') return false;
  if (!std::all_of(text.begin(), text.end(), [&](char c) {
        return first.find(c) != std::string_view::npos || others.find(c) != std::string_view::npos;
      })) {
    return false;
  }
  // Words that some YAML readers take for a bool or a null.
  constexpr std::array<std::string_view, 9> words = {"true", "false", "null", "yes", "no",
                                                     "on",   "off",   "y",    "n"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  return std::find(words.begin(), words.end(), lower) == words.end();
}

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 4> units = {{{"h", 3600}, {"min", 60}, {"s", 1}, {"ms", 0.001}}};

struct SizeUnit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<SizeUnit, 4> size_units = {
    {{"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000}, {"kB", 1'000}}};

struct RateUnit {
  std::string_view name;
  double bits;
};
constexpr std::array<RateUnit, 3> rate_units = {{{"Gbps", 1e9}, {"Mbps", 1e6}, {"kbps", 1e3}}};

// Milliseconds are divided by 1000, not multiplied by 0.001, so that 400ms is the double nearest to 0.4.
double in_seconds(double number, const Unit& unit) {
  return unit.seconds < 1 ? number / 1000 : number * unit.seconds;
}

template <class T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void fail(const std::string& message) { throw Error(ErrorKind::config, message); }

std::string yaml_string(std::string_view text) {
  return reads_as_itself(text) ? std::string(text) : double_quoted(text);
}

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 80;
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789.-+") == text.npos;
  if (text.size() <= longest) return is_number ? std::string(text) : yaml_string(text);
  auto end = longest;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;  // not in the middle of a UTF-8 character
  return double_quoted(text.substr(0, end)) + "...";
}

std::string shortest(double value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value == 0 ? 0.0 : value);
  return {buffer.data(), result.ptr};
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return shortest(value); }
std::string text_of(const std::string& value) { return value; }
std::string text_of(const std::vector<std::int64_t>& value) {
  // Not "[" + text: g++ 12 warns of an overlap there that does not exist.
  return fmt::format("[{}]", joined(value, [](std::int64_t item) { return std::to_string(item); }));
}
std::string text_of(Duration value) {
  if (value.seconds == 0) return "0";
  constexpr double exact = 9007199254740992.0;  // whole numbers up to 2^53 need no exponent
  for (const auto& unit : units) {
    const double number = std::round(unit.seconds < 1 ? value.seconds * 1000 : value.seconds / unit.seconds);
    if (number != 0 && std::abs(number) < exact && in_seconds(number, unit) == value.seconds) {
      return fmt::format("{:.0f}{}", number, unit.name);
    }
  }
  return shortest(value.seconds) + "s";
}

std::string text_of(Size value) {
  for (const auto& unit : size_units) {
    if (value.bytes != 0 && value.bytes % unit.bytes == 0)
      return std::to_string(value.bytes / unit.bytes).append(unit.name);
  }
  return std::to_string(value.bytes);
}
std::string text_of(NumberOrAuto value) { return value.number ? text_of(*value.number) : "auto"; }
/// In the largest unit that gives at least 1; either every unit reads back to the same value or none does.
std::string text_of(Rate value) {
  if (value.bits_per_second == 0) return "auto";
  for (const auto& unit : rate_units) {
    const auto number = value.bits_per_second / unit.bits;
    if (number >= 1 && number * unit.bits == value.bits_per_second) return shortest(number).append(unit.name);
  }
  return shortest(value.bits_per_second / rate_units.back().bits).append(rate_units.back().name);
}

std::string text_of(const Stepped& value) {
  if (value.parts.size() == 1) return std::to_string(value.parts.front().value);
  return fmt::format("{{{}}}", joined(value.parts, [](const Stepped::Part& part) {
                       return fmt::format("{}: {}", part.after, part.value);
                     }));
}

bool parse(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool parse(std::string_view text, std::int64_t& value) {
  // A leading zero is rejected: some readers take "010" for eight.
  const auto digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.size() > 1 && digits.front() == '0') return false;
  const auto number = number_of<std::int64_t>(text);
  value = number.value_or(0);
  return number.has_value();
}
bool parse(std::string_view text, double& value) {
  const auto number = number_of<double>(text);
  value = number.value_or(0) + 0.0;  // -0 becomes 0: equal values have one text
  return number.has_value() && std::isfinite(value);
}
bool parse(std::string_view text, std::string& value) {
  value = text;
  return true;
}
bool parse(std::string_view text, Duration& value) {
  value.seconds = 0;
  if (text == "0") return true;
  const auto split = text.find_last_of("0123456789.");
  if (split == text.npos) return false;
  const auto* unit = std::find_if(units.begin(), units.end(),
                                  [&](const Unit& u) { return u.name == text.substr(split + 1); });
  double number = 0;
  if (unit == units.end() || !parse(text.substr(0, split + 1), number) || number < 0) return false;
  value.seconds = in_seconds(number, *unit);
  return std::isfinite(value.seconds);
}

bool parse(std::string_view text, Size& value) {
  const auto digits = text.substr(0, text.find_first_not_of("0123456789"));
  const auto name = text.substr(digits.size());
  const auto* unit =
      std::find_if(size_units.begin(), size_units.end(), [&](const SizeUnit& u) { return u.name == name; });
  if (!parse(digits, value.bytes) || (unit == size_units.end() && !name.empty())) return false;
  const auto scale = name.empty() ? 1 : unit->bytes;
  if (value.bytes > std::numeric_limits<std::int64_t>::max() / scale) return false;
  value.bytes *= scale;
  return true;
}

bool parse(std::string_view text, NumberOrAuto& value) {
  if (text == "auto") return true;
  return parse(text, value.number.emplace());
}

bool parse(std::string_view text, Rate& value) {
  value.bits_per_second = 0;
  if (text == "auto") return true;
  const auto digits = text.substr(0, text.find_first_not_of("0123456789."));
  const auto* unit = std::find_if(rate_units.begin(), rate_units.end(),
                                  [&](const RateUnit& u) { return u.name == text.substr(digits.size()); });
  double number = 0;
  if (unit == rate_units.end() || !parse(digits, number) || number <= 0) return false;
  value.bits_per_second = number * unit->bits;
  return std::isfinite(value.bits_per_second);
}

}  // namespace isthmus::config
