#include "isthmus/outer_sync/protocol/coordinator/roster/observations.h"

#include <algorithm>
#include <chrono>

namespace isthmus::outer_sync::protocol {

void RateMeter::add(Time now, std::uint64_t bytes_sent, std::uint64_t step) {
  constexpr Time window = std::chrono::seconds(2);
  const bool begins = since_ == Time{} || bytes_sent < from_byte_ || step < from_step_;
  const auto passed = now - since_;
  if (!begins && passed < window) return;
  if (!begins) {
    const auto seconds = std::chrono::duration<double>(passed).count();
    bytes_per_second_ = static_cast<double>(bytes_sent - from_byte_) / seconds;
    steps_per_second_ = static_cast<double>(step - from_step_) / seconds;
  }
  since_ = now;
  from_byte_ = bytes_sent;
  from_step_ = step;
}

std::optional<ChainReports::Conflict> ChainReports::add(const std::string& name, const Fragments& reported) {
  for (std::size_t p = 0; p < reported.size(); ++p) {
    const auto& [round, prefix] = reported[p];
    auto& points = points_[p];
    const auto [place, is_new] = points.try_emplace(round, Point{prefix, name});
    if (!is_new && place->second.prefix != prefix) return Conflict{place->second.by, p, round};
    if (points.size() > max_rounds) points.erase(points.begin());
  }
  return std::nullopt;
}

std::optional<ChainReports::Conflict> ChainReports::first_other(const Fragments& reported) const {
  for (std::size_t p = 0; p < reported.size(); ++p) {
    const auto& [round, prefix] = reported[p];
    const auto points = points_.find(p);
    if (points == points_.end()) break;
    const auto point = points->second.find(round);
    if (point != points->second.end() && point->second.prefix != prefix)
      return Conflict{point->second.by, p, round};
  }
  return std::nullopt;
}

bool Evaluations::add(const std::string& name, const EvalReport& report) {
  auto& evaluation = open_[report.step];
  if (std::ranges::find(evaluation.by, name) != evaluation.by.end()) return false;
  evaluation.sum_nats += report.sum_nats;
  evaluation.tokens += report.tokens;
  evaluation.by.push_back(name);
  if (open_.size() > max_open) open_.erase(open_.begin());
  return true;
}

std::vector<Evaluations::Complete> Evaluations::take_complete(
    const std::function<bool(const std::vector<std::string>& by)>& is_missing) {
  std::vector<Complete> complete;
  std::erase_if(open_, [&](const auto& entry) {
    const auto& [step, evaluation] = entry;
    if (is_missing(evaluation.by)) return false;
    const auto tokens = std::max<std::uint64_t>(evaluation.tokens, 1);
    complete.push_back({step, evaluation.sum_nats / static_cast<double>(tokens)});
    return true;
  });
  return complete;
}

std::optional<GatheredRecords::News> GatheredRecords::add(const MemberInfo& member, const Records& records) {
  auto& up_to = up_to_.try_emplace(member.name, UpTo{member.incarnation, records.first}).first->second;
  if (up_to.incarnation != member.incarnation) up_to = {member.incarnation, 0};
  const auto end = records.first + records.records.size();
  if (end <= up_to.next) return std::nullopt;
  const auto known = up_to.next > records.first ? up_to.next - records.first : 0;
  const auto left_out = records.first > up_to.next ? records.first - up_to.next : 0;
  const auto news = records.records.begin() + static_cast<std::ptrdiff_t>(known);
  up_to.next = end;
  return News{left_out, {news, records.records.end()}};
}

std::uint64_t GatheredRecords::next(const MemberInfo& member) const { return up_to_.at(member.name).next; }

void Bars::add(const std::string& name, Time now, Time unit) {
  if (bars_.size() >= max_members && !bars_.contains(name)) bars_.clear();  // bounds the map
  auto& bar = bars_[name];
  bar.length = std::clamp(2 * bar.length, 6 * unit, 24 * unit);
  bar.until = now + bar.length;
}

bool Bars::contains(const std::string& name, Time now) const {
  const auto bar = bars_.find(name);
  return bar != bars_.end() && now < bar->second.until;
}

std::optional<std::string> Bars::take_over(Time now,
                                           const std::function<bool(const std::string&)>& is_member) {
  for (auto& [name, bar] : bars_) {
    if (bar.until == Time{} || now < bar.until) continue;
    bar.until = {};
    if (is_member(name)) return name;
  }
  return std::nullopt;
}

}  // namespace isthmus::outer_sync::protocol
