#include "coordinator/dashboard/curve.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace isthmus::app {

using Json = nlohmann::ordered_json;

void Curve::add(std::uint64_t step, double value) {
  if (!std::isfinite(value)) return;
  if (newest_ && step < newest_->step) {
    std::erase_if(points_, [&](const Point& point) { return point.step >= step; });
    skipped_ = 0;
    if (points_.empty()) stride_ = 1;
  }
  if (newest_ && step == newest_->step) return;
  newest_ = {step, value};
  if (skipped_++ % stride_ != 0) return;
  skipped_ = 1;
  points_.push_back(*newest_);
  if (points_.size() < max_points) return;
  std::size_t i = 0;
  std::erase_if(points_, [&](const Point&) { return i++ % 2 == 1; });
  stride_ *= 2;
}

Json Curve::json() const {
  auto out = Json::array();
  for (const auto& point : points_) out.push_back({point.step, point.value});
  if (newest_ && !points_.empty() && points_.back().step != newest_->step)
    out.push_back({newest_->step, newest_->value});
  return out;
}

Json curve_json(const std::map<std::uint64_t, double>& values, std::size_t most) {
  auto out = Json::array();
  const auto every = std::max<std::size_t>(1, (values.size() + most - 1) / std::max<std::size_t>(1, most));
  std::size_t i = 0;
  for (auto at = values.begin(); at != values.end(); ++at, ++i) {
    const bool kept = i % every == 0 || std::next(at) == values.end();
    if (kept && std::isfinite(at->second)) out.push_back({at->first, at->second});
  }
  return out;
}

}  // namespace isthmus::app
