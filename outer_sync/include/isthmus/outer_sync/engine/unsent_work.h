#pragma once
// Tokens and sequences that a replica was trained on and has not sent yet, by fragment. A contribution's
// weight is the tokens since its fragment was last sent.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/member.h"

namespace isthmus::outer_sync {

class UnsentWork {
 public:
  explicit UnsentWork(FragmentId fragments = 0) : tokens_(fragments), samples_(fragments) {}

  /// Adds a step's work to every fragment.
  void add(std::uint64_t tokens, std::span<const SampleRange> samples) {
    for (auto& count : tokens_) count += tokens;
    for (auto& pending : samples_) pending.add(samples);
  }
  /// Adds work of one fragment, or returns work that is in no result.
  void add_to(FragmentId p, std::uint64_t tokens, std::span<const SampleRange> samples) {
    tokens_.at(p) += tokens;
    samples_.at(p).add(samples);
  }
  [[nodiscard]] std::uint64_t tokens(FragmentId p) const { return tokens_.at(p); }
  [[nodiscard]] std::uint64_t take_tokens(FragmentId p) { return std::exchange(tokens_.at(p), 0); }
  /// Takes as many ranges as a contribution may have. The rest goes with the next one: late, but exact.
  [[nodiscard]] SampleSet take_samples(FragmentId p) {
    return samples_.at(p).take_front(protocol::max_trained_on);
  }
  void clear() { *this = UnsentWork(static_cast<FragmentId>(tokens_.size())); }

  /// By fragment.
  [[nodiscard]] const std::vector<SampleSet>& samples() const { return samples_; }
  [[nodiscard]] bool fits(FragmentId fragments) const {
    return tokens_.size() == fragments && samples_.size() == fragments;
  }
  friend bool operator==(const UnsentWork&, const UnsentWork&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(tokens_, samples_);
  }

 private:
  std::vector<std::uint64_t> tokens_;
  std::vector<SampleSet> samples_;
};

}  // namespace isthmus::outer_sync
