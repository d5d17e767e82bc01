#include "isthmus/base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "isthmus/base/say.h"
#include "isthmus/base/text.h"

namespace isthmus {

namespace {

constexpr std::size_t columns = 79;
constexpr std::size_t max_bar = 14, min_bar = 4;
constexpr std::string_view erase_line = "\r\x1b[K";
constexpr auto redraw_every = std::chrono::milliseconds(50);

struct Scaled {
  std::string number;
  std::string_view prefix;
};

// Three to four digits and an SI prefix; 999.96 becomes "1.0 k", never "1000.0".
Scaled scaled(double value, int decimals_of_ones = 0) {
  if (!std::isfinite(value)) return {"?", ""};
  constexpr std::array<std::string_view, 7> prefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t i = 0;
  for (; std::abs(value) >= (i == 0 ? 999.5 : 999.95) && i + 1 < prefixes.size(); ++i) value /= 1000;
  if (std::abs(value) >= 1000) return {fmt::format("{:.0e}", value), prefixes[i]};
  return {fmt::format("{:.{}f}", value, i == 0 ? decimals_of_ones : 1), prefixes[i]};
}

// The text may include peers' names: control characters would move the cursor. A column is a code point here.
std::string clipped(std::string_view text, std::size_t width) {
  std::string out;
  std::size_t used = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xc0) == 0x80;
    if (!continues && ++used > width) break;
    out.push_back(byte < 0x20 || byte == 0x7f ? ' ' : c);
  }
  return out;
}

std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return "?";
  return std::abs(loss) < 1000 ? fmt::format("{:.3f}", loss) : fmt::format("{:.2e}", loss);
}

std::string bar(double done, std::size_t width) {
  const auto full = static_cast<std::size_t>(done * static_cast<double>(width));
  return fmt::format("[{:#<{}}{:-<{}}] ", "", full, "", width - full);
}

}  // namespace

std::string format_bytes(double bytes) {
  const auto [number, prefix] = scaled(bytes);
  return fmt::format("{} {}B", number, prefix);
}

std::string format_rate(double bits_per_second) {
  if (!std::isfinite(bits_per_second)) return "? bit/s";
  constexpr std::array<std::string_view, 7> prefixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t i = 0;
  // 999.6 would be printed as 1e+03.
  for (; std::abs(bits_per_second) >= 999.5 && i + 1 < prefixes.size(); ++i) bits_per_second /= 1000;
  return fmt::format("{:.3g} {}bit/s", bits_per_second, prefixes[i]);
}

std::string format_count(double count) {
  const auto [number, prefix] = scaled(count);
  return number + std::string(prefix);
}

std::string format_duration(double seconds) {
  constexpr double longest = 9999 * 3600.0;
  if (std::isnan(seconds) || seconds < 0) return "?";
  if (seconds > longest) return ">9999h";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const auto minutes = whole / 60 % 60;
  const auto hours = whole / 3600;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
}

std::string format_progress(const ProgressState& state) {
  const auto tokens = scaled(state.tokens_per_second);
  std::string text =
      state.steps > 0 ? fmt::format("{}/{}", state.step, state.steps) : fmt::format("{}", state.step);
  const std::vector<std::string> parts = {
      " loss " + loss_text(state.loss),
      fmt::format(" {}{} tok/s", tokens.number, tokens.prefix),
      std::isfinite(state.utilization)
          ? fmt::format(" util {:.0f}%", 100 * std::clamp(state.utilization, 0.0, 1.0))
          : " util ?",
      " " + format_rate(state.wire_mbit_per_second * 1e6),
      " ETA " + format_duration(state.eta_seconds),
  };
  for (const auto& part : parts) {
    if (text.size() + part.size() > columns) break;
    text += part;
  }
  // All parts except the note are ASCII, so bytes are columns.
  std::size_t used = text.size();
  if (!state.note.empty() && used + 2 <= columns) {
    const auto note = clipped(state.note, columns - used - 1);
    used += 1 + static_cast<std::size_t>(
                    std::count_if(note.begin(), note.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    text += " " + note;
  }
  if (state.steps == 0 || used + min_bar + 3 > columns) return text;
  const double done = std::min(1.0, static_cast<double>(state.step) / static_cast<double>(state.steps));
  return bar(done, std::min(max_bar, columns - used - 3)) + text;
}

std::string format_bar(double done, std::string_view text) {
  auto line = clipped(text, columns);
  if (done < 0 || line.size() + min_bar + 3 > columns) return line;
  return bar(std::min(1.0, done), std::min(max_bar, columns - line.size() - 3)) + line;
}

void Progress::update(std::string line) {
  line_ = std::move(line);
  const auto now = std::chrono::steady_clock::now();
  const bool due = now - last_ >= (terminal_ ? redraw_every : plain_every_);
  if (!drawn_ || due) {
    last_ = now;
    print_line();
  }
}

void Progress::message(std::string_view text) {
  const bool bar_stands = terminal_ && drawn_;
  say_to(out_, fmt::format("{}{}\n{}", bar_stands ? erase_line : "", printable_lines(std::string(text)),
                           bar_stands ? shown_ : ""));
}

void Progress::finish() {
  if (!drawn_) return;
  if (line_ != shown_) print_line();
  if (terminal_) say_to(out_, "\n");
  drawn_ = false;
  shown_.clear();
}

void Progress::print_line() {
  say_to(out_, terminal_ ? fmt::format("{}{}", erase_line, line_) : line_ + "\n");
  shown_ = line_;
  drawn_ = true;
}

}  // namespace isthmus
