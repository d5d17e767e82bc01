#include "compare/statistics/words.h"

#include <fmt/format.h>

#include <cmath>

namespace isthmus::app {

using nlohmann::ordered_json;

std::string percent(double part) {
  const double value = 100 * std::abs(part);
  if (value == 0) return "0 %";
  if (value < 0.005) return "below 0.01 %";
  return fmt::format("{:.{}f} %", value, value >= 9.95 ? 0 : value >= 0.095 ? 1 : 2);
}

std::string signed_percent(double part) {
  auto text = percent(part);
  if (part == 0 || text.starts_with("below")) return text;
  return (part < 0 ? "-" : "+") + text;
}

std::string times(double factor) { return fmt::format("{:.{}f}", factor, factor >= 9.95 ? 0 : 1); }

std::string loss_words(double loss) { return fmt::format("{:.4f}", loss); }

std::string seeds_words(std::size_t count) { return fmt::format("{} seed{}", count, count == 1 ? "" : "s"); }

namespace {

/// How many times less the arm sends than a ring all-reduce of bf16 gradients among its own replicas at every
/// step would. Used if the baseline is data parallel, because Gloo sends fp32 and a single replica sends
/// nothing. 0 if it does not apply.
double fewer_than_bf16(const ordered_json& arm, const ordered_json& baseline) {
  if (baseline.value("method", "") != "data_parallel" || arm.value("method", "") == "data_parallel") return 0;
  if (!arm["bits_per_parameter_per_step"].is_number() || !arm["replicas"].is_number()) return 0;
  const double replicas = arm["replicas"], bits = arm["bits_per_parameter_per_step"];
  const double bf16 = 16 * 2 * (replicas - 1) / replicas;
  return bits > 0 && bf16 > bits ? bf16 / bits : 0;
}

/// How many times less the arm sends than the baseline: " with ...", or empty.
std::string bytes_words(const ordered_json& arm, const ordered_json& baseline) {
  if (!arm["bytes"].is_number() || !baseline["bytes"].is_number()) return {};
  const double ours = arm["bytes"], theirs = baseline["bytes"];
  const double bf16 = fewer_than_bf16(arm, baseline);
  if (theirs == 0)
    return bf16 > 0 ? fmt::format(" with {} times fewer bytes than bf16 gradients", times(bf16)) : "";
  if (ours == 0) return " and sends nothing";
  const bool fewer = ours <= theirs;
  const double factor = fewer ? theirs / ours : ours / theirs;
  if (factor < 1.005) return " with as many bytes";
  auto text = fmt::format(" with {} times {} bytes", times(factor), fewer ? "fewer" : "more");
  if (bf16 > 0) text += fmt::format(" ({} against bf16)", times(bf16));
  return text;
}

std::string resolution_words(const ordered_json& difference) {
  const double relative = difference["relative"];
  if (difference["more_seeds"].is_number()) {
    return fmt::format("; needs about {} to resolve {}",
                       fmt::format("{} more seed{}", difference["more_seeds"].get<std::size_t>(),
                                   difference["more_seeds"] == 1 ? "" : "s"),
                       percent(relative));
  }
  return {};
}

std::string compared(const ordered_json& arm, const ordered_json& baseline) {
  const auto& difference = arm["difference"];
  const double relative = difference["relative"];
  const auto name = baseline["name"].get<std::string>();
  const auto bytes = bytes_words(arm, baseline);
  const auto seeds =
      difference["paired"].get<bool>() ? seeds_words(difference["seeds"].get<std::size_t>()) : "not paired";
  const auto side = relative > 0 ? "worse" : "better";
  if (!difference["noise"].is_number()) {
    if (relative == 0) return fmt::format("the same loss as {} with one seed{}", name, bytes);
    return fmt::format("{} {} than {} with one seed{}; the noise is unknown: use two seeds or more",
                       percent(relative), side, name, bytes);
  }
  const double noise = difference["noise"];
  if (relative == 0 && noise == 0) return fmt::format("the same loss as {} at {}{}", name, seeds, bytes);
  if (std::abs(relative) > noise)
    return fmt::format("{} {} than {} (noise {}, {}){}", percent(relative), side, name, percent(noise), seeds,
                       bytes);
  return fmt::format("within noise of {} (difference {}, noise {}, {}){}{}", name, signed_percent(relative),
                     percent(noise), seeds, bytes, resolution_words(difference));
}

}  // namespace

std::string verdict_of(const ordered_json& arm, const ordered_json& baseline) {
  std::string text;
  const auto& final_loss = arm["final_loss"];
  if (final_loss["mean"].is_null()) {
    text = "no run has finished";
  } else if (arm["name"] == baseline["name"]) {
    const auto seeds = seeds_words(final_loss["count"].get<std::size_t>());
    text = final_loss["noise"].is_number()
               ? fmt::format("the baseline: loss {} (noise {}, {})", loss_words(final_loss["mean"]),
                             percent(final_loss["noise"].get<double>() / final_loss["mean"].get<double>()),
                             seeds)
               : fmt::format("the baseline: loss {} with {}, so its noise is unknown",
                             loss_words(final_loss["mean"]), seeds);
  } else if (arm["difference"].is_null()) {
    text = "not compared: the baseline has no finished run to compare with";
  } else {
    text = compared(arm, baseline);
  }
  for (const auto& words : arm["ended"]) text += "; " + words.get<std::string>();
  return text;
}

}  // namespace isthmus::app
