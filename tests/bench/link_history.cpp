#include "link_history.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

#include "isthmus/base/random.h"

namespace isthmus::outer_sync::plan {

namespace {

/// Draws for one history.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  double unit() { return random_unit(seed_, 1, next_++); }
  double between(double low, double high) { return low + (high - low) * unit(); }
  /// Evenly by its logarithm.
  double factor(double low, double high) { return low * std::pow(high / low, unit()); }
  template <class Value>
  Value any(std::initializer_list<Value> values) {
    const auto at = static_cast<std::size_t>(unit() * static_cast<double>(values.size()));
    return *(values.begin() + std::min(at, values.size() - 1));
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

constexpr std::uint64_t stream_of(std::uint64_t what, std::uint64_t which) { return 16 * which + what; }

/// Standard normal; Box and Muller.
double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) {
  const double radius = std::sqrt(-2 * std::log(1 - random_unit(seed, stream, 2 * counter)));
  return radius * std::cos(2 * std::numbers::pi * random_unit(seed, stream, 2 * counter + 1));
}

double steps_of_delay(const LinkHistory& history) { return static_cast<double>(history.outer.sync_delay); }

/// A run with sufficient links: a fragment takes a part of the delay.
LinkHistory quiet_run(Dice& dice) {
  LinkHistory out;
  const auto replicas = dice.any<std::size_t>({2, 2, 3, 4});
  auto& outer = out.outer;
  outer.num_fragments = dice.any<std::int64_t>({2, 3, 4});
  outer.sync_every = dice.any<std::int64_t>({10, 20, 30, 50});
  outer.sync_delay = dice.any<std::int64_t>({1, 2, 3});
  outer.resolve();
  outer.take_replicas(static_cast<std::int64_t>(replicas));
  out.utilization = dice.any({0.9, 0.95, 0.99, 0.99});
  constexpr std::uint64_t chunk = 32768;
  const std::uint64_t size = chunk * replicas * dice.any<std::uint64_t>({1, 4});
  std::vector<Range> ranges;
  for (std::int64_t p = 0; p < outer.num_fragments; ++p)
    ranges.push_back({static_cast<std::uint64_t>(p) * size, size});
  out.layout = FragmentLayout(ranges, chunk);
  const double step = dice.factor(0.25, 2), others = static_cast<double>(replicas - 1);
  const double bytes = 0.53 * static_cast<double>(size) * 2 * others / static_cast<double>(replicas);
  const double seconds = steps_of_delay(out) * step;
  const double rate = bytes / (seconds * dice.between(0.3, 0.7));
  const double round_trip = std::min(dice.factor(0.01, 0.2), 0.2 * seconds);
  LineReadings lines;
  for (std::size_t m = 0; m < replicas; ++m)
    lines.members.push_back({"replica-" + std::to_string(m), step, m == 0 ? rate : rate * dice.factor(1, 4)});
  for (std::size_t k = 0; k < replicas * replicas; ++k)
    lines.ways.push_back({k / replicas == k % replicas ? 0 : round_trip * dice.between(0.7, 1.3), 0});
  out.states.push_back(std::move(lines));
  out.noise = dice.factor(0.02, 0.2);
  out.outliers = dice.any({0.0, 0.02, 0.05});
  return out;
}

/// The first state with the rates of all members, or of the first alone, times `factor`.
LineReadings at_rate(const LinkHistory& history, double factor, bool all) {
  auto lines = history.states.front();
  for (std::size_t m = 0; m < (all ? lines.members.size() : 1); ++m) lines.members[m].up *= factor;
  return lines;
}

/// From `begin` to `end`, as shares of the time, the links have the last state.
void last_state_between(LinkHistory& history, double begin, double end) {
  const auto seconds = static_cast<double>(history.at.size());
  std::fill(history.at.begin() + static_cast<std::ptrdiff_t>(begin * seconds),
            history.at.begin() + static_cast<std::ptrdiff_t>(end * seconds), history.states.size() - 1);
}

void steady(LinkHistory& /*history*/, Dice& /*dice*/) {}

void long_drop(LinkHistory& history, Dice& dice) {
  history.states.push_back(at_rate(history, 1 / dice.factor(3, 40), dice.unit() < 0.5));
  last_state_between(history, dice.between(0.1, 0.3), dice.between(0.6, 0.8));
}

void short_drops(LinkHistory& history, Dice& dice) {
  history.states.push_back(at_rate(history, 1 / dice.factor(4, 40), dice.unit() < 0.5));
  const auto end = history.at.size();
  for (auto second = static_cast<std::size_t>(dice.between(60, 300)); second < end;) {
    const auto until = std::min(end, second + static_cast<std::size_t>(dice.between(5, 60)));
    std::fill(history.at.begin() + static_cast<std::ptrdiff_t>(second),
              history.at.begin() + static_cast<std::ptrdiff_t>(until), 1U);
    second = until + static_cast<std::size_t>(dice.between(120, 600));
  }
}

/// A day in short: the rate falls and rises once and a half.
void daily_swing(LinkHistory& history, Dice& dice) {
  const double deepest = std::log(dice.factor(2, 24)), phase = dice.unit();
  const bool all = dice.unit() < 0.5;
  constexpr std::size_t pieces = 36;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const double turn = 2 * std::numbers::pi * (phase + 1.5 * static_cast<double>(piece) / pieces);
    history.states.push_back(at_rate(history, std::exp(-deepest * (0.5 - 0.5 * std::cos(turn))), all));
    last_state_between(history, static_cast<double>(piece) / pieces, static_cast<double>(piece + 1) / pieces);
  }
}

void flapping(LinkHistory& history, Dice& dice) {
  history.states.push_back(at_rate(history, 1 / dice.factor(2, 12), dice.unit() < 0.5));
  const double usual = dice.between(20, 90);
  std::size_t state = 0;
  for (std::size_t second = 0; second < history.at.size(); state = 1 - state) {
    const auto until =
        std::min(history.at.size(), second + static_cast<std::size_t>(usual * dice.between(0.7, 1.3)));
    for (; second < until; ++second) history.at[second] = state;
  }
}

void long_round_trips(LinkHistory& history, Dice& dice) {
  auto lines = history.states.front();
  const double longer = dice.between(0.5, 3) * steps_of_delay(history) * lines.members[0].step_seconds;
  for (std::size_t k = 0; k < lines.ways.size(); ++k) {
    if (lines.ways[k].round_trip > 0) lines.ways[k].round_trip = longer;
  }
  history.states.push_back(std::move(lines));
  last_state_between(history, dice.between(0.1, 0.3), dice.between(0.5, 0.8));
}

void straggler(LinkHistory& history, Dice& dice) {
  auto lines = history.states.front();
  lines.members.back().step_seconds *= dice.between(1.3, 4);
  history.states.push_back(std::move(lines));
  last_state_between(history, dice.between(0.1, 0.3), dice.between(0.5, 0.8));
}

/// One path gets slow, in two steps, and recovers.
void slow_path(LinkHistory& history, Dice& dice) {
  const auto begin = dice.between(0.1, 0.3);
  const double slow = history.states.front().members[0].up / dice.factor(2, 8);
  for (const double share : {2.0, 1.0}) {
    auto lines = history.states.front();
    lines.ways[1].rate = share * slow;
    history.states.push_back(std::move(lines));
    last_state_between(history, share == 1 ? 0.5 : begin, 0.8);
  }
}

const std::vector<std::pair<std::string, void (*)(LinkHistory&, Dice&)>>& makers() {
  static const std::vector<std::pair<std::string, void (*)(LinkHistory&, Dice&)>> all = {
      {"steady", steady},           {"long_drop", long_drop}, {"short_drops", short_drops},
      {"daily_swing", daily_swing}, {"flapping", flapping},   {"long_round_trips", long_round_trips},
      {"straggler", straggler},     {"slow_path", slow_path}};
  return all;
}

/// The readings of one rate, in each second.
std::vector<double> read_rate(const LinkHistory& history, std::uint64_t link,
                              const std::function<double(const LineReadings&)>& rate) {
  constexpr double down = 0.15, up = 1.2;  // as measured with replan_on_links.py
  const auto& first = history.states.front();
  const double between_sends = static_cast<double>(history.outer.sync_every.parts.back().value) *
                               first.members[0].step_seconds /
                               static_cast<double>(history.outer.num_fragments);
  const auto seed = history.seed;
  std::vector<double> out;
  double known = rate(first), reading = known;
  double next = between_sends * random_unit(seed, stream_of(2, link), 0);
  for (std::uint64_t send = 0; out.size() < history.at.size();) {
    const auto second = out.size();
    for (; next <= static_cast<double>(second); next += between_sends, ++send) {
      const double now = rate(history.states[history.at[second]]);
      known = now < known ? std::pow(known, 1 - down) * std::pow(now, down) : std::min(now, up * known);
      const bool outlier = random_unit(seed, stream_of(3, link), send) < history.outliers;
      const double low = outlier ? 0.2 + 0.5 * random_unit(seed, stream_of(4, link), send) : 1;
      reading = known * low * std::exp(history.noise * normal(seed, stream_of(5, link), send));
    }
    out.push_back(reading);
  }
  return out;
}

void read_all(LinkHistory& history) {
  const auto seed = history.seed;
  for (std::size_t second = 0; second < history.at.size(); ++second) {
    auto now = history.states[history.at[second]];
    for (std::size_t m = 0; m < now.members.size(); ++m)
      now.members[m].step_seconds *= std::exp(0.02 * normal(seed, stream_of(6, m), second));
    for (std::size_t k = 0; k < now.ways.size(); ++k)
      now.ways[k].round_trip *= std::exp(std::abs(history.noise * normal(seed, stream_of(7, k), second)));
    history.read.push_back(std::move(now));
  }
  const auto& first = history.states.front();
  for (std::size_t m = 0; m < first.members.size(); ++m) {
    const auto rates = read_rate(history, m, [m](const auto& lines) { return lines.members[m].up; });
    for (std::size_t second = 0; second < rates.size(); ++second)
      history.read[second].members[m].up = rates[second];
  }
  for (std::size_t k = 0; k < first.ways.size(); ++k) {
    if (std::ranges::none_of(history.states, [k](const auto& lines) { return lines.ways[k].rate > 0; }))
      continue;
    const double usual = first.members[0].up;  // before the path becomes the slowest part
    const auto rates = read_rate(history, 1000 + k, [k, usual](const auto& lines) {
      return lines.ways[k].rate > 0 ? lines.ways[k].rate : usual;
    });
    for (std::size_t second = 0; second < rates.size(); ++second)
      history.read[second].ways[k].rate = rates[second];
  }
}

}  // namespace

const std::vector<std::string>& link_history_kinds() {
  static const auto names = [] {
    std::vector<std::string> out;
    for (const auto& [name, make] : makers()) out.push_back(name);
    return out;
  }();
  return names;
}

std::vector<LinkHistory> link_histories(std::uint64_t seed, std::size_t each, int seconds,
                                        const std::vector<std::string>& kinds) {
  std::vector<LinkHistory> out;
  for (std::size_t kind = 0; kind < makers().size(); ++kind) {
    const auto& [name, make] = makers()[kind];
    if (!kinds.empty() && std::ranges::find(kinds, name) == kinds.end()) continue;
    for (std::size_t i = 0; i < each; ++i) {
      const auto own_seed = random_bits(seed, kind, i);
      Dice dice(own_seed);
      auto history = quiet_run(dice);
      history.kind = name;
      history.seed = own_seed;
      history.at.assign(static_cast<std::size_t>(seconds), 0);
      make(history, dice);
      read_all(history);
      out.push_back(std::move(history));
    }
  }
  return out;
}

}  // namespace isthmus::outer_sync::plan
