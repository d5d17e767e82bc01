#include "isthmus/outer_sync/protocol/health.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "isthmus/outer_sync/protocol/rejection.h"
#include "protocol/short_number.h"

namespace isthmus::outer_sync::protocol {

namespace {

void add_to(RoundHealth& sum, const RoundHealth& part) {
  sum.chunks += part.chunks;
  sum.mean_squares += part.mean_squares;
  for (const auto& theirs : part.contributors) {
    auto ours = std::ranges::find(sum.contributors, theirs.replica, &ContributorHealth::replica);
    if (ours == sum.contributors.end())
      ours = sum.contributors.insert(ours, ContributorHealth{theirs.replica, 0, 0, 0});
    ours->chunks += theirs.chunks;
    ours->squares += theirs.squares;
    ours->dot += theirs.dot;
  }
}

bool is_sum_of_squares(double value) { return value >= 0; }  // infinity is valid, NaN is not

}  // namespace

// ---- owner ----

void OwnedHealth::begin(std::vector<std::uint32_t> owned) {
  owned_ = std::move(owned);
  open_.clear();
  complete_.clear();
}

void OwnedHealth::add(FragmentId fragment, Round round, const std::vector<ReplicaId>& contributors,
                      const Measured& measured) {
  RoundHealth part{.fragment = fragment,
                   .round = round,
                   .chunks = 1,
                   .mean_squares = measured.mean_squares,
                   .contributors = {}};
  for (std::size_t m = 0; m < contributors.size(); ++m)
    part.contributors.push_back({contributors[m], 1, measured.squares.at(m), measured.dots.at(m)});
  auto& sum = open_.try_emplace({fragment, round}, RoundHealth{fragment, round, 0, 0, {}}).first->second;
  add_to(sum, part);
  if (sum.chunks < owned_.at(fragment)) return;
  const auto place = complete_.find(fragment);
  if (place == complete_.end() || std::countr_zero(round) >= std::countr_zero(place->second.round))
    complete_[fragment] = std::move(sum);
  // Older rounds with missing chunks (made elsewhere, or not again) can no longer become complete.
  open_.erase(open_.lower_bound({fragment, 0}), open_.upper_bound({fragment, round}));
}

std::vector<RoundHealth> OwnedHealth::take() {
  std::vector<RoundHealth> out;
  for (auto& [fragment, health] : std::exchange(complete_, {})) out.push_back(std::move(health));
  return out;
}

// ---- coordinator ----

void RunHealth::begin(const View& view, const FragmentLayout& layout) {
  names_.clear();
  order_.clear();
  owned_.clear();
  open_.clear();
  chunks_.assign(layout.fragment_count(), 0);
  for (const auto& member : view.members) {
    order_.push_back(id_of(member));
    names_[order_.back()] = member.name;
    owned_[order_.back()].assign(layout.fragment_count(), 0);
  }
  for (ChunkId k = 0; k < layout.chunk_count(); ++k) {
    const auto fragment = layout.fragment_of(k);
    ++chunks_[fragment];
    ++owned_[order_.at(view.owners.at(k))][fragment];
  }
}

bool RunHealth::fits(ReplicaId owner, const RoundHealth& part) const {
  const auto owned = owned_.find(owner);
  if (owned == owned_.end() || part.fragment >= chunks_.size() || part.chunks == 0 ||
      part.chunks != owned->second[part.fragment] || !is_sum_of_squares(part.mean_squares) ||
      part.contributors.size() > order_.size())
    return false;
  return std::ranges::all_of(part.contributors, [&](const ContributorHealth& of) {
    return names_.contains(of.replica) && of.chunks <= part.chunks && is_sum_of_squares(of.squares) &&
           std::isfinite(of.dot);
  });
}

std::optional<RoundJudged> RunHealth::add(ReplicaId owner, const RoundHealth& part) {
  constexpr std::size_t max_open_rounds = 4;  // of one fragment
  if (!fits(owner, part)) return std::nullopt;
  auto& rounds = open_[part.fragment];
  auto& open = rounds.try_emplace(part.round, Open{{part.fragment, part.round, 0, 0, {}}, {}}).first->second;
  if (!open.owners.insert(owner).second) return std::nullopt;
  add_to(open.sum, part);
  std::optional<RoundJudged> judged;
  if (open.sum.chunks == chunks_[part.fragment]) {
    judged = judge(open.sum);
    rounds.erase(part.round);
  }
  if (rounds.size() > max_open_rounds) rounds.erase(rounds.begin());
  return judged;
}

RoundJudged RunHealth::judge(const RoundHealth& sum) {
  RoundJudged out{.fragment = sum.fragment, .round = sum.round, .replicas = {}, .outliers = {}};
  const double mean = std::sqrt(sum.mean_squares);
  std::vector<double> squares;
  for (const auto id : order_) {
    const auto of = std::ranges::find(sum.contributors, id, &ContributorHealth::replica);
    if (of == sum.contributors.end() || of->chunks != sum.chunks) continue;
    const double norm = std::sqrt(of->squares);
    const bool measurable = std::isfinite(norm) && norm > 0 && std::isfinite(mean) && mean > 0;
    out.replicas.push_back({names_.at(id), norm, measurable ? of->dot / (norm * mean) : 0});
    squares.push_back(of->squares);
  }
  const auto middle = median_of(squares);
  const double median = middle.exists ? std::sqrt(middle.value) : std::numeric_limits<double>::infinity();
  for (const auto& replica : out.replicas) {
    if (!std::isfinite(replica.norm) || replica.norm > outlier_factor * median)
      out.outliers.push_back(replica.name);
  }
  for (const auto& replica : out.replicas) record(out, replica, median);
  return out;
}

void RunHealth::record(const RoundJudged& round, const ReplicaHealth& replica, double median) {
  auto& record = records_[replica.name];
  const auto place = "fragment " + std::to_string(round.fragment) + ", round " + std::to_string(round.round);
  if (std::ranges::find(round.outliers, replica.name) != round.outliers.end()) {
    record.clean = 0;
    if (record.rounds++ % say_every != 0) return;
    const auto how = std::isfinite(replica.norm)
                         ? short_number(replica.norm / median) + " times the median (cosine " +
                               short_number(replica.cosine) + " to the mean)"
                         : std::string("not finite");
    lines_.push_back(replica.name + " is an outlier: its outer gradient of " + place + " is " + how);
  } else if (record.rounds > 0 && ++record.clean >= chunks_.size()) {
    lines_.push_back(replica.name + " is no longer an outlier as of " + place + "; it was one in " +
                     std::to_string(record.rounds) + (record.rounds == 1 ? " round" : " rounds"));
    record = {};
  }
}

}  // namespace isthmus::outer_sync::protocol
