// How well outer.auto follows links that change, in simulated runs:
//
//   bench_replan [--seed N] [--each N] [--seconds N] [--kind NAME ...] [--set NAME=VALUE ...] [--lines]
//
// The replanner gets noisy readings each second. Its proposals take effect as in a run: once agreed, from the
// next round on. Prints a JSON object: the constants, and an array of one object per history
// (link_history.h):
//   utilization, best_utilization  share of the time computing; waits for slower replicas do not count
//   lost       mean shortfall below the wanted utilisation, or below the highest possible one if that is
//   lower cost       learning cost, divided by that of the cheapest sufficient settings at each moment
//   changes    number of changes of the settings
//   below      seconds below the wanted utilisation
//   simulated  readings for which the replanner ran a simulation
// The best ones know the true links of each moment. --set replaces a constant of ReplanTuning. With --lines
// each line of the input is a list of NAME=VALUE, and is answered by one line of output.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/plan/recommend.h"
#include "link_history.h"
#include "replan_tuning.h"

namespace isthmus::outer_sync::plan {
namespace {

using Json = nlohmann::ordered_json;

struct Settings {
  std::int64_t every = 0, delay = 0;
  friend auto operator<=>(const Settings&, const Settings&) = default;
};

double cost_of(const Settings& settings) {
  return static_cast<double>(learning_cost(settings.every, settings.delay));
}

OuterConfig with(OuterConfig outer, const Settings& settings) {
  outer.sync_every = settings.every;
  outer.sync_delay = settings.delay;
  return outer;
}

/// Predictions for a history's states. Remembers them, since they are the same for all constants.
class Truth {
 public:
  explicit Truth(const LinkHistory& history) : history_(history), first_{every(), history.outer.sync_delay} {
    rules_.utilization = history.utilization;
    for (const auto& lines : history.states) {
      settings_.push_back(setting_of(lines));
      cuts_.push_back(cut(history.outer, history.layout, settings_.back()));
      best_.push_back(best(best_.size()));
    }
  }
  [[nodiscard]] const ReplanRules& rules() const { return rules_; }
  [[nodiscard]] const Settings& first() const { return first_; }
  [[nodiscard]] const Settings& best_at(std::size_t state) const { return best_[state]; }
  [[nodiscard]] double step_seconds(std::size_t state) const {
    return settings_[state].network.replicas.front().step_seconds;
  }
  double utilization(std::size_t state, const Settings& settings) {
    const auto [entry, is_new] = known_.try_emplace({state, settings}, 0);
    if (is_new)
      entry->second = predict(with(history_.outer, settings), cuts_[state], settings_[state]).utilization;
    return entry->second;
  }

 private:
  [[nodiscard]] std::int64_t every() const { return history_.outer.sync_every.parts.back().value; }
  static Setting setting_of(const LineReadings& lines) {
    Setting out;
    auto& network = out.network;
    const auto slowest = std::ranges::max(lines.members, {}, &LineReadings::Member::step_seconds);
    for (const auto& member : lines.members)
      network.replicas.push_back({slowest.step_seconds, member.up, unlimited});
    network.place.resize(lines.members.size());
    std::iota(network.place.begin(), network.place.end(), 0U);
    for (const auto& way : lines.ways) {
      network.one_way.push_back(way.round_trip / 2);
      network.path.push_back(way.rate > 0 ? way.rate : unlimited);
    }
    return out;
  }
  [[nodiscard]] Settings best(std::size_t state) const {
    Wanted wanted;
    wanted.utilization = history_.utilization;
    wanted.codecs = {history_.outer.codec};
    wanted.margin = 0;
    wanted.shortest_interval = first_.every;
    wanted.shortest_delay = first_.delay;
    wanted.longest_interval = rules_.longest;
    wanted.longest_delay = rules_.longest_delay;
    const auto found = choices(
        history_.outer, [&](std::int64_t) -> const Cut& { return cuts_[state]; }, settings_[state], wanted);
    if (found.empty()) return {rules_.longest, rules_.longest_delay};
    const auto& outer = found.front().outer;
    return {outer.sync_every.parts.back().value, outer.sync_delay};
  }

  const LinkHistory& history_;
  const Settings first_;
  ReplanRules rules_;
  std::vector<Setting> settings_;
  std::vector<Cut> cuts_;
  std::vector<Settings> best_;
  std::map<std::pair<std::size_t, Settings>, double> known_;
};

/// One history with these constants.
Json follow(const LinkHistory& history, Truth& truth, const ReplanTuning& tuning) {
  auto rules = truth.rules();
  rules.tuning = tuning;
  Replanner replanner(rules, history.outer, history.states.front());
  Settings agreed = truth.first(), applied = agreed;
  double applies_at = 0, utilization = 0, best_utilization = 0, lost = 0, cost = 0, best_cost = 0;
  int changes = 0, below = 0;
  const auto seconds = static_cast<int>(history.at.size());
  for (int second = 0; second < seconds; ++second) {
    const auto state = history.at[static_cast<std::size_t>(second)];
    if (second >= applies_at) applied = agreed;
    const double now = truth.utilization(state, applied);
    const double most = truth.utilization(state, truth.best_at(state));
    utilization += now;
    best_utilization += most;
    lost += std::max(0.0, std::min(rules.utilization, most) - now);
    below += now < rules.utilization ? 1 : 0;
    cost += cost_of(applied);
    best_cost += cost_of(truth.best_at(state));
    const auto proposal = replanner.look(
        second, history.read[static_cast<std::size_t>(second)],
        {.outer = with(history.outer, agreed), .layout = history.layout, .steps_left = 1'000'000});
    if (!proposal) continue;
    ++changes;
    agreed = {proposal->every, proposal->delay};
    // A second until it is agreed; then the first round that is sent afterwards must be due.
    const double rounds =
        static_cast<double>(applied.every) / static_cast<double>(history.outer.num_fragments);
    applies_at = second + 1 + (rounds + static_cast<double>(applied.delay)) * truth.step_seconds(state) / now;
  }
  return {{"kind", history.kind},
          {"replicas", history.states.front().members.size()},
          {"wanted", rules.utilization},
          {"utilization", utilization / seconds},
          {"best_utilization", best_utilization / seconds},
          {"lost", lost / seconds},
          {"cost", cost / best_cost},
          {"changes", changes},
          {"below", below},
          {"simulated", replanner.simulated()}};
}

class Runs {
 public:
  explicit Runs(std::vector<LinkHistory> histories) : histories_(std::move(histories)) {
    for (const auto& history : histories_) truths_.emplace_back(history);
  }
  Json follow_all(const ReplanTuning& tuning) {
    auto results = Json::array();
    for (std::size_t i = 0; i < histories_.size(); ++i)
      results.push_back(follow(histories_[i], truths_[i], tuning));
    return {{"tuning", json_of_tuning(tuning)}, {"histories", std::move(results)}};
  }

 private:
  std::vector<LinkHistory> histories_;
  std::vector<Truth> truths_;
};

ReplanTuning tuning_of(const std::vector<std::string>& assignments) {
  ReplanTuning out;
  for (const auto& assignment : assignments) set_tuning(out, assignment);
  return out;
}

void print_line(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::size_t each = 1;
  int seconds = 3600;
  bool lines = false;
  std::vector<std::string> kinds, assignments;
  CLI::App app("how well outer.auto follows links that change");
  app.add_option("--seed", seed, "of the histories and their readings");
  app.add_option("--each", each, "histories of each kind")->check(CLI::Range(1, 1000));
  app.add_option("--seconds", seconds, "of a history")->check(CLI::Range(60, 1'000'000));
  app.add_option("--kind", kinds, "only these")->check(CLI::IsMember(link_history_kinds()));
  app.add_option("--set", assignments, "NAME=VALUE: a constant of ReplanTuning");
  app.add_flag("--lines", lines, "read constants from the input");
  CLI11_PARSE(app, argc, argv);
  Runs runs(link_histories(seed, each, seconds, kinds));
  if (!lines) return print_line(runs.follow_all(tuning_of(assignments))), 0;
  for (std::string line; std::getline(std::cin, line);) {
    auto all = assignments;
    std::istringstream words(line);
    for (std::string word; words >> word;) all.push_back(word);
    print_line(runs.follow_all(tuning_of(all)));
  }
  return 0;
}

}  // namespace
}  // namespace isthmus::outer_sync::plan

int main(int argc, char** argv) {
  try {
    return isthmus::outer_sync::plan::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_replan: {}\n", error.what());
    return 1;
  }
}
