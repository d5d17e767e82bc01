#include "isthmus/outer_sync/plan/replan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <sstream>
#include <utility>

#include "isthmus/base/progress.h"
#include "isthmus/outer_sync/core/pace.h"
#include "isthmus/outer_sync/plan/recommend.h"
#include "protocol/short_number.h"

namespace isthmus::outer_sync::plan {

namespace {

/// Minimum change (of the logarithm) that is reported as a cause.
constexpr double notable = 0.1;

/// Lower bounds of a core's speeds (docs/results.md), as used for planning before the run.
constexpr Speeds usual = {.encode = 2e9, .reduce = 1e9, .apply = 1e9};

std::int64_t every_of(const OuterConfig& outer) { return outer.sync_every.parts.back().value; }

/// Median of the known values; 0 unless more than half of the values are known.
double median(std::vector<double> values) {
  const auto all = values.size();
  std::erase_if(values, [](double value) { return !(value > 0) || !std::isfinite(value); });
  if (2 * values.size() <= all) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

bool same_members(const LineReadings& a, const LineReadings& b) {
  return std::ranges::equal(a.members, b.members, {}, &LineReadings::Member::name,
                            &LineReadings::Member::name);
}

bool sound(const LineReadings& readings) {
  const auto count = readings.members.size();
  return count > 1 && readings.ways.size() == count * count;
}

/// `alike`: the share by which two values may differ.
bool differ(const LineReadings& a, const LineReadings& b, double alike) {
  if (!same_members(a, b)) return true;
  const auto differ = [alike](double one, double other) {
    return (one > 0) != (other > 0) || std::abs(one - other) > alike * std::max(one, other);
  };
  for (std::size_t m = 0; m < a.members.size(); ++m) {
    if (differ(a.members[m].step_seconds, b.members[m].step_seconds) ||
        differ(a.members[m].up, b.members[m].up))
      return true;
  }
  constexpr double nothing = 0.001;  // seconds; shorter round trips do not matter compared to a step
  for (std::size_t k = 0; k < a.ways.size(); ++k) {
    const auto &one = a.ways[k], &other = b.ways[k];
    if (differ(one.rate, other.rate) ||
        differ(std::max(nothing, one.round_trip), std::max(nothing, other.round_trip)))
      return true;
  }
  return false;
}

/// Fills in unknown values with the expected ones.
LineReadings completed(LineReadings lines, const LineReadings& expected) {
  const auto place = [&](const std::string& name) {
    return std::ranges::find(expected.members, name, &LineReadings::Member::name) - expected.members.begin();
  };
  const auto count = lines.members.size(), known = expected.members.size();
  std::vector<std::size_t> places;
  for (const auto& member : lines.members) places.push_back(static_cast<std::size_t>(place(member.name)));
  for (std::size_t i = 0; i < count; ++i) {
    if (places[i] == known) continue;
    auto& member = lines.members[i];
    const auto& said = expected.members[places[i]];
    if (member.up == 0) member.up = said.up;
    if (member.step_seconds == 0) member.step_seconds = said.step_seconds;
    for (std::size_t j = 0; j < count; ++j) {
      if (places[j] == known) continue;
      auto& way = lines.ways[i * count + j];
      const auto& said_of_way = expected.ways[places[i] * known + places[j]];
      if (way.round_trip == 0) way.round_trip = said_of_way.round_trip;
      if (way.rate == 0) way.rate = said_of_way.rate;
    }
  }
  return lines;
}

/// The same members, with all values unknown.
LineReadings nothing_of(const LineReadings& lines) {
  LineReadings out;
  for (const auto& member : lines.members) out.members.push_back({.name = member.name});
  out.ways.resize(lines.ways.size());
  return out;
}

/// All replicas keep pace with the slowest, regardless of the settings; the question is how much time the
/// links take in addition.
double agreed_step_seconds(const LineReadings& lines, const OuterConfig& outer) {
  std::vector<double> own;
  for (const auto& member : lines.members) own.push_back(member.step_seconds);
  if (outer.paced_by_time()) {
    const double reference = median(own);
    for (auto& seconds : own) seconds *= std::clamp(reference / seconds, Pace::slowest, Pace::fastest);
  }
  return *std::ranges::max_element(own);
}

Setting setting_of(const LineReadings& lines, const Standing& now) {
  Setting setting{.network = {}, .speeds = usual, .uplinks_known = now.uplinks_known};
  auto& network = setting.network;
  const auto count = lines.members.size();
  const double step = agreed_step_seconds(lines, now.outer);
  const auto limit = [](double rate) { return rate > 0 ? rate : unlimited; };
  for (const auto& member : lines.members)
    network.replicas.push_back({.step_seconds = step, .up = limit(member.up), .down = unlimited});
  network.place.resize(count);
  std::iota(network.place.begin(), network.place.end(), 0U);
  for (const auto& way : lines.ways) {
    network.one_way.push_back(way.round_trip / 2);
    network.path.push_back(limit(way.rate));
  }
  return setting;
}

// ---- descriptions ----

std::string percent(double part) { return protocol::short_number(100 * part) + " %"; }

std::string rate(double bytes_per_second) {
  return bytes_per_second == 0 ? "not known" : format_rate(8 * bytes_per_second);
}

std::string milliseconds(double seconds) {
  return seconds == 0 ? "not known" : protocol::short_number(1e3 * seconds) + " ms";
}

/// The largest relevant change, in words.
class Cause {
 public:
  void add(const std::string& what, double before, double now, bool more_is_worse, bool worse,
           std::string (*words)(double)) {
    if (now == 0) return;
    const double ratio = before > 0 ? now / before : more_is_worse == worse ? 1e3 : 1e-3;
    if ((ratio > 1) != (more_is_worse == worse)) return;  // a change in the other direction
    const double size = std::abs(std::log(ratio));
    if (size <= size_) return;
    size_ = size;
    text_ = what + " " + words(now) +
            (before > 0 ? " instead of " + words(before) : std::string(", which was not known"));
  }
  [[nodiscard]] std::string text() const {
    return size_ > notable ? text_ : "no single link has changed by much";
  }

 private:
  double size_ = 0;
  std::string text_;
};

std::string cause_of(const LineReadings& before, const LineReadings& now, bool worse) {
  const auto from = completed(nothing_of(now), before);
  Cause cause;
  const auto count = now.members.size();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& name = now.members[i].name;
    cause.add("the upload rate of " + name + " is", from.members[i].up, now.members[i].up, false, worse,
              rate);
    for (std::size_t j = 0; j < count; ++j) {
      const auto way = name + " -> " + now.members[j].name;
      const auto &was = from.ways[i * count + j], &is = now.ways[i * count + j];
      cause.add(way + " delivers", was.rate, is.rate, false, worse, rate);
      cause.add("the round trip " + way + " is", was.round_trip, is.round_trip, true, worse, milliseconds);
    }
  }
  // Shorter steps leave the links less time.
  const auto slowest = [](const LineReadings& lines) {
    return std::ranges::max(lines.members, {}, &LineReadings::Member::step_seconds).step_seconds;
  };
  cause.add("the slowest replica's step takes", slowest(from), slowest(now), false, worse, milliseconds);
  return cause.text();
}

}  // namespace

std::string to_string(const Proposal& proposal) {
  std::ostringstream out;
  const auto change = [&](const char* key, std::int64_t before, std::int64_t now) {
    if (before != now) out << (out.tellp() > 0 ? ", " : "") << key << " " << before << " -> " << now;
  };
  change("outer.sync_every", proposal.every_before, proposal.every);
  change("outer.sync_delay", proposal.delay_before, proposal.delay);
  out << ": " << proposal.cause << "; predicted compute utilisation " << percent(proposal.before) << " -> "
      << percent(proposal.after);
  return out.str();
}

Replanner::Replanner(const ReplanRules& rules, const OuterConfig& began, LineReadings expected)
    : rules_(rules),
      min_sync_every_(every_of(began)),
      min_sync_delay_(began.sync_delay),
      expected_(std::move(expected)) {
  rules_.longest = std::max(rules_.longest, min_sync_every_);
  rules_.longest_delay = std::max(rules_.longest_delay, min_sync_delay_);
}

std::optional<Proposal> Replanner::look(double seconds, const LineReadings& readings, const Standing& now) {
  if (!sound(readings)) return {};
  if (!newest_.empty() && !same_members(newest_.back(), readings)) newest_.clear();
  newest_.push_back(readings);
  if (newest_.size() > rules_.tuning.readings) newest_.pop_front();
  const auto measured = smoothed();
  if (!measured) {
    wanted_since_.reset();
    return {};
  }
  const auto lines = completed(*measured, expected_);
  // The values that the run was planned with; where they are unknown, those measured first.
  if (planned_.members.empty()) planned_ = completed(completed(nothing_of(lines), expected_), lines);
  if (every_ != every_of(now.outer) || delay_ != now.outer.sync_delay) {  // by a proposal or otherwise
    const bool first = std::exchange(every_, every_of(now.outer)) == 0;
    delay_ = now.outer.sync_delay;
    wanted_since_.reset();
    const double interval = static_cast<double>(every_) * agreed_step_seconds(lines, now.outer);
    if (!first)
      quiet_until_ = seconds + std::max(rules_.min_seconds, rules_.tuning.intervals_between * interval);
  }
  if (seconds < quiet_until_ && !changed_by_calendar_) return {};
  const bool is_sure = std::exchange(changed_by_calendar_, false);
  auto proposal = judge(lines, now);
  if (!proposal) {
    wanted_since_.reset();
    return {};
  }
  const bool up = learning_cost(proposal->every, proposal->delay) > learning_cost(every_, delay_);
  if (!wanted_since_ || wanted_up_ != up) wanted_since_ = seconds;
  wanted_up_ = up;
  if (seconds - *wanted_since_ < rules_.tuning.confirmed * rules_.min_seconds && !is_sure) return {};
  wanted_since_.reset();
  quiet_until_ = seconds + rules_.min_seconds;  // also if the proposal is not carried out
  planned_ = lines;
  return proposal;
}

void Replanner::calendar_changed() {
  newest_.clear();
  changed_by_calendar_ = true;
}

/// Summarises the newest readings: medians, but the shortest round trips, because anything beyond them is
/// queueing. Nullopt while too little is known.
std::optional<LineReadings> Replanner::smoothed() const {
  if (newest_.size() < rules_.tuning.readings) return {};
  auto out = newest_.back();
  const auto over = [&](const std::function<double(const LineReadings&)>& value) {
    std::vector<double> values;
    for (const auto& readings : newest_) values.push_back(value(readings));
    return median(std::move(values));
  };
  bool any_way = false;
  for (std::size_t m = 0; m < out.members.size(); ++m) {
    auto& member = out.members[m];
    member.step_seconds = over([m](const auto& readings) { return readings.members[m].step_seconds; });
    if (member.step_seconds == 0) return {};
    member.up = over([m](const auto& readings) { return readings.members[m].up; });
  }
  for (std::size_t k = 0; k < out.ways.size(); ++k) {
    auto& way = out.ways[k];
    way.rate = over([k](const auto& readings) { return readings.ways[k].rate; });
    way.round_trip = over([k](const auto& readings) { return readings.ways[k].round_trip; });
    for (const auto& readings : newest_) {
      const double seen = readings.ways[k].round_trip;
      if (seen > 0) way.round_trip = std::min(way.round_trip, seen);
    }
    any_way = any_way || way.round_trip > 0;
  }
  return any_way ? std::optional(std::move(out)) : std::nullopt;
}

/// The proposal for these links; simulates only if they differ from the last ones.
std::optional<Proposal> Replanner::judge(const LineReadings& lines, const Standing& now) {
  if (verdict_ && verdict_->every == every_ && verdict_->delay == delay_ &&
      !differ(verdict_->lines, lines, rules_.tuning.alike))
    return verdict_->proposal;
  ++simulated_;
  const auto setting = setting_of(lines, now);
  const auto dealt = cut(now.outer, now.layout, setting);
  const double before = predict(now.outer, dealt, setting).utilization;
  const double rest = 1 - rules_.utilization;
  const bool short_of_it = before < rules_.utilization - rules_.tuning.tolerated * rest;
  const auto chosen = short_of_it ? up(setting, dealt, now) : down(setting, dealt, now);
  std::optional<Proposal> proposal;
  if (chosen) {
    const double after = predict(*chosen, dealt, setting).utilization;
    const double gain = std::max(rules_.tuning.min_gain, rules_.tuning.gain_part * rest);
    const auto every = every_of(*chosen);
    const bool worth_it = short_of_it ? after >= before + gain : after >= rules_.utilization;
    const bool in_time = now.steps_left >= 2 * static_cast<std::uint64_t>(std::max(every, every_));
    if (worth_it && in_time)
      proposal = {.every_before = every_,
                  .delay_before = delay_,
                  .every = every,
                  .delay = chosen->sync_delay,
                  .before = before,
                  .after = after,
                  .cause = cause_of(planned_, lines, short_of_it)};
  }
  verdict_ = {lines, every_, delay_, proposal};
  return proposal;
}

std::optional<OuterConfig> Replanner::up(const Setting& setting, const Cut& cut, const Standing& now) const {
  auto found = least(setting, cut, now, every_, delay_, rules_.tuning.margin_up);
  if (!found) {  // the longest values allowed
    found = now.outer;
    if (now.may_set_every) found->sync_every = std::max(every_, rules_.longest);
    if (now.may_set_delay)
      found->sync_delay = std::max(delay_, std::min(rules_.longest_delay, every_of(*found) / 2));
  }
  if (every_of(*found) == every_ && found->sync_delay == delay_) return {};
  return found;
}

std::optional<OuterConfig> Replanner::down(const Setting& setting, const Cut& cut,
                                           const Standing& now) const {
  if (every_ <= min_sync_every_ && delay_ <= min_sync_delay_) return {};
  auto found = least(setting, cut, now, min_sync_every_, min_sync_delay_, rules_.tuning.margin_down);
  if (!found) return {};
  const auto cost = [](std::int64_t every, std::int64_t delay) {
    return static_cast<double>(learning_cost(every, delay));
  };
  const bool much = cost(every_of(*found), found->sync_delay) <= rules_.tuning.cheaper * cost(every_, delay_);
  const bool sooner = every_of(*found) == every_ && found->sync_delay <= delay_ / 2;
  return much || sooner ? found : std::nullopt;
}

/// The cheapest settings that reach the wanted utilisation, from this interval and delay up, changing only
/// allowed keys.
std::optional<OuterConfig> Replanner::least(const Setting& setting, const Cut& cut, const Standing& now,
                                            std::int64_t every, std::int64_t delay, double margin) const {
  Wanted wanted;
  wanted.utilization = rules_.utilization;
  wanted.codecs = {now.outer.codec};
  wanted.margin = margin;
  wanted.shortest_interval = now.may_set_every ? every : every_;
  wanted.longest_interval = now.may_set_every ? rules_.longest : every_;
  wanted.shortest_delay = now.may_set_delay ? delay : delay_;
  wanted.longest_delay = now.may_set_delay ? rules_.longest_delay : delay_;
  auto base = now.outer;
  base.sync_every = every_;
  const auto found = choices(
      base, [&](std::int64_t) -> const Cut& { return cut; }, setting, wanted);
  return found.empty() ? std::nullopt : std::optional(found.front().outer);
}

}  // namespace isthmus::outer_sync::plan
