#pragma once
// Sets of training sequences: plain values with which the loader, the outer loop and the protocol count.
//
// A *track* is one share of the training data, in the order in which a replica goes through it; sequence k of
// track t is the same window of tokens in every process of a run.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus {

/// Sequences [begin, end) of one track.
struct SampleRange {
  /// Limits of every run.
  static constexpr std::uint64_t max_tracks = 2048, max_sequences = std::uint64_t{1} << 56;

  std::uint64_t track = 0, begin = 0, end = 0;
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  /// Whether a range received from elsewhere is valid.
  [[nodiscard]] bool sound() const { return track < max_tracks && begin < end && end <= max_sequences; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(track, begin, end);
  }
};

/// A set of sequences, as ranges: sorted, none empty, and none touching the next one of its track.
class SampleSet {
 public:
  SampleSet() = default;
  /// The ranges may be in any order.
  explicit SampleSet(const std::vector<SampleRange>& ranges) { add(std::span(ranges)); }

  /// Adds a range; `twice`, if given, receives the part that was in the set already. Empty ranges are
  /// ignored.
  void add(const SampleRange& range, SampleSet* twice = nullptr);
  /// Linear in the size of the set, regardless of the order of the ranges.
  void add(std::span<const SampleRange> ranges, SampleSet* twice = nullptr);
  void add(const SampleSet& other, SampleSet* twice = nullptr) { add(std::span(other.ranges_), twice); }
  void remove(const SampleSet& other);
  /// The sequences in both sets.
  [[nodiscard]] SampleSet common(const SampleSet& other) const;

  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  /// Number of sequences.
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] const std::vector<SampleRange>& ranges() const { return ranges_; }
  /// Removes and returns the first `count` ranges.
  [[nodiscard]] SampleSet take_front(std::size_t count);
  /// The parts of [0, end) of a track that the set lacks, in order.
  [[nodiscard]] std::vector<SampleRange> missing(std::uint64_t track, std::uint64_t end) const;
  /// Whether ranges received from elsewhere are valid and satisfy this class's invariants.
  [[nodiscard]] bool sound() const;

  friend bool operator==(const SampleSet&, const SampleSet&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(ranges_);
  }

 private:
  std::vector<SampleRange> ranges_;
};

/// The sequences of a set that are not in another.
[[nodiscard]] SampleSet without(SampleSet set, const SampleSet& other);

}  // namespace isthmus
