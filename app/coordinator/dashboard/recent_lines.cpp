#include "coordinator/dashboard/recent_lines.h"

#include <utility>

#include "isthmus/base/text.h"

namespace isthmus::app {

void RecentLines::add(double unix_seconds, std::string text) {
  auto line = printable(std::move(text), max_bytes);
  const std::lock_guard lock(mutex_);
  lines_.push_back({unix_seconds, std::move(line)});
  if (lines_.size() > kept) lines_.pop_front();
}

nlohmann::ordered_json RecentLines::json() const {
  auto out = nlohmann::ordered_json::array();
  const std::lock_guard lock(mutex_);
  for (auto line = lines_.rbegin(); line != lines_.rend(); ++line)
    out.push_back({{"time", line->time}, {"text", line->text}});
  return out;
}

}  // namespace isthmus::app
