// Reads YAML into flat entries.

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include "config_text.h"
#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"

namespace isthmus::config {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t max_bytes = std::size_t{1} << 20;
constexpr std::size_t max_values = 4096;
constexpr std::size_t max_key = 256;
constexpr std::size_t max_chain = 16;
constexpr std::size_t max_files = 64;
constexpr int max_nesting = 32;

// Where a text came from, for messages.
struct Origin {
  std::string name;
  bool has_lines = true;
  [[nodiscard]] std::string place(const YAML::Mark& mark) const {
    return has_lines && !mark.is_null() ? fmt::format("{}:{}", name, mark.line + 1) : name;
  }
};

// Records only where the latest document started.
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

// YAML::Load reads one document and ignores what follows it, and YAML::LoadAll never returns from a stray
// comma. So the end of the document is checked first.
void check_single_document(const std::string& text, const Origin& origin) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStart start;
  if (parser.HandleNextDocument(start) && parser.HandleNextDocument(start)) {
    fail(origin.place(start.mark) + ": this is not YAML: expected the end of the text here");
  }
}

YAML::Node parse_yaml(std::string text, const Origin& origin) {
  // An end mark: without it yaml-cpp silently closes a missing quote at the end of the file, with everything
  // that the quote swallowed.
  text += text.ends_with('\n') ? "..." : "\n...";
  try {
    check_single_document(text, origin);
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    // The message may quote the text.
    fail(fmt::format("{}: this is not YAML: {}", origin.place(e.mark), printable_ascii(e.msg, 200)));
  }
}

// Flattens nested maps to dotted keys. Aliases are followed, so counting limits here what a small file can
// expand to.
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
      if (key.size() > max_key) {
        fail(fmt::format("{}: key {} is longer than {} bytes", place, shown(key), max_key));
      }
      once(seen, key, place);
      count(1, 0, place);
      if (depth > max_nesting) {
        fail(fmt::format("{}: {} is nested more than {} deep", place, shown(key), max_nesting));
      }
      value(pair.second, key, place, depth);
    }
  }

  void value(const YAML::Node& node, const std::string& key, const std::string& place, int depth = 0) {
    const bool by_step = is_by_step(node);
    if (node.IsMap() && node.size() > 0 && !by_step) return map(node, key + ".", depth + 1);
    Source::Entry entry{key, {}, node.IsSequence(), by_step, place, {}};
    if (by_step) {
      for (const auto& pair : node) {
        count(2, 0, place);
        entry.values.push_back(scalar(pair.first, key, place));
        entry.values.push_back(scalar(pair.second, key, place));
      }
    } else if (node.IsSequence()) {
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
  // The keys of a section are never numbers.
  static bool is_by_step(const YAML::Node& node) {
    if (!node.IsMap() || node.size() == 0) return false;
    return std::all_of(node.begin(), node.end(), [](const auto& pair) {
      return pair.first.IsScalar() && !pair.first.Scalar().empty() &&
             pair.first.Scalar().find_first_not_of("0123456789") == std::string::npos;
    });
  }

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
      fail(fmt::format("{}: more than {} keys and list elements", place, max_values));
    }
    if (bytes > bytes_left_) fail(fmt::format("{}: values take more than {} bytes", place, max_bytes));
    values_left_ -= values;
    bytes_left_ -= bytes;
  }

  static void once(std::map<std::string, std::string>& seen, const std::string& key,
                   const std::string& place) {
    const auto [first, is_new] = seen.emplace(key, place);
    if (!is_new) {
      fail(fmt::format("{}: {} is given twice; it is already set at {}", place, shown(key), first->second));
    }
  }

  const Origin& origin_;
  std::size_t& values_left_;
  std::size_t& bytes_left_;
  std::map<std::string, std::string> keys_;
};

std::string read_config(const fs::path& file, const std::string& asked_by) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) {
    fail(fmt::format("{}cannot read {}: it is a folder", asked_by, file.string()));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fail(
        fmt::format("{}cannot read {}: {}", asked_by, file.string(), std::generic_category().message(errno)));
  }
  std::string text(max_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) fail(fmt::format("{}cannot read {}", asked_by, file.string()));
  return text;
}

}  // namespace

struct SourceBuilder {
  Source source;
  std::vector<fs::path> open;  // the chain of files being read
  std::size_t files = 0;
  std::size_t values_left = max_values;
  std::size_t bytes_left = max_bytes;

  std::vector<Source::Entry> flatten(const std::string& text, const Origin& origin) {
    if (text.size() > max_bytes) fail(origin.name + ": larger than 1 MiB; expected a config");
    Flattener flattener(origin, values_left, bytes_left);
    const auto root = parse_yaml(text, origin);
    if (root.IsMap()) {
      flattener.map(root, "");
    } else if (root.IsDefined() && !root.IsNull()) {
      fail(origin.place(root.Mark()) + ": found no map of keys; expected lines like outer.sync_every: 30");
    }
    return std::move(flattener.entries);
  }

  // `asked_by` begins the messages about a file that another one extends: "configs/a.yaml:1: extends: ".
  void add_file(const fs::path& file, const std::string& asked_by) {
    std::error_code ignored;
    const auto real = fs::weakly_canonical(file, ignored);
    if (std::find(open.begin(), open.end(), real) != open.end()) {
      fail(fmt::format("{}{} is already being read; a chain of extends must not be circular", asked_by,
                       file.string()));
    }
    if (open.size() > max_chain) fail(fmt::format("{}more than {} files deep", asked_by, max_chain));
    if (++files > max_files) fail(fmt::format("{}more than {} files in all", asked_by, max_files));
    open.push_back(real);
    auto entries = flatten(read_config(file, asked_by), {file.string()});
    for (auto& entry : entries) entry.base = file.parent_path();
    for (const auto& entry : entries) extend(entry);
    for (auto& entry : entries) put(std::move(entry));
    open.pop_back();
  }

  // Extended files are read first, so that the extending file's keys win.
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

const Source::Entry* Source::find(std::string_view key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<Source::Entry> Source::take_section(std::string_view section) {
  if (const auto* plain = find(section)) {
    fail(fmt::format("{} is a plain value ({}); expected a section with keys below it", shown(section),
                     plain->place));
  }
  const auto is_inside = [prefix = std::string(section) + "."](const Entry& e) {
    return e.key.starts_with(prefix);
  };
  const auto first_inside =
      std::stable_partition(entries_.begin(), entries_.end(), [&](const Entry& e) { return !is_inside(e); });
  std::vector<Entry> taken(std::make_move_iterator(first_inside), std::make_move_iterator(entries_.end()));
  entries_.erase(first_inside, entries_.end());
  return taken;
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

}  // namespace isthmus::config
