#include "cli/live/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "isthmus/base/error.h"
#include "isthmus/base/progress.h"
#include "isthmus/base/text.h"
#include "run/output/lines.h"

namespace isthmus::app {
namespace {

/// nullopt for null, which replaces numbers that are not finite.
std::optional<double> number_at(const nlohmann::json& json, const char* key) {
  const auto& value = json.at(key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string shown(std::optional<double> value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

/// At most eight characters, also of a loss that diverges.
std::string loss_text(std::optional<double> loss) {
  return shown(loss, loss && std::abs(*loss) < 999.99995 ? "{:.4f}" : "{:.2e}");
}

std::string whole_percent(std::optional<double> part) {
  return part ? fmt::format("{:.0f}%", 100 * std::clamp(*part, 0.0, 1.0)) : "-";
}

/// "12.3M"
std::string scaled(std::optional<double> value) { return value ? format_count(*value) : "-"; }

/// One character for each fragment: the number of rounds that the member is behind; '.' for 0, '+' for more
/// than 9. If there are more fragments than columns, a character covers several and shows the largest number.
std::string rounds_strip(const std::vector<std::uint64_t>& lags, std::size_t columns) {
  std::string out;
  const auto parts = std::min(columns, lags.size());
  for (std::size_t i = 0; i < parts; ++i) {
    const auto begin = lags.begin() + static_cast<std::ptrdiff_t>(i * lags.size() / parts);
    const auto end = lags.begin() + static_cast<std::ptrdiff_t>((i + 1) * lags.size() / parts);
    const auto most = *std::max_element(begin, end);
    out += most == 0 ? '.' : most > 9 ? '+' : static_cast<char>('0' + most);
  }
  return out;
}

/// At most four characters.
std::string short_duration(double seconds) {
  if (seconds < 999.5) return fmt::format("{:.0f}s", seconds);
  return seconds < 999.5 * 60 ? fmt::format("{:.0f}m", seconds / 60)
                              : fmt::format("{:.0f}h", std::min(999.0, seconds / 3600));
}

/// Lines of at most `columns`, broken only between the parts.
std::vector<std::string> parts_in_lines(const std::vector<std::string>& parts, std::string_view between,
                                        std::size_t columns) {
  std::vector<std::string> lines;
  for (const auto& part : parts) {
    if (!lines.empty() && lines.back().size() + between.size() + part.size() <= columns)
      lines.back().append(between).append(part);
    else
      lines.push_back(lines.empty() ? part : "  " + part);
  }
  return lines;
}

struct Widths {
  std::size_t name, rounds;
};

std::string header(const Widths& widths) {
  return fmt::format("{:<{}} {:>9} {:>8} {:>4} {:>7} {:>8} {:>5} {:<{}} {}", "member", widths.name, "step",
                     "loss", "util", "tok/s", "bit/s", "lag", "rounds", widths.rounds, "state");
}

std::string member_row(const nlohmann::json& member, std::uint64_t foremost, const Widths& widths) {
  const bool trains = member.at("kind") == "trainer";
  const auto step = member.at("step").get<std::uint64_t>();
  const auto of_trainer = [&](std::string text) { return trains ? std::move(text) : "-"; };
  const auto wire = number_at(member, "wire_bytes_per_second");
  const auto silent = number_at(member, "silent_seconds").value_or(0);
  auto state = trains ? member.at("state").get<std::string>() : std::string("reduces");
  if (silent >= 3) state = "silent " + short_duration(silent);
  return fmt::format(
      "{:<{}} {:>9} {:>8} {:>4} {:>7} {:>8} {:>5} {:<{}} {}",
      short_name(printable_ascii(member.at("name").get<std::string>()), widths.name), widths.name,
      of_trainer(std::to_string(step)), of_trainer(loss_text(number_at(member, "loss"))),
      of_trainer(whole_percent(number_at(member, "utilization"))),
      of_trainer(scaled(number_at(member, "tokens_per_second"))), wire ? scaled(8 * *wire) : "-",
      of_trainer(std::to_string(foremost - std::min(foremost, step))),
      rounds_strip(member.at("rounds_lag").get<std::vector<std::uint64_t>>(), widths.rounds), widths.rounds,
      state);
}

/// Means and sums over the trainers that have made a step since they came; the means are empty without any.
/// `bytes` is over all members.
struct Totals {
  std::optional<double> loss, utilization;
  double tokens = 0, bytes = 0;
  std::uint64_t foremost = 0;
};

Totals totals_of(const nlohmann::json& members) {
  Totals out;
  double loss = 0, utilization = 0;
  std::size_t trainers = 0;
  for (const auto& member : members) {
    out.bytes += number_at(member, "wire_bytes_per_second").value_or(0);
    if (member.at("kind") != "trainer" || member.at("step") == 0) continue;
    ++trainers;
    loss += number_at(member, "loss").value_or(std::nan(""));
    utilization += number_at(member, "utilization").value_or(0);
    out.tokens += number_at(member, "tokens_per_second").value_or(0);
    out.foremost = std::max(out.foremost, member.at("step").get<std::uint64_t>());
  }
  if (trainers == 0) return out;
  if (std::isfinite(loss)) out.loss = loss / static_cast<double>(trainers);
  out.utilization = utilization / static_cast<double>(trainers);
  return out;
}

std::string progress_line(const nlohmann::json& status, const Pace& pace, std::size_t columns) {
  const auto step = status.at("step").get<std::uint64_t>(), steps = status.at("steps").get<std::uint64_t>();
  const double done = steps > 0 ? std::min(1.0, static_cast<double>(step) / static_cast<double>(steps)) : 0;
  const auto speed = pace.steps_per_second();
  auto text = fmt::format("] {:.1f}%", 100 * done);
  if (speed > 0) {
    const auto left = static_cast<double>(steps - std::min(steps, step)) / speed;
    text += fmt::format("  {} steps/s  ETA {}", speed < 10 ? fmt::format("{:.2f}", speed) : scaled(speed),
                        format_duration(left));
  }
  const auto width = columns > text.size() + 1 ? columns - text.size() - 1 : 0;
  const auto full = static_cast<std::size_t>(done * static_cast<double>(width));
  return fmt::format("[{:#<{}}{:-<{}}{}", "", full, "", width - full, text);
}

std::vector<std::string> head(const nlohmann::json& status, const Pace& pace, const Totals& totals,
                              std::size_t columns) {
  const auto text = [&](const char* key) { return status.at(key).get<std::string>(); };
  const auto number = [&](const char* key) { return status.at(key).get<std::uint64_t>(); };
  auto lines = parts_in_lines(
      {fmt::format("{}: {}", short_name(printable_ascii(text("run")), 40), text("phase")),
       fmt::format("step {} of {}", number("step"), number("steps")),
       fmt::format("{} of {} replicas in", number("participating"), number("replicas")),
       fmt::format("view {}", number("view")),
       number("checkpoint") == 0 ? "checkpoint none" : fmt::format("checkpoint {}", number("checkpoint"))},
      ", ", columns);
  lines.push_back(progress_line(status, pace, columns));
  std::vector<std::string> figures = {
      "loss " + loss_text(totals.loss), "util " + whole_percent(totals.utilization),
      scaled(totals.tokens) + " tok/s", "wire " + scaled(8 * totals.bytes) + "bit/s"};
  if (const auto& evaluation = status.at("evaluation"); !evaluation.is_null())
    figures.push_back(fmt::format("eval {} at step {}", loss_text(number_at(evaluation, "loss")),
                                  evaluation.at("step").get<std::uint64_t>()));
  std::ranges::move(parts_in_lines(figures, "  ", columns), std::back_inserter(lines));
  if (const auto steps = status.value("outer_steps", nlohmann::json()); steps.is_object())
    lines.push_back(fmt::format("outer steps: gain {}, correlation {}",
                                shown(number_at(steps, "gain"), "{:.2f}"),
                                shown(number_at(steps, "correlation"), "{:.2f}")));
  if (status.contains("obstacle"))
    std::ranges::move(wrapped_lines("ROUNDS DO NOT COMMIT: " + text("obstacle"), 2, columns),
                      std::back_inserter(lines));
  if (const auto& paused = status.at("settings").at("paused_after"); !paused.is_null())
    lines.push_back(fmt::format("paused after step {}", paused.get<std::uint64_t>()));
  return lines;
}

/// Relays and slow paths.
std::vector<std::string> status_notes(const nlohmann::json& status, std::size_t columns) {
  std::vector<std::string> lines;
  const auto note = [&](const std::string& text) {
    std::ranges::move(wrapped_lines(text, 2, columns), std::back_inserter(lines));
  };
  for (const auto& relay : status.at("relays"))
    note(fmt::format("{} relays between {} and {}", relay.at("by").get<std::string>(),
                     relay.at("between").at(0).get<std::string>(),
                     relay.at("between").at(1).get<std::string>()));
  for (const auto& path : status.at("slow_paths")) {
    const auto from = path.at("from").get<std::string>(), to = path.at("to").get<std::string>();
    note("slow: " + (from.empty() ? "all paths to " + to
                     : to.empty() ? "all paths from " + from
                                  : "from " + from + " to " + to));
  }
  return lines;
}

/// A row for each fragment: its newest committed round, and how long the rounds before it took. Empty if the
/// answer has no rounds.
std::vector<std::string> timeline(const nlohmann::json& status) {
  std::vector<std::string> lines;
  if (!status.contains("rounds") || status.at("rounds").empty()) return lines;
  lines.push_back(fmt::format("{:<8} {:>8} {:>10} {:>9} {:>8} {:>8}  {}", "fragment", "round", "sent step",
                              "ago", "took", "late", "took before"));
  const auto seconds = [](std::optional<double> value, const char* format) {
    return value ? fmt::format(fmt::runtime(format), *value) : std::string("-");
  };
  const auto& rounds = status.at("rounds");
  for (std::size_t i = 0; i < rounds.size();) {
    const auto fragment = rounds[i].at("fragment").get<std::uint64_t>();
    std::vector<const nlohmann::json*> own;
    for (; i < rounds.size() && rounds[i].at("fragment") == fragment; ++i) own.push_back(&rounds[i]);
    const auto took = [](const nlohmann::json* round) { return number_at(*round, "took_seconds"); };
    const auto last =
        std::find_if(own.rbegin(), own.rend(), [&](const nlohmann::json* round) { return took(round); });
    const auto& shown_round = last == own.rend() ? *own.back() : **last;
    std::string before;
    for (const auto* round : own) {
      if (round == &shown_round) break;
      before += seconds(took(round), "{:.2f}") + " ";
    }
    lines.push_back(fmt::format("{:<8} {:>8} {:>10} {:>9} {:>8} {:>8}  {}", fragment,
                                shown_round.at("round").get<std::uint64_t>(),
                                shown_round.at("sent_step").get<std::uint64_t>(),
                                seconds(number_at(shown_round, "sent_seconds_ago"), "{:.1f}s"),
                                seconds(number_at(shown_round, "took_seconds"), "{:.2f}s"),
                                seconds(number_at(shown_round, "late_seconds"), "{:+.2f}s"), before));
  }
  return lines;
}

}  // namespace

void Pace::look(std::uint64_t step, double seconds) {
  constexpr double window = 60;
  if (!looks_.empty() && step < looks_.back().step) looks_.clear();  // the run was resumed
  looks_.push_back({step, seconds});
  while (looks_.size() > 2 && looks_[1].seconds < seconds - window) looks_.erase(looks_.begin());
}

double Pace::steps_per_second() const {
  if (looks_.size() < 2) return 0;
  const auto &first = looks_.front(), &last = looks_.back();
  return last.seconds > first.seconds
             ? static_cast<double>(last.step - first.step) / (last.seconds - first.seconds)
             : 0;
}

std::vector<std::string> top_screen(const nlohmann::json& status, const Pace& pace, std::size_t columns,
                                    std::size_t rows) {
  constexpr std::size_t fixed = 48 + 8 + 3;  // the table's other columns, and the gaps
  constexpr std::size_t min_name = 12, min_rounds = 8;
  try {
    const auto& members = status.at("members");
    const auto totals = totals_of(members);
    const auto spare = columns > fixed + min_name + min_rounds ? columns - fixed - min_name - min_rounds : 0;
    const Widths widths{min_name + std::min<std::size_t>(20, spare / 2),
                        min_rounds + std::min<std::size_t>(56, spare - spare / 2)};
    auto lines = head(status, pace, totals, columns);
    lines.emplace_back();
    lines.push_back(header(widths));
    const auto below = status_notes(status, columns);
    const auto room = rows > lines.size() + below.size() ? rows - lines.size() - below.size() : 1;
    const bool all = members.size() <= room;
    const auto listed = all ? members.size() : room - 1;
    for (std::size_t i = 0; i < listed; ++i) lines.push_back(member_row(members[i], totals.foremost, widths));
    if (!all)
      lines.push_back(fmt::format("and {} more; enlarge the terminal to see them", members.size() - listed));
    lines.insert(lines.end(), below.begin(), below.end());
    const auto rounds = timeline(status);
    if (rounds.size() > 1 && rows > lines.size() + 2) {  // room for the title and a row
      lines.emplace_back();
      lines.insert(lines.end(), rounds.begin(), rounds.end());
      if (lines.size() > rows) {
        const auto left_out = lines.size() - rows + 1;
        lines.resize(rows - 1);
        lines.push_back(fmt::format("and {} more; enlarge the terminal to see them", left_out));
      }
    }
    if (lines.size() > rows) lines.resize(rows);
    for (auto& line : lines) line = printable_ascii(std::move(line), columns);
    return lines;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::data, std::string("unexpected status from the coordinator: ") + error.what());
  }
}

}  // namespace isthmus::app
