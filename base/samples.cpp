#include "isthmus/base/samples.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace isthmus {
namespace {

using Ranges = std::vector<SampleRange>;

/// The first range that ends at or after `begin` of the track.
auto first_touching(Ranges& ranges, std::uint64_t track, std::uint64_t begin) {
  return std::ranges::lower_bound(ranges, std::pair(track, begin), {},
                                  [](const SampleRange& range) { return std::pair(range.track, range.end); });
}

/// Walks through two sorted lists in parallel and passes every stretch that is in both to `overlap`.
template <class Overlap>
void for_each_overlap(const Ranges& a, const Ranges& b, Overlap overlap) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].track == b[j].track) {
      const auto begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
      if (begin < end) overlap(SampleRange{a[i].track, begin, end});
    }
    if (std::pair(a[i].track, a[i].end) < std::pair(b[j].track, b[j].end))
      ++i;
    else
      ++j;
  }
}

auto place_of(const SampleRange& range) { return std::pair(range.track, range.begin); }

/// Sorts by the beginning; drops empty ranges.
Ranges sorted_by_begin(std::span<const SampleRange> ranges) {
  Ranges out;
  std::ranges::copy_if(ranges, std::back_inserter(out),
                       [](const SampleRange& range) { return range.begin < range.end; });
  std::ranges::sort(out, {}, place_of);
  return out;
}

/// Joins ranges that touch each other.
Ranges joined(const Ranges& sorted) {
  Ranges out;
  for (const auto& range : sorted) {
    if (!out.empty() && out.back().track == range.track && range.begin <= out.back().end)
      out.back().end = std::max(out.back().end, range.end);
    else
      out.push_back(range);
  }
  return out;
}

/// The parts that are in more than one range.
Ranges overlaps_within(const Ranges& sorted) {
  Ranges out;
  std::uint64_t track = 0, end = 0;
  for (const auto& range : sorted) {
    if (range.track != track) end = 0;
    if (range.begin < end) out.push_back({range.track, range.begin, std::min(range.end, end)});
    track = range.track;
    end = std::max(end, range.end);
  }
  return out;
}

}  // namespace

void SampleSet::add(const SampleRange& range, SampleSet* twice) {
  if (range.begin >= range.end) return;
  auto merged = range;
  const auto first = first_touching(ranges_, range.track, range.begin);
  auto last = first;
  for (; last != ranges_.end() && last->track == range.track && last->begin <= range.end; ++last) {
    const auto begin = std::max(last->begin, range.begin), end = std::min(last->end, range.end);
    if (twice != nullptr) twice->add({range.track, begin, end});
    merged.begin = std::min(merged.begin, last->begin);
    merged.end = std::max(merged.end, last->end);
  }
  if (first == last) {
    ranges_.insert(first, merged);
  } else {
    *first = merged;
    ranges_.erase(std::next(first), last);
  }
}

void SampleSet::add(std::span<const SampleRange> ranges, SampleSet* twice) {
  auto sorted = sorted_by_begin(ranges);
  if (twice != nullptr) {
    auto again = overlaps_within(sorted);
    for_each_overlap(ranges_, joined(sorted), [&](const SampleRange& range) { again.push_back(range); });
    twice->add(again);
  }
  Ranges all;
  std::ranges::merge(ranges_, sorted, std::back_inserter(all), {}, place_of, place_of);
  ranges_ = joined(all);
}

void SampleSet::remove(const SampleSet& other) {
  Ranges left;
  for (std::size_t i = 0, j = 0; i < ranges_.size(); ++i) {
    auto rest = ranges_[i];
    while (j < other.ranges_.size() &&
           std::pair(other.ranges_[j].track, other.ranges_[j].end) <= std::pair(rest.track, rest.begin))
      ++j;
    for (auto k = j; k < other.ranges_.size(); ++k) {
      const auto& hole = other.ranges_[k];
      if (hole.track != rest.track || hole.begin >= rest.end) break;
      if (rest.begin < hole.begin) left.push_back({rest.track, rest.begin, hole.begin});
      rest.begin = std::min(hole.end, rest.end);
    }
    if (rest.begin < rest.end) left.push_back(rest);
  }
  ranges_ = std::move(left);
}

SampleSet SampleSet::common(const SampleSet& other) const {
  SampleSet out;
  for_each_overlap(ranges_, other.ranges_, [&](const SampleRange& range) { out.ranges_.push_back(range); });
  return out;
}

std::uint64_t SampleSet::size() const {
  return std::accumulate(ranges_.begin(), ranges_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const SampleRange& range) { return sum + range.size(); });
}

SampleSet SampleSet::take_front(std::size_t count) {
  SampleSet out;
  const auto end = ranges_.begin() + static_cast<std::ptrdiff_t>(std::min(count, ranges_.size()));
  out.ranges_.assign(ranges_.begin(), end);
  ranges_.erase(ranges_.begin(), end);
  return out;
}

std::vector<SampleRange> SampleSet::missing(std::uint64_t track, std::uint64_t end) const {
  SampleSet all;
  all.add({track, 0, end});
  all.remove(*this);
  return all.ranges_;
}

bool SampleSet::sound() const {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (!ranges_[i].sound()) return false;
    if (i > 0 &&
        std::pair(ranges_[i - 1].track, ranges_[i - 1].end) >= std::pair(ranges_[i].track, ranges_[i].begin))
      return false;
  }
  return true;
}

SampleSet without(SampleSet set, const SampleSet& other) {
  set.remove(other);
  return set;
}

}  // namespace isthmus
