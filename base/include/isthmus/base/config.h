#pragma once
// The config archive. A config struct has one function, `void serialize(config::Archive&)`, that visits its
// keys. The YAML reader and writer, the fingerprint, the comparison and the reference in docs are derived
// from it.
//
//   struct OuterConfig {
//     std::int64_t sync_every = 30;
//     OptimizerConfig optimizer;
//     void serialize(config::Archive& ar) {
//       ar({"sync_every", &sync_every, config::Scope::agreed, "inner steps between two syncs (H)", 1});
//       ar.section("optimizer", optimizer);
//     }
//   };
//
// In a file, sections are nested maps or dotted keys ("outer.sync_every: 60"), both at any depth.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::config {

/// Which members must have the same value.
enum class Scope {
  agreed,    ///< equal on all members for the whole run; part of the fingerprint
  per_site,  ///< each member's own (paths, addresses, device)
  live,      ///< agreed too, but can be changed during a run, at a step that all members share
};
[[nodiscard]] std::string_view to_string(Scope scope);

/// A span of time. Written "400ms", "5s", "2min", "1h" or "0"; kept in seconds.
struct Duration {
  double seconds = 0;
  friend bool operator==(const Duration&, const Duration&) = default;
};

/// An amount of data. Written "512kB", "64MB", "20GB", "1TB" (powers of 1000) or as a number of bytes.
struct Size {
  std::int64_t bytes = 0;
  friend bool operator==(const Size&, const Size&) = default;
};

/// The rate of a link. Written "50Mbps", "64kbps" or "2.5Gbps" (powers of 1000), or "auto": to be measured.
struct Rate {
  double bits_per_second = 0;  ///< 0: auto
  [[nodiscard]] std::uint64_t bytes_per_second() const {
    return static_cast<std::uint64_t>(bits_per_second / 8);
  }
  friend bool operator==(const Rate&, const Rate&) = default;
};

/// A number, or "auto": chosen by the program from other settings.
struct NumberOrAuto {
  std::optional<double> number;
  NumberOrAuto() = default;                      ///< auto
  NumberOrAuto(double value) : number(value) {}  // NOLINT: a number stands for itself
  friend bool operator==(const NumberOrAuto&, const NumberOrAuto&) = default;
};

/// A whole number that can change with the step. Written "30", or "{0: 5, 200: 20}": 5, and 20 after step
/// 200.
struct Stepped {
  struct Part {
    std::int64_t after = 0;  ///< valid after this number of steps
    std::int64_t value = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<Part> parts;  ///< ascending, the first one from 0

  Stepped(std::int64_t value = 0) : parts{{0, value}} {}  // NOLINT: a plain number never changes
  friend bool operator==(const Stepped&, const Stepped&) = default;
};

using ValueRef = std::variant<bool*, std::int64_t*, double*, NumberOrAuto*, std::string*, Duration*, Size*,
                              Rate*, Stepped*, std::vector<std::int64_t>*>;

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

struct Key {
  std::string_view name;
  ValueRef value;
  Scope scope;
  std::string_view doc;  ///< one line, with the unit
  /// Inclusive range for numbers (durations in seconds, sizes in bytes, rates in bits per second, each
  /// element of a list). A Rate and a NumberOrAuto can always be "auto".
  double min = -unbounded;
  double max = unbounded;
  /// For strings: the allowed values, in the order shown to users; empty allows any.
  std::vector<std::string_view> choices = {};
  /// For a per_site key: it can be changed during a run, with immediate effect.
  bool at_once = false;
};

class Archive {
 public:
  virtual ~Archive() = default;
  void operator()(const Key& key) { visit(path_ + std::string(key.name), key); }
  template <class Section>
  void section(std::string_view name, Section& section) {
    const auto outer_length = path_.size();
    path_.append(name).append(".");
    section.serialize(*this);
    path_.resize(outer_length);
  }

 protected:
  virtual void visit(const std::string& path, const Key& key) = 0;

 private:
  std::string path_;
};

/// Dotted key -> where and what was written, after `extends` and `--set`. Files are read completely before
/// any key is checked. Errors: a file over 1 MiB, an `extends` chain deeper than 16 or circular, more than
/// 4096 keys and list elements. Relative paths in `extends` are relative to the file that contains them.
class Source {
 public:
  /// Reads a file and the files that it extends. Throws Error(config) naming file and line.
  static Source from_file(const std::filesystem::path& file);
  /// For tests and for configs received over the network; `name` stands for the file in messages. `extends`
  /// is an error: an untrusted text must not open files.
  static Source from_text(std::string_view yaml, std::string_view name);
  /// Applies one `--set a.b=c`; later ones win. The value is read as YAML.
  void set(std::string_view assignment);

  struct Entry {
    std::string key;
    std::vector<std::string> values;  ///< one element unless `is_list`
    bool is_list = false;
    bool by_step = false;        ///< a map with numbers as keys: key, value, key, value, ...
    std::string place;           ///< "configs/a.yaml:12" or "--set"
    std::filesystem::path base;  ///< folder of relative paths in this value; empty for --set
    /// Written by `set`, not in a file.
    [[nodiscard]] bool assigned() const { return place == "--set"; }
  };
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Null if the key is not written.
  [[nodiscard]] const Entry* find(std::string_view key) const;
  /// Replaces the entry of the same key, or adds one.
  void put(Entry entry);
  /// Removes and returns all entries below "SECTION."; their keys are not shortened. Throws Error(config) if
  /// the section is a plain value.
  [[nodiscard]] std::vector<Entry> take_section(std::string_view section);

 private:
  std::vector<Entry> entries_;
};

/// Fills the config from the source. Throws Error(config) naming place, key, value, what was expected and,
/// for an unknown key, the nearest valid one. Keys that the source lacks keep their defaults.
class Reader : public Archive {
 public:
  explicit Reader(const Source& source) : source_(source), used_(source.entries().size(), false) {}
  /// Throws for the first key that no struct visited.
  void finish() const;

 protected:
  void visit(const std::string& path, const Key& key) override;

 private:
  const Source& source_;
  std::vector<bool> used_;
  std::vector<std::string> known_;
};

/// The type of a key's value.
enum class Kind { flag, integer, number, number_or_auto, text, duration, size, rate, stepped, list };

/// One key as text. `value` is canonical: the shortest form that reads back to the same value.
struct Item {
  std::string key;
  std::string value;
  Scope scope;
  std::string doc;
  std::string expected;  ///< type, range or choices in words: "integer >= 1"
  Kind kind = Kind::text;
  std::vector<std::string> choices{};  ///< values allowed, if only these are
  bool at_once = false;                ///< Key::at_once
};

namespace detail {
class Lister : public Archive {
 public:
  std::vector<Item> items;

 protected:
  void visit(const std::string& path, const Key& key) override;
};
[[nodiscard]] Digest fingerprint_of(std::span<const Item> items);
}  // namespace detail

/// Nested YAML of these keys.
[[nodiscard]] std::string yaml_of(std::span<const Item> items);
/// Markdown table of these keys.
[[nodiscard]] std::string reference_of(std::span<const Item> items);

template <class Config>
[[nodiscard]] std::vector<Item> list(Config& config) {
  detail::Lister lister;
  config.serialize(lister);
  return std::move(lister.items);
}

template <class Config>
[[nodiscard]] Config read(const Source& source) {
  Config config;
  Reader reader(source);
  config.serialize(reader);
  reader.finish();
  return config;
}

/// Nested YAML with every key; `read` turns it into an equal config.
template <class Config>
[[nodiscard]] std::string to_yaml(Config& config) {
  return yaml_of(list(config));
}

/// Digest of the agreed and live keys ("key=value" lines in the order of `serialize`).
template <class Config>
[[nodiscard]] Digest fingerprint(Config& config) {
  return detail::fingerprint_of(list(config));
}

/// Markdown table of all keys: name, class, default, expected value, meaning. docs/config.md is generated by
/// it.
template <class Config>
[[nodiscard]] std::string reference(Config& config) {
  return reference_of(list(config));
}

/// Agreed and live keys with their canonical text, in the order of `serialize`; members compare these.
using SharedItems = std::vector<std::pair<std::string, std::string>>;

template <class Config>
[[nodiscard]] SharedItems shared_items(Config& config) {
  SharedItems shared;
  for (auto& item : list(config)) {
    if (item.scope != Scope::per_site) shared.emplace_back(std::move(item.key), std::move(item.value));
  }
  return shared;
}

/// Empty if both have the same keys and values; otherwise names the first that differs and both values:
/// "outer.sync_every is 30 at the coordinator and 60 at eu-1".
[[nodiscard]] std::string first_difference(const SharedItems& ours, std::string_view our_name,
                                           const SharedItems& theirs, std::string_view their_name);

/// The valid key nearest to a misspelt one by edit distance.
[[nodiscard]] std::string nearest(std::string_view key, std::span<const std::string> valid);

}  // namespace isthmus::config
