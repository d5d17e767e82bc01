#include "isthmus/outer_sync/plan/recommend.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace isthmus::outer_sync::plan {

Setting worse(Setting setting, double margin) {
  for (auto& replica : setting.network.replicas) {
    replica.up *= 1 - margin;
    replica.down *= 1 - margin;
  }
  for (auto& seconds : setting.network.one_way) seconds *= 1 + margin;
  for (auto& rate : setting.network.path) rate *= 1 - margin;
  return setting;
}

namespace {

constexpr std::array<std::int64_t, 19> intervals = {5,   10,  15,  20,  30,  40,  50,  60,  80,  100,
                                                    125, 150, 200, 250, 300, 400, 500, 700, 1000};
/// Drift between replicas costs little up to this interval (arXiv 2501.18512, section 3.3).
constexpr std::int64_t usual_interval = 100;

std::int64_t cost_of(const Choice& choice) {
  return learning_cost(choice.outer.sync_every.parts.back().value, choice.outer.sync_delay);
}

class Search {
 public:
  Search(OuterConfig base, const Cut& cut, const Setting& setting, const Wanted& wanted)
      : base_(std::move(base)),
        cut_(cut),
        setting_(setting),
        worse_(worse(setting, wanted.margin)),
        wanted_(wanted) {}

  /// The cheapest pair with an interval of at most `longest`. Longer intervals need less of the links, so
  /// bisection finds the shortest sufficient interval for each delay.
  std::optional<Choice> cheapest(std::int64_t longest) {
    const auto shortest = wanted_.shortest_interval;
    const auto fits = [&](std::int64_t every) {
      return every >= base_.num_fragments && every > shortest && every <= longest;
    };
    std::vector<std::int64_t> tried;
    if (shortest > 1) tried.push_back(shortest);
    std::ranges::copy_if(intervals, std::back_inserter(tried), fits);
    const auto delay_at = [&](std::int64_t every, std::int64_t delay) {
      return std::min({delay, std::max(wanted_.shortest_delay, every / 2), every - 1});
    };
    const auto longest_delay = std::max(wanted_.shortest_delay, wanted_.longest_delay);
    if (tried.empty() || !at(tried.back(), delay_at(tried.back(), longest_delay))) return {};
    std::optional<Choice> best;
    for (auto delay = wanted_.shortest_delay; delay <= longest_delay; ++delay) {
      if (best && learning_cost(tried.front(), delay) >= cost_of(*best)) break;
      const auto found =
          std::ranges::partition_point(tried, [&](auto every) { return !at(every, delay_at(every, delay)); });
      if (found == tried.end()) continue;
      const auto& choice = at(*found, delay_at(*found, delay));
      if (!best || cost_of(*choice) < cost_of(*best)) best = choice;
    }
    if (best) best->prediction = predict(best->outer, cut_, setting_);  // with the links as given
    return best;
  }

 private:
  /// The choice with these values; nullopt if its utilisation is too low.
  const std::optional<Choice>& at(std::int64_t every, std::int64_t delay) {
    auto [entry, is_new] = known_.try_emplace({every, delay});
    if (!is_new) return entry->second;
    auto outer = base_;
    outer.sync_every = every;
    outer.sync_delay = delay;
    auto prediction = predict(outer, cut_, worse_);
    if (prediction.utilization >= wanted_.utilization)
      entry->second = Choice{std::move(outer), std::move(prediction)};
    return entry->second;
  }

  OuterConfig base_;
  const Cut& cut_;
  const Setting& setting_;
  const Setting worse_;
  const Wanted& wanted_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::optional<Choice>> known_;
};

}  // namespace

std::vector<Choice> choices(const OuterConfig& base, const MakeCut& cut_into, const Setting& setting,
                            const Wanted& wanted) {
  std::vector<Choice> out;
  auto fragments = wanted.num_fragments;
  fragments.insert(fragments.begin(), base.num_fragments);
  std::ranges::sort(fragments);
  fragments.erase(std::unique(fragments.begin(), fragments.end()), fragments.end());
  const auto order = [](const Choice& choice) {
    return std::tuple(cost_of(choice), choice.outer.sync_delay, choice.outer.num_fragments);
  };
  const auto cheapest = [&](const std::string& codec, std::int64_t longest) {
    std::optional<Choice> least;
    for (const auto count : fragments) {
      auto outer = base;
      outer.codec = codec;
      outer.num_fragments = count;
      outer.error_feedback = base.error_feedback || outer.needs_feedback();
      auto choice = Search(std::move(outer), cut_into(count), setting, wanted).cheapest(longest);
      if (choice && (!least || order(*choice) < order(*least))) least = std::move(choice);
    }
    return least;
  };
  const auto usual = std::max(usual_interval, wanted.shortest_interval);
  for (const auto& codec : wanted.codecs) {
    auto choice = cheapest(codec, std::min(usual, wanted.longest_interval));
    if (!choice) choice = cheapest(codec, wanted.longest_interval);
    if (choice) out.push_back(std::move(*choice));
  }
  return out;
}

const Choice* best(const std::vector<Choice>& choices) {
  if (choices.empty()) return nullptr;
  const auto usual = std::ranges::find_if(choices, [](const Choice& choice) {
    return choice.outer.sync_every.parts.back().value <= usual_interval;
  });
  return usual != choices.end() ? &*usual : &*std::ranges::min_element(choices, {}, cost_of);
}

}  // namespace isthmus::outer_sync::plan
