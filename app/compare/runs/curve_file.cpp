// Reads a loss curve that was made elsewhere.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "compare/runs/run_record.h"
#include "isthmus/base/error.h"
#include "isthmus/base/text.h"
#include "isthmus/base/text_file.h"

namespace isthmus::app {

namespace {

constexpr std::size_t max_bytes = 64 << 20, max_points = 1'000'000, max_columns = 64;

std::vector<std::string> values_in(std::string_view line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 0; begin <= line.size() && cells.size() < max_columns;) {
    const auto end = std::min(line.find(',', begin), line.size());
    cells.emplace_back(trimmed(line.substr(begin, end - begin), " \t\""));
    begin = end + 1;
  }
  return cells;
}

std::optional<double> parsed_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && end == text.data() + text.size();
  return all && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

class CurveReader {
 public:
  explicit CurveReader(const std::filesystem::path& file) : file_(file) {}

  std::vector<CurvePoint> read() {
    const auto text = read_text(file_, max_bytes);
    std::string_view rest = text;
    if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
    while (!rest.empty()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      auto line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      if (!line.empty() && line.front() != '#') take(values_in(line));
    }
    if (points_.size() < 2)
      fail(fmt::format("the file has {} points; expected two or more lines of tokens,loss", points_.size()));
    return std::move(points_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    data_error(fmt::format("{}:{}: {}", file_.string(), line_, what));
  }

  void take(const std::vector<std::string>& cells) {
    if (columns_.empty()) {
      const bool header = !parsed_number(cells.front());
      columns_ = {{"tokens", 0}, {"loss", 1}};
      if (header) return take_header(cells);
    }
    CurvePoint point{.tokens = *cell(cells, "tokens"),
                     .seconds = cell(cells, "seconds"),
                     .bytes = cell(cells, "bytes"),
                     .loss = *cell(cells, "loss")};
    if (!points_.empty() && point.tokens <= points_.back().tokens)
      fail(fmt::format("tokens is {} after {}; expected a higher number on each line", point.tokens,
                       points_.back().tokens));
    if (points_.size() == max_points) fail(fmt::format("more than {} points", max_points));
    points_.push_back(point);
  }

  void take_header(const std::vector<std::string>& names) {
    columns_.clear();
    for (std::size_t i = 0; i < names.size(); ++i) columns_.emplace(names[i], i);
    for (const auto* needed : {"tokens", "loss"}) {
      if (!columns_.contains(needed))
        fail(
            fmt::format("the first line has no column {}; expected tokens,loss, and optionally seconds and "
                        "bytes",
                        needed));
    }
  }

  /// nullopt for a column that the file does not have.
  std::optional<double> cell(const std::vector<std::string>& cells, const std::string& name) const {
    const auto column = columns_.find(name);
    if (column == columns_.end()) return {};
    if (column->second >= cells.size()) fail(fmt::format("the line has no {}; expected tokens,loss", name));
    const auto value = parsed_number(cells[column->second]);
    if (!value)
      fail(fmt::format("{} is '{}'; expected a number that is not negative", name,
                       printable(cells[column->second], 40)));
    return value;
  }

  const std::filesystem::path& file_;
  std::map<std::string, std::size_t> columns_;
  std::vector<CurvePoint> points_;
  std::size_t line_ = 0;
};

}  // namespace

RunRecord read_curve(const std::filesystem::path& csv) {
  RunRecord record;
  record.source = csv;
  record.curve = CurveReader(csv).read();
  return record;
}

}  // namespace isthmus::app
