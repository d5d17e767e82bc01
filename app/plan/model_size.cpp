#include "plan/model_size.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "isthmus/base/error.h"

namespace isthmus::app {

namespace {

struct StepTime {
  config::Duration step_time;
  void serialize(config::Archive& ar) {
    ar({"--step-time", &step_time, config::Scope::agreed, "time of an inner step", 1e-4, 86400});
  }
};

}  // namespace

std::uint64_t parameter_count(const std::string& text) {
  constexpr double most = 1e12;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(static_cast<const char*>(end), text.data() + text.size());
  const double scale = unit.empty() ? 1 : unit == "k" ? 1e3 : unit == "M" ? 1e6 : unit == "B" ? 1e9 : 0;
  const double count = std::round(number * scale);
  if (error != std::errc() || !(count >= 1 && count <= most)) {
    throw Error(
        ErrorKind::config,
        "--params is '" + text + "'; expected a number of parameters up to 1000B, like 64k, 200M or 1.5B");
  }
  return static_cast<std::uint64_t>(count);
}

config::Duration step_duration(const std::string& text) {
  auto source = config::Source::from_text("", "command line");
  source.put({"--step-time", {text}, false, false, "command line", {}});
  return config::read<StepTime>(source).step_time;
}

outer_sync::FragmentLayout even_layout(const outer_sync::OuterConfig& outer, std::uint64_t parameters) {
  constexpr std::uint64_t cache_line = 16;  // elements
  const auto parts = static_cast<std::uint64_t>(outer.num_fragments);
  if (parts > parameters / cache_line)
    throw Error(ErrorKind::config,
                fmt::format("--params is {} and outer.num_fragments is {}; expected at least {} parameters "
                            "in each fragment",
                            parameters, parts, cache_line));
  const auto begin = [&](std::uint64_t p) {
    return p == parts ? parameters
                      : (parameters / parts * p + parameters % parts * p / parts) / cache_line * cache_line;
  };
  std::vector<outer_sync::Range> fragments;
  for (std::uint64_t p = 0; p < parts; ++p) fragments.push_back({begin(p), begin(p + 1) - begin(p)});
  return {std::move(fragments), static_cast<std::uint64_t>(outer.chunk_elements)};
}

}  // namespace isthmus::app
