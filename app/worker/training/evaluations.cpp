#include "worker/training/evaluations.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "isthmus/base/text_file.h"
#include "isthmus/trainer/sample.h"

namespace isthmus::app {

void Evaluations::evaluate(std::uint64_t step) {
  auto& setup = parts_.setup;
  if (setup.heldout.sequences() == 0) return;
  const data::DeviceTimeline::Scope scope(parts_.timeline, "evaluate");
  const auto rank = parts_.node.status().rank();
  if (rank.of == 0) return;  // evicted a moment ago: it has no share
  const auto sum = setup.evaluate(parts_.participant.outer().global_parameters(), rank.index, rank.of);
  parts_.participant.report_evaluation({.step = step,
                                        .sum_nats = sum.nats,
                                        .tokens = sum.tokens,
                                        .share = rank.index,
                                        .shares = rank.of,
                                        .drift = drift()});
}

/// Distance of the local from the global parameters: norm of the difference over the norm of the global ones.
double Evaluations::drift() {
  const auto global = parts_.participant.outer().global_parameters(), local = parts_.replica.parameters();
  double apart = 0, all = 0;
  for (std::size_t i = 0; i < global.size(); ++i) {
    const double difference = static_cast<double>(local[i]) - static_cast<double>(global[i]);
    apart += difference * difference;
    all += static_cast<double>(global[i]) * static_cast<double>(global[i]);
  }
  return all > 0 ? std::sqrt(apart / all) : 0;
}

void Evaluations::report_again() {
  constexpr std::size_t newest = 8;
  const auto rank = parts_.node.status().rank();
  const nlohmann::json share{rank.index, rank.of};
  std::map<std::uint64_t, std::pair<double, std::uint64_t>> sums;
  each_line(parts_.metrics, [&](std::string_view line) {
    if (line.find("\"eval_share\"") == std::string_view::npos)
      return;  // most lines are of steps and need no parsing
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto field = [&](const char* name) {
      return json.is_object() && json.contains(name) ? json[name] : nlohmann::json();
    };
    const auto step = field("step"), nats = field("eval_nats"), tokens = field("eval_tokens");
    if (field("eval_share") != share || !step.is_number_unsigned() || !nats.is_number() ||
        !tokens.is_number_unsigned() || step > parts_.participant.first_step())
      return;
    sums[step] = {nats, tokens};
  });
  while (sums.size() > newest) sums.erase(sums.begin());
  for (const auto& [step, sum] : sums) parts_.node.report_evaluation(step, sum.first, sum.second);
}

std::string Evaluations::sample() {
  auto& setup = parts_.setup;
  const auto wanted = static_cast<std::uint64_t>(parts_.experiment.run.sample_tokens);
  const auto prompt_size = std::min<std::uint64_t>(32, setup.corpus.tokens(data::Split::heldout));
  if (wanted == 0 || parts_.participant.stopped() || parts_.node.status().rank().index != 0 ||
      prompt_size == 0)
    return {};
  std::vector<std::int64_t> ids(prompt_size);
  setup.corpus.read(data::Split::heldout, 0, ids);
  setup.inference.load(parts_.participant.outer().global_parameters());
  const auto more = trainer::sample(
      setup.inference, ids,
      {.tokens = wanted, .temperature = 0.7, .seed = static_cast<std::uint64_t>(parts_.experiment.run.seed)});
  ids.insert(ids.end(), more.begin(), more.end());
  auto text = setup.corpus.tokenizer().decode(std::vector<std::uint32_t>(ids.begin(), ids.end()));
  for (auto& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 32 && c != '\n') || code > 126) c = c == '\t' ? ' ' : '?';
  }
  return text;
}

}  // namespace isthmus::app
