#include "isthmus/outer_sync/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/coordinator/paths/paths.h"
#include "isthmus/outer_sync/protocol/topology.h"
#include "isthmus/quant/codec.h"

namespace isthmus::outer_sync::plan {

namespace {

/// Bytes added to a chunk: its frame and headers, and the acknowledgement of the other end's chunk
/// (docs/protocol.md).
constexpr double beside_a_chunk = 2 * 56;
/// Gloo sends gradients unencoded.
constexpr double gradient_bytes = sizeof(float);

std::size_t pieces_for(std::size_t replicas, std::size_t chunks) {
  constexpr std::size_t most = 16, work = 100'000;  // limit of the shares to look through in a round
  const auto owners = std::min(replicas, chunks);
  return std::clamp<std::size_t>(work / std::max<std::size_t>(1, replicas * owners), 1,
                                 std::min(most, chunks));
}

/// Combines neighbouring chunks into one piece.
Piece piece_of(const Cut& cut, ChunkId first, ChunkId last, const quant::CodecSpec& codec,
               const Setting& setting) {
  Piece piece;
  std::map<std::uint32_t, double> bytes;
  std::uint64_t elements = 0, largest = 0;
  for (auto k = first; k < last; ++k) {
    const auto size = cut.layout.chunk(k).size;
    bytes[cut.owners[k]] += static_cast<double>(quant::encoded_size(codec, size)) + beside_a_chunk;
    elements += size;
    largest = std::max(largest, size);
  }
  for (const auto& [owner, sum] : bytes) piece.shares.push_back({owner, sum});
  piece.seconds_after = static_cast<double>(elements) / setting.speeds.encode;
  const auto trainers = static_cast<double>(setting.network.replicas.size());
  piece.reduce_seconds = trainers * static_cast<double>(largest) / setting.speeds.reduce;
  return piece;
}

Fragment fragment_of(const Cut& cut, FragmentId p, const quant::CodecSpec& codec, const Setting& setting) {
  const auto chunks = cut.layout.chunks_of(p);
  const auto pieces = static_cast<ChunkId>(pieces_for(setting.network.replicas.size(), chunks.size()));
  Fragment fragment;
  double encoded = 0;  // a chunk is sent as soon as it is encoded
  for (ChunkId i = 0; i < pieces; ++i) {
    const auto at = [&](ChunkId part) {
      return chunks.first + static_cast<ChunkId>(std::uint64_t{chunks.size()} * part / pieces);
    };
    fragment.pieces.push_back(piece_of(cut, at(i), at(i + 1), codec, setting));
    encoded += fragment.pieces.back().seconds_after;
    fragment.pieces.back().seconds_after = encoded;
  }
  fragment.encode_seconds = encoded;
  fragment.apply_seconds = static_cast<double>(cut.layout.fragment(p).size) / setting.speeds.apply;
  return fragment;
}

/// Gradients are averaged after every step by a ring, in which each replica sends 2 (M - 1) / M of them, in 2
/// (M - 1) messages one after the other.
Simulated gradients_by_ring(const FragmentLayout& layout, const Setting& setting) {
  Simulated run{setting.network, {}, Schedule(1, 1, 0, 0), 1, 11};
  const auto replicas = static_cast<std::uint32_t>(setting.network.replicas.size());
  Piece piece;
  const double bytes = static_cast<double>(layout.parameters()) * gradient_bytes;
  for (std::uint32_t m = 0; m < replicas; ++m) piece.shares.push_back({m, bytes / replicas});
  for (auto& seconds : run.network.one_way) seconds *= replicas > 1 ? replicas - 1 : 1;
  Fragment fragment;
  fragment.pieces.push_back(std::move(piece));
  run.fragments.push_back(std::move(fragment));
  return run;
}

Simulated outer_loop(const OuterConfig& outer, const Cut& cut, const Setting& setting) {
  const auto every = last_sync_every(outer);
  Simulated run{setting.network,
                {},
                Schedule(cut.layout.fragment_count(), std::vector<SyncPhase>{{0, every}},
                         static_cast<std::uint64_t>(outer.sync_delay), 0),
                every,
                3 * every};
  constexpr std::uint64_t most = 50'000'000;
  if (const auto replicas = setting.network.replicas.size(); run.steps > most / replicas) {
    throw Error(ErrorKind::config, "outer.sync_every is " + std::to_string(every) + " and there are " +
                                       std::to_string(replicas) + " replicas; expected at most " +
                                       std::to_string(most) +
                                       " steps in three sync intervals, summed over all replicas");
  }
  for (FragmentId p = 0; p < cut.layout.fragment_count(); ++p)
    run.fragments.push_back(fragment_of(cut, p, outer.codec_spec(), setting));
  return run;
}

}  // namespace

namespace {

/// Those of one fragment between two of its syncs (engine/gossip.h).
std::uint64_t exchanges_between_syncs(const OuterConfig& outer) {
  if (outer.gossip_every == 0) return 0;
  const auto room = last_sync_every(outer) - static_cast<std::uint64_t>(outer.sync_delay) - 1;
  return room / static_cast<std::uint64_t>(outer.gossip_every);
}

double exchanged_bytes(const FragmentLayout& layout, FragmentId p, const quant::CodecSpec& codec) {
  const auto chunks = layout.chunks_of(p);
  double bytes = 0;
  for (auto k = chunks.first; k < chunks.last; ++k)
    bytes += static_cast<double>(quant::encoded_size(codec, layout.chunk(k).size)) + beside_a_chunk;
  return bytes;
}

struct Exchanges {
  double bytes_per_step = 0;  ///< that each replica sends
  double bytes = 0;           ///< of one exchange of every fragment
};

Exchanges exchanges_of(const OuterConfig& outer, const FragmentLayout& layout, std::size_t replicas) {
  Exchanges out;
  const auto count = static_cast<double>(exchanges_between_syncs(outer));
  if (count == 0 || replicas < 2) return out;
  for (FragmentId p = 0; p < layout.fragment_count(); ++p) {
    out.bytes += exchanged_bytes(layout, p, outer.codec_spec());
  }
  const std::size_t in_pairs = replicas / 2 * 2;
  const auto all = static_cast<double>(replicas), paired = static_cast<double>(in_pairs);
  out.bytes_per_step = out.bytes * count / static_cast<double>(last_sync_every(outer)) * paired / all;
  return out;
}

/// The links without what exchanges take of them. A hundredth is left for the rounds.
Setting beside_exchanges(Setting setting, double bytes_per_step) {
  double fastest = 0;
  for (auto& replica : setting.network.replicas) {
    const double rate = bytes_per_step / replica.step_seconds;
    for (auto* link : {&replica.up, &replica.down}) *link = std::max(*link - rate, *link / 100);
    fastest = std::max(fastest, rate);
  }
  const auto partners = static_cast<double>(std::max<std::size_t>(2, setting.network.replicas.size()) - 1);
  for (auto& path : setting.network.path) path = std::max(path - fastest / partners, path / 100);
  return setting;
}

double slowest_exchange(const Network& network, double bytes) {
  double rate = unlimited, delay = 0;
  for (const auto& replica : network.replicas) rate = std::min({rate, replica.up, replica.down});
  for (const auto path : network.path) rate = std::min(rate, path);
  for (const auto seconds : network.one_way) delay = std::max(delay, seconds);
  return bytes / rate + delay;
}

}  // namespace

std::uint64_t last_sync_every(const OuterConfig& outer) {
  return static_cast<std::uint64_t>(outer.sync_every.parts.back().value);
}

namespace {

/// The paths that the coordinator would find slow, and avoid once it has. Replicas of one place count as one.
std::vector<protocol::SlowPath> slow_paths(const Network& network, const std::vector<protocol::Site>& sites) {
  if (network.path.empty() || sites.size() > protocol::max_compared_members) return {};
  const auto places = static_cast<std::size_t>(std::sqrt(static_cast<double>(network.path.size())));
  std::vector<protocol::Path> paths;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    for (std::size_t j = 0; j < sites.size(); ++j) {
      const auto way = network.place[i] * places + network.place[j];
      if (i == j || !std::isfinite(network.path[way])) continue;
      const auto shortest = protocol::Time(static_cast<std::int64_t>(2e6 * network.one_way[way]));
      paths.push_back(
          {sites[i].name, sites[j].name, shortest, shortest, static_cast<std::uint64_t>(network.path[way])});
    }
  }
  std::vector<protocol::SlowPath> slow;
  for (const auto& seen : protocol::compare_paths(paths, {})) {
    if (!seen.route.from.empty() && !seen.route.to.empty())
      slow.push_back({seen.route.from, seen.route.to, seen.bytes_per_second});
  }
  return slow;
}

}  // namespace

Cut cut(const OuterConfig& outer, FragmentLayout layout, const Setting& setting) {
  std::vector<protocol::Site> sites;
  for (std::size_t m = 0; m < setting.network.replicas.size(); ++m) {
    const double up = setting.network.replicas[m].up;
    const bool known = setting.uplinks_known && std::isfinite(up);
    sites.push_back({.name = "replica " + std::to_string(m),
                     .kind = protocol::MemberKind::trainer,
                     .uplink = known ? static_cast<std::uint64_t>(up) : 0});
  }
  auto dealt = protocol::deal_chunks(layout, sites,
                                     {outer.topology_setting(), quant::bits_per_element(outer.codec_spec()),
                                      slow_paths(setting.network, sites)});
  return {std::move(layout), std::move(dealt.owners), std::move(dealt.reason)};
}

Prediction predict(const OuterConfig& outer, const Cut& cut, const Setting& setting) {
  Prediction out;
  const bool data_parallel = outer.data_parallel();
  out.bits_per_parameter = data_parallel ? 8 * gradient_bytes : quant::bits_per_element(outer.codec_spec());
  const auto exchanges = exchanges_of(outer, cut.layout, setting.network.replicas.size());
  const auto run = data_parallel
                       ? gradients_by_ring(cut.layout, setting)
                       : outer_loop(outer, cut, beside_exchanges(setting, exchanges.bytes_per_step));
  out.timetable = simulate(run);
  out.utilization = out.timetable.utilization();
  if (exchanges.bytes > 0) {
    out.exchanges = exchanges_between_syncs(outer);
    out.exchange_seconds = slowest_exchange(setting.network, exchanges.bytes);
    for (const auto& times : out.timetable.replicas)
      out.exchange_bytes_per_second =
          std::max(out.exchange_bytes_per_second,
                   exchanges.bytes_per_step * static_cast<double>(run.steps - run.filling) / times.seconds);
  }
  const auto steps = static_cast<double>(run.steps - run.filling);
  for (const auto& times : out.timetable.replicas) {
    out.steps_per_second = std::max(out.steps_per_second, steps / times.seconds);
    const double sent = times.sent + exchanges.bytes_per_step * steps;
    out.bytes_per_step = std::max(out.bytes_per_step, sent / steps);
    out.mean_bytes_per_second = std::max(out.mean_bytes_per_second, sent / times.seconds);
    out.peak_bytes_per_second =
        std::max(out.peak_bytes_per_second, times.peak + exchanges.bytes_per_step * steps / times.seconds);
  }
  return out;
}

}  // namespace isthmus::outer_sync::plan
