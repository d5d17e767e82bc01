#include "plan/probe.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "isthmus/base/error.h"
#include "isthmus/base/random.h"
#include "isthmus/base/time.h"
#include "isthmus/quant/passes.h"

namespace isthmus::app {

using Clock = std::chrono::steady_clock;

namespace {

/// Elements per second in the fastest of several repeats: other load only makes repeats slower.
double speed_of(std::size_t elements, const std::function<bool()>& pass) {
  constexpr double budget = 0.15;
  double best = 1e9, spent = 0;
  while (spent < budget) {
    const auto begin = Clock::now();
    if (!pass()) throw Error(ErrorKind::divergence, "--probe: the codec cannot decode its own output");
    const double seconds = seconds_since(begin);
    best = std::min(best, seconds);
    spent += seconds;
  }
  return static_cast<double>(elements) / best;
}

}  // namespace

outer_sync::plan::Speeds measure_speeds(const quant::CodecSpec& spec) {
  constexpr std::size_t elements = 1 << 22;  // larger than the caches
  std::vector<float> global(elements), local(elements, 0.0F), velocity(elements, 0.0F),
      residual(elements, 0.0F);
  for (std::size_t i = 0; i < elements; ++i)
    global[i] = static_cast<float>(random_unit(1, 0, i) - 0.5) * 1e-3F;
  std::vector<std::byte> bytes(quant::encoded_size(spec, elements));
  outer_sync::plan::Speeds speeds;
  speeds.encode = speed_of(elements, [&] {
    return !quant::encode_difference(spec, global, local, {residual}, {}, bytes).has_value();
  });
  speeds.reduce = speed_of(elements, [&] { return quant::decode_accumulate(spec, bytes, 1, residual); });
  speeds.apply =
      speed_of(elements, [&] { return quant::decode_apply(spec, bytes, {}, global, velocity, local); });
  return speeds;
}

outer_sync::plan::Speeds usual_speeds(const std::string& device) {
  if (device == "cuda") return {.encode = 1e10, .reduce = 5e8, .apply = 1e10};  // owners reduce on the CPU
  return {.encode = 2e9, .reduce = 1e9, .apply = 1e9};
}

}  // namespace isthmus::app
