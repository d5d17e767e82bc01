// Model of one direction of a link between two sites: computes arrival times from packets and send times.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace isthmus::wan_lab {

using Nanoseconds = std::int64_t;

struct LinkSettings {
  std::uint64_t bits_per_second = 1'000'000'000;  // for IP packets, including headers
  Nanoseconds delay = 0;                          // one way, without queueing and serialisation
  Nanoseconds jitter = 0;                         // maximum that is added to the delay
  Nanoseconds queue = 100'000'000;                // a packet that would wait longer is dropped
  std::uint64_t queue_bytes = 0;                  // if not 0: a limit in bytes instead of `queue`
  double loss = 0;                                // probability for each packet on the wire, in [0, 1]
  bool cut = false;                               // drops all new packets
};

/// The packets of one read from the sender's device: `count` packets on the wire, all with `bytes` (including
/// IP headers) except the last, which has `last_bytes`.
struct Burst {
  std::uint32_t count, bytes, last_bytes;
};

/// Packets [first, first + count) of a burst. They arrive together, at the time of the last.
struct Run {
  std::uint32_t first, count;
  std::uint64_t bytes;
  Nanoseconds arrival;
};

struct Count {
  std::uint64_t packets = 0, bytes = 0;
  void add(std::uint64_t more_packets, std::uint64_t more_bytes) {
    packets += more_packets, bytes += more_bytes;
  }
};

struct LinkCounters {
  Count entered, queue_drops, losses, cut_drops, nat_drops, delivered;
};

/// A drop-tail queue, then a serialiser, then random loss, then a delay. Keeps the order. Lost packets have
/// used the link's time, packets dropped by the queue have not.
class Link {
 public:
  explicit Link(std::uint64_t seed);

  const LinkSettings& settings() const { return settings_; }
  void set(const LinkSettings& settings);

  /// Sends a burst at `now`, which must not decrease. Appends the runs that will arrive to `arriving`.
  void send(Nanoseconds now, const Burst& burst, std::vector<Run>& arriving);

  /// The time that a new packet would wait at `now`.
  Nanoseconds backlog(Nanoseconds now) const { return free_at_ > now ? free_at_ - now : 0; }

  LinkCounters counters;

 private:
  Nanoseconds serialisation(std::uint64_t bytes) const;
  Nanoseconds jitter(Nanoseconds at) const;
  bool draw_loss();
  std::uint64_t packets_until_loss();

  LinkSettings settings_;
  Nanoseconds longest_wait_ = 0;
  Nanoseconds free_at_ = std::numeric_limits<Nanoseconds>::min();
  Nanoseconds last_arrival_ = std::numeric_limits<Nanoseconds>::min();
  std::uint64_t seed_, draws_ = 0, until_loss_ = 0;
};

}  // namespace isthmus::wan_lab
