#pragma once
// When and how fast a member may send: the value of `network.calendar`, as a function of the time of the
// week. Members, the coordinator and `isthmus plan` use it. Pure: the time goes in.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isthmus::outer_sync {

/// The system's clock, in UTC.
using WallTime = std::chrono::sys_seconds;

/// How fast a member may send at a time.
struct Allowance {
  bool closed = false;                 ///< nothing but control messages
  std::uint64_t bytes_per_second = 0;  ///< 0: no limit
  friend bool operator==(const Allowance&, const Allowance&) = default;
};

/// Entries separated by semicolons: "[DAYS] [HH:MM-HH:MM] RATE|auto|closed", such as
/// "utc+1; mon-fri 8:00-18:00 20Mbps; sat,sun closed". The last entry that contains a time applies to it.
class Calendar {
 public:
  /// Longest text that is read.
  static constexpr std::size_t max_text = 1024;

  /// Says nothing about any time.
  Calendar() = default;
  /// Throws Error(config) with the key, the invalid entry and the expected form.
  static Calendar parse(std::string_view text);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Whether any entry is `closed`.
  [[nodiscard]] bool closes() const;
  /// Nullopt if no entry contains the time.
  [[nodiscard]] std::optional<Allowance> at(WallTime time) const;
  /// The first later time at which `at` has another value; nullopt if it is always the same.
  [[nodiscard]] std::optional<WallTime> next_change(WallTime time) const;
  /// "closed until Mon 18:00 UTC"; "network.rate" stands for no entry.
  [[nodiscard]] std::string words_at(WallTime time) const;

 private:
  using Seconds = std::chrono::seconds;
  /// Times of the day; an entry that ends before it begins ends on the next day.
  struct Entry {
    std::uint8_t days = 0x7f;  ///< on which it begins; bit 0: Monday
    Seconds from{0}, until{24 * 3600};
    Allowance allowance;
  };
  [[nodiscard]] static Entry entry_of(std::string_view text);
  [[nodiscard]] Seconds in_week(WallTime time) const;
  [[nodiscard]] std::optional<Allowance> at(Seconds in_week) const;

  std::string text_;
  std::vector<Entry> entries_;
  Seconds east_{0};  ///< the calendar's times minus UTC
};

/// "Mon 18:00 UTC"; with seconds unless they are 0.
[[nodiscard]] std::string clock_text(WallTime time);
/// "closed", "at most 20 Mbit/s" or "no limit".
[[nodiscard]] std::string to_string(const Allowance& allowance);

}  // namespace isthmus::outer_sync
