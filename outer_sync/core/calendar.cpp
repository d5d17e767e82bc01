#include "isthmus/outer_sync/core/calendar.h"

#include <algorithm>
#include <array>
#include <set>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"
#include "isthmus/base/number.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/text.h"

namespace isthmus::outer_sync {

using Seconds = std::chrono::seconds;

namespace {

constexpr std::size_t max_entries = 64;
constexpr Seconds day{24 * 3600}, week = 7 * day;
constexpr std::array<std::string_view, 7> day_names{"mon", "tue", "wed", "thu", "fri", "sat", "sun"};

[[noreturn]] void refuse(std::string_view entry, const std::string& problem) {
  throw Error(ErrorKind::config, "network.calendar: '" + printable(std::string(entry), 80) + "' " + problem);
}

/// Splits at a character; parts without the blanks at their ends.
std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(at);
    parts.push_back(trimmed(text.substr(0, end), " \t\n\r"));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// Bit 0: Monday. Nullopt if the text is not a list of days.
std::optional<std::uint8_t> days_in(std::string_view text) {
  unsigned days = 0;
  const auto number = [](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(day_names, name) - day_names.begin());
  };
  for (const auto part : split(text, ',')) {
    const auto dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (std::max(first, last) == day_names.size()) return std::nullopt;
    for (auto d = first;; d = (d + 1) % day_names.size()) {  // "sat-mon" goes over the end of the week
      days |= 1U << d;
      if (d == last) break;
    }
  }
  return static_cast<std::uint8_t>(days);
}

/// "8:00", "08:00:30", up to "24:00".
std::optional<Seconds> time_of_day(std::string_view text) {
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) return std::nullopt;
  Seconds out{0};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto number = whole_number(parts[i]);
    if (!number || parts[i].size() > 2 || (i > 0 && (parts[i].size() != 2 || *number > 59)))
      return std::nullopt;
    constexpr std::array<Seconds, 3> units{Seconds(3600), Seconds(60), Seconds(1)};
    out += static_cast<Seconds::rep>(*number) * units.at(i);
  }
  return out <= day ? std::optional(out) : std::nullopt;
}

std::optional<std::pair<Seconds, Seconds>> range_in(std::string_view text) {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto from = time_of_day(text.substr(0, dash)), until = time_of_day(text.substr(dash + 1));
  if (!from || !until || *from == day || *from == *until) return std::nullopt;
  return std::pair(*from, *until);
}

/// "utc", "utc+2", "utc-3:30". Nullopt if the text does not begin with "utc".
std::optional<Seconds> zone_in(std::string_view text) {
  if (!text.starts_with("utc")) return std::nullopt;
  const auto offset = text.substr(3);
  if (offset.empty()) return Seconds(0);
  const auto digits = offset.substr(1);
  const auto hours = whole_number(digits);
  const auto time = hours ? Seconds(3600 * static_cast<Seconds::rep>(std::min<std::uint64_t>(*hours, 99)))
                          : time_of_day(digits).value_or(day);
  if ((offset[0] != '+' && offset[0] != '-') || time > std::chrono::hours(14))
    refuse(text, "is not a time zone; expected utc, utc+HOURS or utc-HOURS:MINUTES");
  return offset[0] == '+' ? time : -time;
}

/// A value of `network.rate`, or "closed".
Allowance allowance_of(std::string_view entry, std::string_view text) {
  if (text == "closed") return {.closed = true};
  struct Keys {
    config::Rate rate;
    void serialize(config::Archive& ar) { ar({"rate", &rate, config::Scope::per_site, "", 1e3, 1e13}); }
  };
  try {
    config::Source source;
    source.put({.key = "rate", .values = {std::string(text)}, .place = {}, .base = {}});
    return {.closed = false, .bytes_per_second = config::read<Keys>(source).rate.bytes_per_second()};
  } catch (const Error&) {
    refuse(entry, "ends in '" + printable(std::string(text), 40) +
                      "'; expected a rate such as 20Mbps, auto or closed");
  }
}

}  // namespace

// ---- reading ----

Calendar::Entry Calendar::entry_of(std::string_view text) {
  std::vector<std::string_view> words = split(text, ' ');
  std::erase(words, std::string_view());
  constexpr auto form = "expected [DAYS] [HH:MM-HH:MM] RATE, such as 'mon-fri 8:00-18:00 20Mbps'";
  if (words.empty() || words.size() > 3) refuse(text, std::string("is not an entry; ") + form);
  Entry entry;
  entry.allowance = allowance_of(text, words.back());
  words.pop_back();
  auto word = words.begin();
  if (word != words.end()) {
    if (const auto days = days_in(*word)) {
      entry.days = *days;
      ++word;
    }
  }
  if (word != words.end()) {
    if (const auto range = range_in(*word)) {
      std::tie(entry.from, entry.until) = *range;
      ++word;
    }
  }
  if (word != words.end()) refuse(text, "contains '" + printable(std::string(*word), 40) + "'; " + form);
  return entry;
}

Calendar Calendar::parse(std::string_view text) {
  if (text.size() > max_text)
    refuse(text.substr(0, 40), "begins a text of " + std::to_string(text.size()) +
                                   " characters; expected at most " + std::to_string(max_text));
  Calendar out;
  out.text_ = trimmed(text, " \t\n\r");
  auto parts = split(out.text_, ';');
  if (const auto zone = zone_in(parts.front())) {
    out.east_ = *zone;
    parts.erase(parts.begin());
  }
  for (const auto part : parts) {
    if (!part.empty()) out.entries_.push_back(entry_of(part));
  }
  if (out.entries_.size() > max_entries)
    refuse(out.text_, "has " + std::to_string(out.entries_.size()) + " entries; expected at most " +
                          std::to_string(max_entries));
  return out;
}

// ---- times ----

bool Calendar::closes() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.allowance.closed; });
}

/// Since Monday 0:00 in the calendar's zone.
Seconds Calendar::in_week(WallTime time) const {
  constexpr auto thursday = 3 * day;  // 1 January 1970
  const auto since = (time.time_since_epoch() + thursday + east_) % week;
  return since < Seconds(0) ? since + week : since;
}

std::optional<Allowance> Calendar::at(WallTime time) const { return at(in_week(time)); }

std::optional<Allowance> Calendar::at(Seconds in_week) const {
  std::optional<Allowance> found;
  for (const auto& entry : entries_) {
    const auto length = entry.until > entry.from ? entry.until - entry.from : entry.until + day - entry.from;
    for (unsigned d = 0; d < day_names.size(); ++d) {
      if ((entry.days >> d & 1U) == 0) continue;
      const auto into = (in_week - d * day - entry.from + 2 * week) % week;
      if (into < length) found = entry.allowance;
    }
  }
  return found;
}

std::optional<WallTime> Calendar::next_change(WallTime time) const {
  const auto now = in_week(time);
  std::set<Seconds> ahead;  // of the beginnings and ends of all entries
  for (const auto& entry : entries_) {
    for (unsigned d = 0; d < day_names.size(); ++d) {
      if ((entry.days >> d & 1U) == 0) continue;
      const auto end = entry.until > entry.from ? entry.until : entry.until + day;
      for (const auto edge : {entry.from, end})
        ahead.insert((d * day + edge - now + 2 * week - Seconds(1)) % week + Seconds(1));
    }
  }
  for (const auto after : ahead) {
    if (at(time + after) != at(time)) return time + after;
  }
  return std::nullopt;
}

// ---- text ----

std::string clock_text(WallTime time) {
  const auto days = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::hh_mm_ss clock(time - days);
  const auto two = [](auto number) {
    return (number.count() < 10 ? "0" : "") + std::to_string(number.count());
  };
  static constexpr std::array<const char*, 7> names{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  const auto weekday = std::chrono::weekday(days).c_encoding();
  return std::string(names.at(weekday)) + " " + two(clock.hours()) + ":" + two(clock.minutes()) +
         (clock.seconds().count() == 0 ? "" : ":" + two(clock.seconds())) + " UTC";
}

std::string Calendar::words_at(WallTime time) const {
  const auto allowance = at(time);
  const auto until = next_change(time);
  return (allowance ? to_string(*allowance) : std::string("network.rate")) +
         (until ? " until " + clock_text(*until) : "");
}

std::string to_string(const Allowance& allowance) {
  if (allowance.closed) return "closed";
  if (allowance.bytes_per_second == 0) return "no limit";
  return "at most " + format_rate(8 * static_cast<double>(allowance.bytes_per_second));
}

}  // namespace isthmus::outer_sync
