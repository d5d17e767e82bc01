#include "compare/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "compare/report/certificate.h"
#include "compare/report/columns.h"
#include "compare/report/json_or_null.h"
#include "compare/statistics/statistics.h"
#include "compare/statistics/words.h"

namespace isthmus::app {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t max_shown_points = 2000;  ///< of one curve
constexpr double default_target = 1.05;         ///< times the baseline's final loss

/// The mean; nullopt if a value is missing.
std::optional<double> mean_of_all(const std::vector<std::optional<double>>& values) {
  double sum = 0;
  for (const auto& value : values) {
    if (!value) return {};
    sum += *value;
  }
  return values.empty() ? std::nullopt : std::optional(sum / static_cast<double>(values.size()));
}

template <class Get>
ordered_json mean_over_runs(const std::vector<RunRecord>& runs, Get get) {
  std::vector<std::optional<double>> values;
  for (const auto& run : runs)
    if (run.is_whole()) values.push_back(get(run));
  return json_or_null(mean_of_all(values));
}

ordered_json points_json(const std::vector<CurvePoint>& curve) {
  auto points = ordered_json::array();
  const std::size_t every = curve.size() / max_shown_points + 1;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (i % every != 0 && i + 1 != curve.size()) continue;
    const auto& p = curve[i];
    points.push_back({{"tokens", p.tokens},
                      {"seconds", json_or_null(p.seconds)},
                      {"bytes", json_or_null(p.bytes)},
                      {"loss", p.loss}});
  }
  return points;
}

/// Mean, lowest and highest loss of each point, counted from the start, over the runs that have it.
ordered_json band_json(const std::vector<RunRecord>& runs) {
  auto band = ordered_json::array();
  std::size_t length = 0;
  for (const auto& run : runs) length = std::max(length, run.curve.size());
  const std::size_t every = length / max_shown_points + 1;
  for (std::size_t i = 0; i < length; ++i) {
    if (i % every != 0 && i + 1 != length) continue;
    std::vector<std::optional<double>> tokens, seconds, bytes, losses;
    for (const auto& run : runs) {
      if (i >= run.curve.size()) continue;
      tokens.emplace_back(run.curve[i].tokens);
      seconds.push_back(run.curve[i].seconds);
      bytes.push_back(run.curve[i].bytes);
      losses.emplace_back(run.curve[i].loss);
    }
    const auto [low, high] = std::ranges::minmax(losses);
    band.push_back({{"tokens", *mean_of_all(tokens)},
                    {"seconds", json_or_null(mean_of_all(seconds))},
                    {"bytes", json_or_null(mean_of_all(bytes))},
                    {"loss", *mean_of_all(losses)},
                    {"low", *low},
                    {"high", *high}});
  }
  return band;
}

std::vector<std::pair<std::string, std::string>> listed_settings(Experiment experiment) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const auto& item : config::list(experiment)) settings.emplace_back(item.key, item.value);
  for (const auto& site : experiment.sites) {
    settings.emplace_back("sites." + site.name + ".replicas", std::to_string(site.replicas));
    for (const auto& entry : site.settings)
      settings.emplace_back("sites." + site.name + "." + entry.key, entry.values.front());
  }
  return settings;
}

/// Makes one report.
class Reporter {
 public:
  Reporter(const Comparison& comparison, const Records& records)
      : comparison_(comparison), records_(records) {
    const auto& baseline = baseline_runs();
    for (const auto& run : baseline)
      if (run.is_whole()) tokens_ += run.tokens() / static_cast<double>(baseline.size());
  }

  ordered_json report() {
    const auto& keys = comparison_.keys;
    ordered_json json;
    json["name"] = keys.name;
    json["size"] = comparison_.size;
    json["base"] = comparison_.base.string();
    json["baseline"] = comparison_.arms[comparison_.baseline].name;
    json["seeds"] = seeds();
    json["budget"] = {{"tokens", keys.budget.tokens}, {"seconds", keys.budget.time.seconds}};
    json["confidence"] = confidence;
    json["target_loss"] = json_or_null(target());
    if (keys.hopeless.after > 0)
      json["hopeless"] = {{"after", keys.hopeless.after}, {"margin", keys.hopeless.margin}};
    json["missing_runs"] = records_.missing;
    if (!comparison_.gates.empty()) json["certificate"] = certificate_json(comparison_, records_);
    for (std::size_t i = 0; i < comparison_.arms.size(); ++i) json["arms"].push_back(arm_json(i));
    compare_arms(json["arms"]);
    json["differences"] = differences();
    json["notes"] = notes(json["arms"]);
    return json;
  }

 private:
  /// Seeds of all runs, made by the comparison or before it.
  [[nodiscard]] std::set<std::int64_t> seeds() const {
    std::set<std::int64_t> seeds;
    for (const auto& run : comparison_.runs) seeds.insert(run.seed);
    return seeds;
  }

  [[nodiscard]] const std::vector<RunRecord>& baseline_runs() const {
    return records_.of_arm[comparison_.baseline];
  }

  /// The loss at the end of one of our own runs. For a curve made elsewhere, the loss after as many tokens as
  /// the baseline has had; nullopt if the curve ends before.
  [[nodiscard]] std::optional<double> final_loss(const RunRecord& run) const {
    if (!run.is_whole() || run.curve.empty()) return {};
    if (run.seed || tokens_ == 0) return run.curve.back().loss;
    return loss_at(run.curve, tokens_);
  }

  [[nodiscard]] std::vector<double> finals(std::size_t arm) const {
    std::vector<double> losses;
    for (const auto& run : records_.of_arm[arm])
      if (const auto loss = final_loss(run)) losses.push_back(*loss);
    return losses;
  }

  [[nodiscard]] std::optional<double> target() const {
    if (comparison_.keys.target_loss > 0) return comparison_.keys.target_loss;
    const auto losses = finals(comparison_.baseline);
    if (losses.empty()) return {};
    return default_target * estimate(losses).mean;
  }

  ordered_json arm_json(std::size_t index) const {
    const auto& arm = comparison_.arms[index];
    const auto& runs = records_.of_arm[index];
    ordered_json json;
    json["name"] = arm.name;
    json["about"] = arm.about;
    json["baseline"] = index == comparison_.baseline;
    json["replicas"] = nullptr;
    if (const auto* plan = plan_of(index)) {
      json["method"] = to_string(plan->experiment.outer.method);
      json["replicas"] = plan->experiment.replicas;
    }
    json["faults"] = ordered_json::array();
    for (const auto& fault : arm.faults) json["faults"].push_back(fault.text);
    json["final_loss"] = final_json(index);
    json["tokens"] = mean_over_runs(runs, [](const RunRecord& r) { return std::optional(r.tokens()); });
    const auto target_loss = target();
    for (const auto& column : columns()) {
      if (column.key == "final_loss") continue;  // above
      json[column.key] = nullptr;
      if (column.of_run != nullptr)
        json[column.key] =
            mean_over_runs(runs, [&](const RunRecord& r) { return column.of_run(r, target_loss); });
    }
    json["ended"] = ordered_json::array();
    for (const auto& run : runs)
      if (!run.is_whole()) json["ended"].push_back(run.ended_line());
    json["verdict"] = "";
    json["band"] = band_json(runs);
    json["runs"] = ordered_json::array();
    for (const auto& run : runs) json["runs"].push_back(run_json(run));
    return json;
  }

  ordered_json final_json(std::size_t index) const {
    const auto losses = finals(index);
    const auto all = estimate(losses);
    return {{"mean", losses.empty() ? ordered_json() : ordered_json(all.mean)},
            {"noise", json_or_null(all.noise)},
            {"count", all.count}};
  }

  ordered_json run_json(const RunRecord& run) const {
    ordered_json json;
    json["seed"] = json_or_null(run.seed);
    json["source"] = run.source.string();
    json["ended"] = run.ended.words;
    json["final_loss"] = json_or_null(final_loss(run));
    json["tokens"] = run.tokens();
    json["steps"] = run.seed ? ordered_json(run.steps) : ordered_json();
    json["parameters"] = run.seed ? ordered_json(run.parameters) : ordered_json();
    const auto target_loss = target();
    for (const auto& column : columns())
      if (column.of_run != nullptr) json[column.key] = json_or_null(column.of_run(run, target_loss));
    json["curve"] = points_json(run.curve);
    return json;
  }

  [[nodiscard]] const RunPlan* plan_of(std::size_t arm) const {
    const auto plan = std::ranges::find(comparison_.runs, arm, &RunPlan::arm);
    return plan == comparison_.runs.end() ? nullptr : &*plan;
  }

  void compare_arms(ordered_json& arms) const {
    const auto& baseline = arms[comparison_.baseline];
    for (std::size_t i = 0; i < arms.size(); ++i) {
      auto& arm = arms[i];
      if (i != comparison_.baseline) {
        if (const auto difference = difference_of(i)) arm["difference"] = json_of(*difference);
        if (arm["bytes"].is_number() && baseline["bytes"].is_number() && arm["bytes"].get<double>() > 0 &&
            baseline["bytes"].get<double>() > 0)
          arm["fewer_bytes"] = baseline["bytes"].get<double>() / arm["bytes"].get<double>();
      }
      arm["verdict"] = verdict_of(arm, baseline);
    }
  }

  static ordered_json json_of(const Difference& d) {
    return {{"relative", d.relative},   {"noise", json_or_null(d.noise)},
            {"seeds", d.count},         {"paired", d.paired},
            {"resolved", d.resolved()}, {"more_seeds", json_or_null(d.more_seeds)}};
  }

  [[nodiscard]] std::optional<Difference> difference_of(std::size_t index) const {
    const auto pairs = pair_by_seed(records_.of_arm[index], baseline_runs());
    if (!pairs.seeds.empty()) return paired_difference(pairs.arm, pairs.against);
    const auto arm = finals(index), baseline = finals(comparison_.baseline);
    if (arm.empty() || baseline.empty()) return {};
    return unpaired_difference(arm, baseline);
  }

  /// Key -> arm -> value, for the keys in which the arms' configs are not all equal.
  ordered_json differences() const {
    std::vector<std::string> keys;
    std::map<std::string, std::map<std::string, std::string>> values;
    std::size_t arms = 0;
    for (std::size_t i = 0; i < comparison_.arms.size(); ++i) {
      const auto* plan = plan_of(i);
      if (plan == nullptr) continue;
      ++arms;
      for (const auto& [key, value] : listed_settings(plan->experiment)) {
        if (!values.contains(key)) keys.push_back(key);
        values[key][comparison_.arms[i].name] = value;
      }
    }
    auto json = ordered_json::object();
    for (const auto& key : keys) {
      std::set<std::string> different;
      for (const auto& [arm, value] : values[key]) different.insert(value);
      // Name and folder do not affect a run.
      if (key != "run.name" && key != "run.out" && (different.size() > 1 || values[key].size() < arms))
        json[key] = values[key];
    }
    return json;
  }

  ordered_json notes(const ordered_json& arms) const {
    auto notes = ordered_json::array();
    const auto& hopeless = comparison_.keys.hopeless;
    if (!records_.missing.empty())
      notes.push_back(fmt::format("{} of {} runs are not finished and are left out.", records_.missing.size(),
                                  comparison_.runs.size()));
    if (hopeless.after > 0)
      notes.push_back(
          fmt::format("A run was stopped if, after {} of its training or more, its loss was over {} "
                      "above the baseline's at two evaluations in a row.",
                      percent(hopeless.after), percent(hopeless.margin)));
    if (unequal_tokens(arms))
      notes.push_back(
          "The arms were trained on different numbers of tokens; final losses are those at the "
          "end of each run.");
    for (std::size_t i = 0; i < comparison_.arms.size(); ++i) {
      for (const auto& run : records_.of_arm[i])
        if (!run.seed && !final_loss(run))
          notes.push_back(
              fmt::format("{} ends after {:.4g} tokens, before the baseline's {:.4g}: its final "
                          "loss is not compared.",
                          run.source.filename().string(), run.tokens(), tokens_));
    }
    notes.push_back(
        fmt::format("Noise is half of a {:.0f} % interval (Student's t) of the differences at equal "
                    "seeds. Each interval is for one arm alone: of twenty arms that are all as "
                    "good as the baseline, one will seem better or worse.",
                    100 * confidence));
    notes.push_back(
        "Losses by tokens and bytes are reproducible, except with outer.gossip_every or outer.pace: "
        "time; times depend on the machine and on what else it did.");
    return notes;
  }

  [[nodiscard]] bool unequal_tokens(const ordered_json& arms) const {
    double least = INFINITY, most = 0;
    for (std::size_t i = 0; i < arms.size(); ++i) {
      if (!comparison_.arms[i].curves.empty() || !arms[i]["tokens"].is_number()) continue;
      least = std::min(least, arms[i]["tokens"].get<double>());
      most = std::max(most, arms[i]["tokens"].get<double>());
    }
    return most > 1.01 * least;
  }

  const Comparison& comparison_;
  const Records& records_;
  double tokens_ = 0;  ///< mean of the baseline's whole runs
};

}  // namespace

ordered_json report_json(const Comparison& comparison, const Records& records) {
  return Reporter(comparison, records).report();
}

}  // namespace isthmus::app
