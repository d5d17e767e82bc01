#include "isthmus/base/config.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "isthmus/base/error.h"

namespace isthmus::config {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 20;
constexpr std::size_t most_values = 4096;
constexpr std::size_t longest_key = 256;
constexpr std::size_t deepest_chain = 16;
constexpr std::size_t most_files = 64;
constexpr int deepest_nesting = 32;

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::config, message); }

// Values as text

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
  // Words that some YAML reader takes for a bool or a null.
  constexpr std::array<std::string_view, 9> words = {"true", "false", "null", "yes", "no",
                                                     "on",   "off",   "y",    "n"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  return std::find(words.begin(), words.end(), lower) == words.end();
}

std::string yaml_string(std::string_view text) {
  return reads_as_itself(text) ? std::string(text) : double_quoted(text);
}

// Text of others in a message: one line, of bounded length.
std::string shown(std::string_view text) {
  constexpr std::size_t longest = 80;
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789.-+") == text.npos;
  if (text.size() <= longest) return is_number ? std::string(text) : yaml_string(text);
  auto end = longest;
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;  // not in the middle of a UTF-8 character
  return double_quoted(text.substr(0, end)) + "...";
}

template <class Items, class ToText>
std::string joined(const Items& items, const ToText& to_text) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ", ";
    out += to_text(item);
  }
  return out;
}

std::string shortest(double value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value == 0 ? 0.0 : value);
  return {buffer.data(), result.ptr};
}

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr std::array<Unit, 4> units = {{{"h", 3600}, {"min", 60}, {"s", 1}, {"ms", 0.001}}};

// Milliseconds are divided, not multiplied by 0.001: 400ms is then the double nearest to 0.4.
double in_seconds(double number, const Unit& unit) {
  return unit.seconds < 1 ? number / 1000 : number * unit.seconds;
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return shortest(value); }
std::string text_of(const std::string& value) { return value; }
std::string text_of(const std::vector<std::int64_t>& value) {
  return "[" + joined(value, [](std::int64_t item) { return std::to_string(item); }) + "]";
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

template <class T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

bool parse(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool parse(std::string_view text, std::int64_t& value) {
  // A leading zero is refused: some read "010" as eight.
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

// What a key expects

std::string type_words(const bool*) { return "true or false"; }
std::string type_words(const std::int64_t*) { return "integer"; }
std::string type_words(const double*) { return "number"; }
std::string type_words(const std::string*) { return "text"; }
std::string type_words(const Duration*) { return "duration like 400ms, 5s, 2min or 1h"; }
std::string type_words(const std::vector<std::int64_t>*) { return "list of integers like [1, 2]"; }

std::string expected_words(const Key& key) {
  auto words = std::visit([](const auto* value) { return type_words(value); }, key.value);
  if (!key.choices.empty()) {
    return "one of " + joined(key.choices, [](std::string_view choice) { return std::string(choice); });
  }
  if (key.min == -unbounded && key.max == unbounded) return words;
  const bool is_list = std::holds_alternative<std::vector<std::int64_t>*>(key.value);
  const bool is_duration = std::holds_alternative<Duration*>(key.value);
  const auto bound = [&](double value) {
    if (is_duration) return text_of(Duration{value});
    return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value + 0.0)
                                                                : shortest(value);
  };
  words += is_list ? ", each" : is_duration ? "," : "";
  if (key.max == unbounded) return fmt::format("{} >= {}", words, bound(key.min));
  if (key.min == -unbounded) return fmt::format("{} <= {}", words, bound(key.max));
  return fmt::format("{} from {} to {}", words, bound(key.min), bound(key.max));
}

// Why digits alone were refused, where the range does not say it.
std::string_view digits_hint(const Key& key, const Source::Entry& entry) {
  if (entry.values.empty()) return "";
  const auto& text = entry.values.front();
  const bool digits = text.size() > 1 && text.find_first_not_of("0123456789") == text.npos;
  if (!digits || !std::holds_alternative<std::int64_t*>(key.value)) return "";
  return text.front() == '0' ? " without leading zeros" : text.size() > 18 ? " that fits in 64 bits" : "";
}

std::string with_article(const std::string& words) {
  if (words.starts_with("integer")) return "an " + words;
  if (words.starts_with("number") || words.starts_with("duration") || words.starts_with("list")) {
    return "a " + words;
  }
  return words;
}

bool in_range(const Key& key, double value) { return value >= key.min && value <= key.max; }
bool allowed(const Key&, bool) { return true; }
bool allowed(const Key& key, std::int64_t value) { return in_range(key, static_cast<double>(value)); }
bool allowed(const Key& key, double value) { return in_range(key, value); }
bool allowed(const Key& key, Duration value) { return in_range(key, value.seconds); }
bool allowed(const Key& key, const std::string& value) {
  return key.choices.empty() || std::find(key.choices.begin(), key.choices.end(), value) != key.choices.end();
}

template <class T>
bool fill(const Key& key, const Source::Entry& entry, T& out) {
  T value{};
  if (entry.is_list || !parse(entry.values.at(0), value) || !allowed(key, value)) return false;
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

std::string shown(const Source::Entry& entry) {
  if (!entry.is_list) return shown(entry.values.at(0));
  std::string text = "[";
  for (const auto& value : entry.values) {
    if (text.size() > 80) return text + ", ...]";
    text += (text.size() > 1 ? ", " : "") + shown(value);
  }
  return text + "]";
}

// From YAML

// Where a text came from, for messages.
struct Origin {
  std::string name;
  bool has_lines = true;
  [[nodiscard]] std::string place(const YAML::Mark& mark) const {
    return has_lines && !mark.is_null() ? fmt::format("{}:{}", name, mark.line + 1) : name;
  }
};

// Knows only where the latest document started.
class DocumentStart : public YAML::EventHandler {
 public:
  YAML::Mark mark;

  void OnDocumentStart(const YAML::Mark& at) override { mark = at; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}
};

// YAML::Load reads one document and says nothing of what follows it, and YAML::LoadAll never returns from a
// stray comma: so the end is looked for first.
void check_single_document(const std::string& text, const Origin& origin) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStart start;
  if (parser.HandleNextDocument(start) && parser.HandleNextDocument(start)) {
    fail(origin.place(start.mark) + ": this is not YAML: expected the end of the text here");
  }
}

YAML::Node parse_yaml(std::string text, const Origin& origin) {
  // An end mark, for yaml-cpp closes a forgotten quote silently at the end of the file, with all that it
  // swallowed.
  text += text.ends_with('\n') ? "..." : "\n...";
  try {
    check_single_document(text, origin);
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    auto reason = e.msg.substr(0, 200);  // it may quote the text
    std::replace_if(
        reason.begin(), reason.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
    fail(fmt::format("{}: this is not YAML: {}", origin.place(e.mark), reason));
  }
}

// Nested maps to dotted keys. Aliases are followed, so that what a small file expands to is bounded here, by
// counting.
class Flattener {
 public:
  Flattener(const Origin& origin, std::size_t& values_left, std::size_t& bytes_left)
      : origin_(origin), values_left_(values_left), bytes_left_(bytes_left) {}

  void map(const YAML::Node& node, const std::string& prefix, int depth = 1) {
    std::map<std::string, std::string> seen;
    for (const auto& pair : node) {
      const auto place = origin_.place(pair.first.Mark());
      if (!pair.first.IsScalar()) {
        fail(place + ": found a key that is not plain text; expected keys like outer.sync_every");
      }
      const auto& name = pair.first.Scalar();
      const auto key = prefix + name;
      if (key.size() > longest_key) {
        fail(fmt::format("{}: key {} is longer than {} bytes", place, shown(key), longest_key));
      }
      once(seen, key, place);
      count(1, 0, place);
      if (depth > deepest_nesting) {
        fail(fmt::format("{}: {} is nested more than {} deep", place, shown(key), deepest_nesting));
      }
      value(pair.second, key, place, depth);
    }
  }

  void value(const YAML::Node& node, const std::string& key, const std::string& place, int depth = 0) {
    if (node.IsMap() && node.size() > 0) return map(node, key + ".", depth + 1);
    Source::Entry entry{key, {}, node.IsSequence(), place, {}};
    if (node.IsSequence()) {
      for (const auto& item : node) {
        count(1, 0, place);
        entry.values.push_back(scalar(item, key, place));
      }
    } else {
      entry.values.push_back(scalar(node, key, place));
    }
    once(keys_, key, place);
    entries.push_back(std::move(entry));
  }

  std::vector<Source::Entry> entries;

 private:
  std::string scalar(const YAML::Node& node, const std::string& key, const std::string& place) {
    if (node.IsMap() && node.size() == 0) {
      fail(fmt::format("{}: {} is an empty map; leave it out or give it keys", place, shown(key)));
    }
    if (!node.IsDefined() || node.IsNull()) {
      fail(fmt::format("{}: {} has no value; expected one (an empty text is written \"\")", place,
                       shown(key)));
    }
    if (!node.IsScalar()) {
      fail(fmt::format("{}: {} is a list that holds a list or a map; expected plain values", place,
                       shown(key)));
    }
    // "?" is a plain value, "!" a quoted one.
    if (const auto& tag = node.Tag(); tag != "?" && tag != "!" && !tag.empty()) {
      fail(fmt::format("{}: {} has the tag {}; expected a value without one", place, shown(key), shown(tag)));
    }
    count(0, node.Scalar().size(), place);
    return node.Scalar();
  }

  void count(std::size_t values, std::size_t bytes, const std::string& place) {
    if (values > values_left_) {
      fail(fmt::format("{}: more than {} keys and list elements", place, most_values));
    }
    if (bytes > bytes_left_) fail(fmt::format("{}: values take more than {} bytes", place, most_bytes));
    values_left_ -= values;
    bytes_left_ -= bytes;
  }

  static void once(std::map<std::string, std::string>& seen, const std::string& key,
                   const std::string& place) {
    const auto [first, is_new] = seen.emplace(key, place);
    if (!is_new) {
      fail(fmt::format("{}: {} is given twice; it stands at {} already", place, shown(key), first->second));
    }
  }

  const Origin& origin_;
  std::size_t& values_left_;
  std::size_t& bytes_left_;
  std::map<std::string, std::string> keys_;
};

std::string read_text(const fs::path& file, const std::string& asked_by) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) {
    fail(fmt::format("{}cannot read {}: it is a folder", asked_by, file.string()));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fail(
        fmt::format("{}cannot read {}: {}", asked_by, file.string(), std::generic_category().message(errno)));
  }
  std::string text(most_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) fail(fmt::format("{}cannot read {}", asked_by, file.string()));
  return text;
}

}  // namespace

struct SourceBuilder {
  Source source;
  std::vector<fs::path> open;  // the chain of files that are being read
  std::size_t files = 0;
  std::size_t values_left = most_values;
  std::size_t bytes_left = most_bytes;

  std::vector<Source::Entry> flatten(const std::string& text, const Origin& origin) {
    if (text.size() > most_bytes) fail(origin.name + ": larger than 1 MiB; expected a config");
    Flattener flattener(origin, values_left, bytes_left);
    const auto root = parse_yaml(text, origin);
    if (root.IsMap()) {
      flattener.map(root, "");
    } else if (root.IsDefined() && !root.IsNull()) {
      fail(origin.place(root.Mark()) + ": found no map of keys; expected lines like outer.sync_every: 30");
    }
    return std::move(flattener.entries);
  }

  // `asked_by` starts the messages about a file that another one extends: "configs/a.yaml:1: extends: ".
  void add_file(const fs::path& file, const std::string& asked_by) {
    std::error_code ignored;
    const auto real = fs::weakly_canonical(file, ignored);
    if (std::find(open.begin(), open.end(), real) != open.end()) {
      fail(fmt::format("{}{} is being read already; a chain of extends must end", asked_by, file.string()));
    }
    if (open.size() > deepest_chain) fail(fmt::format("{}more than {} files deep", asked_by, deepest_chain));
    if (++files > most_files) fail(fmt::format("{}more than {} files in all", asked_by, most_files));
    open.push_back(real);
    auto entries = flatten(read_text(file, asked_by), {file.string()});
    for (auto& entry : entries) entry.base = file.parent_path();
    for (const auto& entry : entries) extend(entry);
    for (auto& entry : entries) put(std::move(entry));
    open.pop_back();
  }

  // What is extended comes first, so that the keys of the extending file win.
  void extend(const Source::Entry& entry) {
    if (entry.key != "extends") return;
    for (const auto& name : entry.values) {
      if (name.empty()) fail(entry.place + ": extends is empty; expected the name of a file");
      add_file((entry.base / name).lexically_normal(), entry.place + ": extends: ");
    }
  }

  void put(Source::Entry entry) {
    if (entry.key == "extends") return;
    if (entry.key.starts_with("extends.") || entry.key.ends_with(".extends")) {
      fail(fmt::format(
          "{}: found {}; expected extends at the top of a file, with a file name or a list of them",
          entry.place, shown(entry.key)));
    }
    source.put(std::move(entry));
  }
};

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

Source Source::from_file(const fs::path& file) {
  SourceBuilder builder;
  builder.add_file(file, "");
  return std::move(builder.source);
}

Source Source::from_text(std::string_view yaml, std::string_view name) {
  SourceBuilder builder;
  for (auto& entry : builder.flatten(std::string(yaml), {std::string(name)})) {
    if (entry.key == "extends") fail(entry.place + ": extends works in a file only");
    builder.put(std::move(entry));
  }
  return std::move(builder.source);
}

void Source::set(std::string_view assignment) {
  const auto equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    fail(fmt::format("--set {}: expected key=value, for example --set outer.sync_every=60",
                     shown(assignment)));
  }
  const std::string key(assignment.substr(0, equals));
  const Origin origin{"--set", false};
  SourceBuilder builder;
  Flattener flattener(origin, builder.values_left, builder.bytes_left);
  flattener.value(parse_yaml(std::string(assignment.substr(equals + 1)), origin), key, origin.name);
  for (auto& entry : flattener.entries) {
    if (entry.key == "extends") fail("--set extends: expected extends in a file");
    put(std::move(entry));
  }
}

void Source::put(Entry entry) {
  const auto old =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == entry.key; });
  if (old == entries_.end()) {
    entries_.push_back(std::move(entry));
  } else {
    *old = std::move(entry);
  }
}

// Into the structs

void Reader::visit(const std::string& path, const Key& key) {
  known_.push_back(path);
  const auto& entries = source_.entries();
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.key == path; });
  if (found == entries.end()) return;
  used_[static_cast<std::size_t>(found - entries.begin())] = true;
  if (!std::visit([&](auto* value) { return fill(key, *found, *value); }, key.value)) {
    fail(fmt::format("{} is {} ({}); expected {}{}", path, shown(*found), found->place,
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
      fail(fmt::format("{} is {} ({}); expected a section with keys like {}", shown(entry.key), shown(entry),
                       entry.place, known));
    }
  }
  fail(fmt::format("unknown key {} ({}, value {}); did you mean {}?", shown(entry.key), entry.place,
                   shown(entry), nearest(entry.key, known_)));
}

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view last_part(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == key.npos ? key : key.substr(dot + 1);
}

// A right name in the wrong section, or in none, is near although many letters differ.
std::size_t key_distance(std::string_view key, std::string_view valid) {
  constexpr std::size_t wrong_section = 2;
  return std::min(edit_distance(key, valid), wrong_section + edit_distance(last_part(key), last_part(valid)));
}

}  // namespace

std::string nearest(std::string_view key, std::span<const std::string> valid) {
  key = key.substr(0, longest_key);  // a stranger's key must not cost seconds
  const auto best = std::min_element(valid.begin(), valid.end(), [&](const auto& a, const auto& b) {
    return key_distance(key, a) < key_distance(key, b);
  });
  return best == valid.end() ? std::string() : *best;
}

// Out of the structs

namespace detail {

namespace {

std::string yaml_value(const Item& item) { return item.is_text ? yaml_string(item.value) : item.value; }

void append_yaml(std::string& out, std::span<const Item> items, const std::string& prefix) {
  const std::string indent(2 * static_cast<std::size_t>(std::count(prefix.begin(), prefix.end(), '.')), ' ');
  std::vector<std::string> sections;  // written already: a section may be visited in several parts
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

void Lister::visit(const std::string& path, const Key& key) {
  items.push_back({path, std::visit([](const auto* value) { return text_of(*value); }, key.value), key.scope,
                   std::string(key.doc), expected_words(key),
                   std::holds_alternative<std::string*>(key.value)});
}

std::string yaml_of(std::span<const Item> items) {
  std::string out;
  append_yaml(out, items, "");
  return out;
}

Digest fingerprint_of(std::span<const Item> items) {
  Hasher hasher;
  for (const auto& item : items) {
    // Quoted as in YAML: a line break inside a value must not look like a further key.
    if (item.scope != Scope::per_site) hasher.update(fmt::format("{}={}\n", item.key, yaml_value(item)));
  }
  return hasher.finish();
}

std::string reference_of(std::span<const Item> items) {
  std::string out = "| key | class | default | expected | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const auto& item : items) {
    out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", item.key, to_string(item.scope),
                       table_cell(yaml_value(item)), table_cell(item.expected), table_cell(item.doc));
  }
  return out;
}

}  // namespace detail

std::string first_difference(std::span<const Item> here,
                             std::span<const std::pair<std::string, std::string>> there,
                             std::string_view there_name) {
  for (const auto& item : here) {
    if (item.scope == Scope::per_site) continue;
    const auto other =
        std::find_if(there.begin(), there.end(), [&](const auto& pair) { return pair.first == item.key; });
    if (other == there.end()) {
      return fmt::format("{} is {} here and unknown at {}", item.key, shown(item.value), there_name);
    }
    if (other->second != item.value) {
      return fmt::format("{} is {} here and {} at {}", item.key, shown(item.value), shown(other->second),
                         there_name);
    }
  }
  for (const auto& [key, value] : there) {
    if (std::none_of(here.begin(), here.end(), [&key = key](const Item& item) { return item.key == key; })) {
      return fmt::format("{} is unknown here and {} at {}", shown(key), shown(value), there_name);
    }
  }
  return {};
}

}  // namespace isthmus::config
