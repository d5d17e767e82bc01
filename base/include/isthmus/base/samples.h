#pragma once
// Which training sequences: plain values that the loader, the outer loop and the protocol count by.
//
// A *track* is one share of the training data, in the order in which a replica goes through it; sequence k of
// track t is the same window of tokens in every process of a run.

#include <cstdint>
#include <span>
#include <vector>

namespace isthmus {

/// Sequences [begin, end) of one track.
struct SampleRange {
  /// No run has more tracks, or more sequences in one.
  static constexpr std::uint64_t max_tracks = 2048, max_sequences = std::uint64_t{1} << 56;

  std::uint64_t track = 0, begin = 0, end = 0;
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  /// Whether it can be one, as it came from elsewhere.
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
  /// Of ranges in any order.
  explicit SampleSet(const std::vector<SampleRange>& ranges) { add(std::span(ranges)); }

  /// Puts a range in; `twice`, if given, gets what of it was there already. An empty range is none.
  void add(const SampleRange& range, SampleSet* twice = nullptr);
  /// Linear in the size of the set, whatever the order of the ranges.
  void add(std::span<const SampleRange> ranges, SampleSet* twice = nullptr);
  void add(const SampleSet& other, SampleSet* twice = nullptr) { add(std::span(other.ranges_), twice); }
  void remove(const SampleSet& other);
  /// What is in both.
  [[nodiscard]] SampleSet common(const SampleSet& other) const;

  [[nodiscard]] bool empty() const { return ranges_.empty(); }
  /// Sequences in it.
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] const std::vector<SampleRange>& ranges() const { return ranges_; }
  /// The first `count` ranges, which are taken out.
  [[nodiscard]] SampleSet take_front(std::size_t count);
  /// What is not in it of [0, end) of a track, in order.
  [[nodiscard]] std::vector<SampleRange> missing(std::uint64_t track, std::uint64_t end) const;
  /// Whether the ranges, as they came from elsewhere, are such as this class makes them, each of them sound.
  [[nodiscard]] bool sound() const;

  friend bool operator==(const SampleSet&, const SampleSet&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(ranges_);
  }

 private:
  std::vector<SampleRange> ranges_;
};

/// What is left of a set without another.
[[nodiscard]] SampleSet without(SampleSet set, const SampleSet& other);

}  // namespace isthmus
