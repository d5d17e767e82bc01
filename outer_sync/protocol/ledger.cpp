#include "isthmus/outer_sync/protocol/ledger.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::protocol {

void FragmentLedger::add(std::vector<SampleRange> samples) {
  later_.push_back(std::move(samples));
  if (later_.size() > max_pending_ranges) fold_first();
}

void FragmentLedger::skip() {
  add({});
  ++unknown_;
}

void FragmentLedger::fold_first() {
  done_.add(later_.front(), &twice_);
  later_.erase(later_.begin());
  ++base_;
}

bool FragmentLedger::cut(std::uint64_t to) {
  if (to < base_ || to > round()) return false;
  later_.resize(to - base_);
  return true;
}

SampleSet FragmentLedger::done() const {
  auto out = done_;
  for (const auto& samples : later_) out.add(samples);
  return out;
}

SampleSet FragmentLedger::twice() const {
  auto all = done_, out = twice_;
  for (const auto& samples : later_) all.add(samples, &out);
  return out;
}

bool FragmentLedger::sound() const {
  constexpr std::uint64_t most = std::uint64_t{1} << 62;  // leaves room for additions
  return base_ <= most && unknown_ <= round() && later_.size() <= max_pending_ranges && done_.sound() &&
         twice_.sound() && std::ranges::all_of(later_, [](const auto& samples) {
           return std::ranges::all_of(samples, &SampleRange::sound);
         });
}

SampleSet done_everywhere(const Ledger& ledger) {
  if (ledger.empty()) return {};
  auto out = ledger.front().done();
  for (std::size_t p = 1; p < ledger.size(); ++p) out = out.common(ledger[p].done());
  return out;
}

SampleSet done_anywhere(const Ledger& ledger) {
  SampleSet out;
  for (const auto& fragment : ledger) out.add(fragment.done());
  return out;
}

SampleSet done_twice(const Ledger& ledger) {
  SampleSet out;
  for (const auto& fragment : ledger) out.add(fragment.twice());
  return out;
}

std::uint64_t unknown_rounds(const Ledger& ledger) {
  std::uint64_t sum = 0;
  for (const auto& fragment : ledger) sum += fragment.unknown();
  return sum;
}

}  // namespace isthmus::outer_sync::protocol
