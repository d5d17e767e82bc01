#include "isthmus/base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "config_text.h"
#include "isthmus/base/error.h"
#include "isthmus/base/near_word.h"

namespace isthmus::config {
namespace {

// ---- what a key expects, in words ----

std::string type_words(const bool*) { return "true or false"; }
std::string type_words(const std::int64_t*) { return "integer"; }
std::string type_words(const double*) { return "number"; }
std::string type_words(const NumberOrAuto*) { return "number"; }
std::string type_words(const std::string*) { return "text"; }
std::string type_words(const Duration*) { return "duration like 400ms, 5s, 2min or 1h"; }
std::string type_words(const Size*) { return "size in bytes like 64MB or 20GB"; }
std::string type_words(const Rate*) { return "rate like 50Mbps or 1Gbps"; }
std::string type_words(const Stepped*) { return "integer"; }
std::string type_words(const std::vector<std::int64_t>*) { return "list of integers like [1, 2]"; }

std::string range_words(const Key& key) {
  auto words = std::visit([](const auto* value) { return type_words(value); }, key.value);
  if (!key.choices.empty()) {
    return "one of " + joined(key.choices, [](std::string_view choice) { return std::string(choice); });
  }
  if (key.min == -unbounded && key.max == unbounded) return words;
  const bool is_list = std::holds_alternative<std::vector<std::int64_t>*>(key.value);
  const bool is_duration = std::holds_alternative<Duration*>(key.value);
  const bool is_size = std::holds_alternative<Size*>(key.value);
  const bool is_rate = std::holds_alternative<Rate*>(key.value);
  const auto bound = [&](double value) {
    if (is_duration) return text_of(Duration{value});
    if (is_size) return text_of(Size{static_cast<std::int64_t>(value)});
    if (is_rate) return text_of(Rate{value});
    return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value + 0.0)
                                                                : shortest(value);
  };
  words += is_list ? ", each" : is_duration || is_size || is_rate ? "," : "";
  if (key.max == unbounded) return fmt::format("{} >= {}", words, bound(key.min));
  if (key.min == -unbounded) return fmt::format("{} <= {}", words, bound(key.max));
  return fmt::format("{} from {} to {}", words, bound(key.min), bound(key.max));
}

std::string expected_words(const Key& key) {
  auto words = range_words(key);
  if (std::holds_alternative<Stepped*>(key.value))
    words += ", or several from a step on like {0: 5, 200: 20}";
  if (std::holds_alternative<Rate*>(key.value) || std::holds_alternative<NumberOrAuto*>(key.value))
    words = "auto, or a " + words;
  return words;
}

// Why a value of digits alone was rejected, if the range does not say it.
std::string_view digits_hint(const Key& key, const Source::Entry& entry) {
  if (entry.values.empty()) return "";
  const auto& text = entry.values.front();
  const bool digits = text.size() > 1 && text.find_first_not_of("0123456789") == text.npos;
  const bool is_integer =
      std::holds_alternative<std::int64_t*>(key.value) || std::holds_alternative<Stepped*>(key.value);
  if (!digits || !is_integer) return "";
  return text.front() == '0' ? " without leading zeros" : text.size() > 18 ? " that fits in 64 bits" : "";
}

std::string with_article(const std::string& words) {
  if (words.starts_with("integer")) return "an " + words;
  if (words.starts_with("number") || words.starts_with("duration") || words.starts_with("size") ||
      words.starts_with("list")) {
    return "a " + words;
  }
  return words;
}

bool in_range(const Key& key, double value) { return value >= key.min && value <= key.max; }
bool allowed(const Key&, bool) { return true; }
bool allowed(const Key& key, std::int64_t value) { return in_range(key, static_cast<double>(value)); }
bool allowed(const Key& key, double value) { return in_range(key, value); }
bool allowed(const Key& key, NumberOrAuto value) { return !value.number || in_range(key, *value.number); }
bool allowed(const Key& key, Duration value) { return in_range(key, value.seconds); }
bool allowed(const Key& key, Size value) { return in_range(key, static_cast<double>(value.bytes)); }
bool allowed(const Key& key, Rate value) {
  return value.bits_per_second == 0 || in_range(key, value.bits_per_second);
}
bool allowed(const Key& key, const std::string& value) {
  return key.choices.empty() || std::find(key.choices.begin(), key.choices.end(), value) != key.choices.end();
}

template <class T>
bool fill(const Key& key, const Source::Entry& entry, T& out) {
  T value{};
  if (entry.is_list || entry.by_step || !parse(entry.values.at(0), value) || !allowed(key, value))
    return false;
  out = value;
  return true;
}
bool fill(const Key& key, const Source::Entry& entry, std::vector<std::int64_t>& out) {
  std::vector<std::int64_t> list(entry.values.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!parse(entry.values[i], list[i]) || !allowed(key, list[i])) return false;
  }
  if (entry.is_list) out = std::move(list);
  return entry.is_list;
}
bool fill(const Key& key, const Source::Entry& entry, Stepped& out) {
  Stepped stepped;
  if (!entry.by_step) {
    if (!fill(key, entry, stepped.parts.front().value)) return false;
    out = std::move(stepped);
    return true;
  }
  stepped.parts.clear();
  for (std::size_t i = 0; i + 1 < entry.values.size(); i += 2) {
    Stepped::Part part;
    if (!parse(entry.values[i], part.after) || !parse(entry.values[i + 1], part.value)) return false;
    const bool ascends = stepped.parts.empty() ? part.after == 0 : part.after > stepped.parts.back().after;
    if (!ascends || !allowed(key, part.value)) return false;
    stepped.parts.push_back(part);
  }
  out = std::move(stepped);
  return true;
}

std::string shown_entry(const Source::Entry& entry) {
  if (entry.by_step) {
    std::string text = "{";
    for (std::size_t i = 0; i + 1 < entry.values.size(); i += 2) {
      if (text.size() > 80) return text + ", ...}";
      text += (text.size() > 1 ? ", " : "") + shown(entry.values[i]) + ": " + shown(entry.values[i + 1]);
    }
    return text + "}";
  }
  if (!entry.is_list) return shown(entry.values.at(0));
  std::string text = "[";
  for (const auto& value : entry.values) {
    if (text.size() > 80) return text + ", ...]";
    text += (text.size() > 1 ? ", " : "") + shown(value);
  }
  return text + "]";
}

}  // namespace

std::string_view to_string(Scope scope) {
  switch (scope) {
    case Scope::agreed:
      return "agreed";
    case Scope::per_site:
      return "per_site";
    case Scope::live:
      return "live";
  }
  return "?";
}

// ---- reading into the structs ----

void Reader::visit(const std::string& path, const Key& key) {
  known_.push_back(path);
  const auto& entries = source_.entries();
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.key == path; });
  if (found == entries.end()) return;
  used_[static_cast<std::size_t>(found - entries.begin())] = true;
  if (!std::visit([&](auto* value) { return fill(key, *found, *value); }, key.value)) {
    fail(fmt::format("{} is {} ({}); expected {}{}", path, shown_entry(*found), found->place,
                     with_article(expected_words(key)), digits_hint(key, *found)));
  }
}

void Reader::finish() const {
  const auto unused = std::find(used_.begin(), used_.end(), false);
  if (unused == used_.end()) return;
  const auto& entry = source_.entries()[static_cast<std::size_t>(unused - used_.begin())];
  for (const auto& known : known_) {
    if (entry.key.starts_with(known + ".")) {
      fail(fmt::format("{} is a section ({}: {}); expected a single value", known, entry.place,
                       shown(entry.key)));
    }
    if (known.starts_with(entry.key + ".")) {
      fail(fmt::format("{} is {} ({}); expected a section with keys like {}", shown(entry.key),
                       shown_entry(entry), entry.place, known));
    }
  }
  fail(fmt::format("unknown key {} ({}, value {}); did you mean {}?", shown(entry.key), entry.place,
                   shown_entry(entry), nearest(entry.key, known_)));
}

namespace {

std::string_view last_part(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == key.npos ? key : key.substr(dot + 1);
}

// A correct name in the wrong section, or without a section, is near although many letters differ.
std::size_t key_distance(std::string_view key, std::string_view valid) {
  constexpr std::size_t wrong_section = 2;
  return std::min(edit_distance(key, valid), wrong_section + edit_distance(last_part(key), last_part(valid)));
}

}  // namespace

std::string nearest(std::string_view key, std::span<const std::string> valid) {
  constexpr std::size_t longest = 256;  // an untrusted key must not cost seconds
  key = key.substr(0, longest);
  const auto best = std::min_element(valid.begin(), valid.end(), [&](const auto& a, const auto& b) {
    return key_distance(key, a) < key_distance(key, b);
  });
  return best == valid.end() ? std::string() : *best;
}

// ---- writing from the structs ----

namespace {

/// A free text is quoted where it would read back as something else. A choice is a plain word.
std::string yaml_value(const Item& item) {
  const bool is_word = !item.choices.empty() && !item.value.empty();
  return item.kind == Kind::text && !is_word ? yaml_string(item.value) : item.value;
}

/// In the order of ValueRef.
Kind kind_of(const ValueRef& value) {
  constexpr std::array kinds{Kind::flag,     Kind::integer, Kind::number, Kind::number_or_auto, Kind::text,
                             Kind::duration, Kind::size,    Kind::rate,   Kind::stepped,        Kind::list};
  static_assert(kinds.size() == std::variant_size_v<ValueRef>);
  return kinds.at(value.index());
}

std::vector<std::string> choices_of(const Key& key) {
  if (std::holds_alternative<bool*>(key.value)) return {"true", "false"};
  return {key.choices.begin(), key.choices.end()};
}

void append_yaml(std::string& out, std::span<const Item> items, const std::string& prefix) {
  const std::string indent(2 * static_cast<std::size_t>(std::count(prefix.begin(), prefix.end(), '.')), ' ');
  std::vector<std::string> sections;  // already written: a section may be visited in several parts
  for (const auto& item : items) {
    if (!item.key.starts_with(prefix)) continue;
    const auto rest = item.key.substr(prefix.size());
    const auto dot = rest.find('.');
    const auto name = rest.substr(0, dot);
    if (dot == rest.npos) {
      out += fmt::format("{}{}: {}\n", indent, name, yaml_value(item));
    } else if (std::find(sections.begin(), sections.end(), name) == sections.end()) {
      sections.push_back(name);
      out += fmt::format("{}{}:\n", indent, name);
      append_yaml(out, items, prefix + name + ".");
    }
  }
}

std::string table_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out.push_back('\\');
    out.push_back(c == '\n' ? ' ' : c);
  }
  return out;
}

}  // namespace

void detail::Lister::visit(const std::string& path, const Key& key) {
  items.push_back({path, std::visit([](const auto* value) { return text_of(*value); }, key.value), key.scope,
                   std::string(key.doc), expected_words(key), kind_of(key.value), choices_of(key),
                   key.at_once});
}

std::string yaml_of(std::span<const Item> items) {
  std::string out;
  append_yaml(out, items, "");
  return out;
}

Digest detail::fingerprint_of(std::span<const Item> items) {
  Hasher hasher;
  for (const auto& item : items) {
    // Quoted as in YAML, so that a line break in a value does not look like another key.
    if (item.scope != Scope::per_site) hasher.update(fmt::format("{}={}\n", item.key, yaml_value(item)));
  }
  return hasher.finish();
}

std::string reference_of(std::span<const Item> items) {
  std::string out = "| key | class | default | expected | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const auto& item : items) {
    out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", item.key,
                       item.at_once ? "per_site, at once" : to_string(item.scope),
                       table_cell(yaml_value(item)), table_cell(item.expected), table_cell(item.doc));
  }
  return out;
}

namespace {

const std::string* value_of(const SharedItems& items, std::string_view key) {
  const auto at =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == key; });
  return at == items.end() ? nullptr : &at->second;
}

std::string state_of(const std::string* value) { return value == nullptr ? "unknown" : shown(*value); }

}  // namespace

std::string first_difference(const SharedItems& ours, std::string_view our_name, const SharedItems& theirs,
                             std::string_view their_name) {
  const auto difference = [&](const std::string& key) -> std::string {
    const auto* our = value_of(ours, key);
    const auto* their = value_of(theirs, key);
    if (our != nullptr && their != nullptr && *our == *their) return {};
    return fmt::format("{} is {} at {} and {} at {}", shown(key), state_of(our), our_name, state_of(their),
                       their_name);
  };
  for (const auto* side : {&ours, &theirs}) {
    for (const auto& [key, value] : *side) {
      if (auto found = difference(key); !found.empty()) return found;
    }
  }
  return {};
}

}  // namespace isthmus::config
