#include "audit/owners.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "isthmus/outer_sync/engine/sketch.h"

namespace isthmus::app {

using outer_sync::ChunkId;
using outer_sync::protocol::Sketch;
using outer_sync::protocol::sketch_size;

namespace {

// ---- bounds ----

/// Bounds for honest owners (docs/how-to/audit.md has the measurements).
struct Bounds {
  double gain_min, gain_max;  ///< a codec with few levels shortens or lengthens its values
  double distance;            ///< over all results
  double single;              ///< distance of a single result
  double effect;              ///< of a wrong share on the means, relative to their length
  double residual = 4;        ///< with error feedback: squared length from which a result is mostly residual
};
constexpr double unbounded = std::numeric_limits<double>::infinity();

Bounds bounds_of(const outer_sync::protocol::CodecPlan& codecs) {
  const auto& spec = codecs.codec;
  const auto usual = quant::default_spec(spec.kind);
  const bool is_measured = quant::codec_of(spec.kind).layout == quant::CodecLayout::floats ||
                           (spec.clip == usual.clip && spec.rounding == usual.rounding &&
                            spec.scale == usual.scale && spec.block <= usual.block);
  Bounds bounds{0.05, 4, unbounded, unbounded, unbounded};
  if (is_measured) {
    switch (spec.kind) {
      case quant::CodecKind::fp32:
        bounds = {0.99, 1.01, 0.001, 0.01, 0.01};
        break;
      case quant::CodecKind::bf16:
        bounds = {0.98, 1.02, 0.02, 0.2, 0.02};
        break;
      case quant::CodecKind::int8:
        bounds = {0.9, 1.1, 0.2, 2, 0.1};
        break;
      case quant::CodecKind::int4:
      case quant::CodecKind::e3m0:
      case quant::CodecKind::lloyd4:
        bounds = {0.7, 1.3, 0.5, 4, 0.15};
        break;
      case quant::CodecKind::lloyd3:
      case quant::CodecKind::lloyd2:
        bounds = {0.4, 1.6, 1.2, 4, 0.15};
        break;
      case quant::CodecKind::sign:
        // One bit keeps hardly anything of a member with small values.
        bounds = {0.4, 1.6, 1.2, 4, unbounded};
        break;
      case quant::CodecKind::topk:
        bounds = {0.1, 2, 2, 20, unbounded, 16};
        break;
    }
  }
  if (codecs.error_feedback) {
    // The owner's residual is a part of each result. It may be large compared with the mean of the next
    // round.
    constexpr double with_residuals = 3;
    bounds.distance *= with_residuals;
    bounds.single = unbounded;
    bounds.gain_min /= 2;
    bounds.gain_max *= 2;
  }
  return bounds;
}

/// A share differs from the gain by more than chance and the codec explain.
constexpr double share_bound = 0.3;
/// Standard deviations.
constexpr double certain = 6, unlikely = 3;
/// Values that the estimate of shares needs beyond the number of members.
constexpr std::size_t spare_values = 64;
/// With more members no shares are estimated: the work grows with the square of their number.
constexpr std::size_t max_members = 256;
/// Lines of one owner about one round of a fragment; it has written more only to confuse.
constexpr std::size_t max_lines = 10'000;

// ---- means ----

double product(const Sketch& a, const Sketch& b) {
  double sum = 0;
  for (std::size_t i = 0; i < sketch_size; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

void add_scaled(Sketch& sum, const Sketch& sketch, double factor) {
  for (std::size_t i = 0; i < sketch_size; ++i)
    sum[i] = static_cast<float>(double{sum[i]} + factor * double{sketch[i]});
}

/// The result of a group of chunks, and the members' parts of its mean, as sketches.
struct Mean {
  std::uint32_t fragment = 0;
  std::uint64_t round = 0, chunks = 0;
  std::map<std::string, Sketch> parts;
  Sketch mean{}, result{};
};

/// Lines that share chunks: a line has some of the members, and a round may have been repeated.
class Group {
 public:
  void add(const AuditReceipts& line) {
    lines_.push_back(&line);
    chunks_.insert(line.chunks.begin(), line.chunks.end());
  }
  [[nodiscard]] std::uint64_t chunks() const { return chunks_.size(); }
  [[nodiscard]] bool contradicts_itself() const { return contradicts_itself_; }

  /// nullopt if a result is not in the log, or the lines contradict each other.
  [[nodiscard]] std::optional<Mean> mean(const std::map<ChunkId, Sketch>& results) {
    Mean out;
    for (const auto chunk : chunks_) {
      const auto result = results.find(chunk);
      if (result == results.end()) return std::nullopt;
      outer_sync::add_sketch(out.result, result->second);
    }
    // The last lines are those of the view in which the round was completed.
    for (auto line = lines_.rbegin(); line != lines_.rend(); ++line) {
      for (const auto& received : (*line)->contributions) take(**line, received);
    }
    double all = 0, kept = 0;
    for (const auto& [name, member] : members_) {
      if (member.bytes.size() != chunks_.size()) contradicts_itself_ = true;
      if (!member.kept) continue;
      all += static_cast<double>(member.weight);
      ++kept;
    }
    contradicts_itself_ = contradicts_itself_ || kept == 0;
    if (contradicts_itself_) return std::nullopt;
    for (const auto& [name, member] : members_) {
      const double share = all > 0 ? static_cast<double>(member.weight) / all : 1 / kept;
      if (!member.kept || share == 0) continue;
      add_scaled(out.parts[name], member.sketch, share);
      add_scaled(out.mean, member.sketch, share);
    }
    return out;
  }

 private:
  struct Member {
    std::uint64_t weight = 0;
    bool kept = true;
    std::map<ChunkId, ShortDigest> bytes;
    Sketch sketch{};
  };

  /// Takes a member's contributions in a line, unless later lines have them.
  void take(const AuditReceipts& line, const AuditReceived& received) {
    auto& member = members_[received.member];
    if (member.bytes.empty()) member.weight = received.weight, member.kept = received.kept;
    bool is_known = false, is_same = member.weight == received.weight && member.kept == received.kept;
    for (std::size_t i = 0; i < line.chunks.size(); ++i) {
      const auto place = member.bytes.find(line.chunks[i]);
      if (place == member.bytes.end()) continue;
      is_known = true;
      is_same = is_same && place->second == received.bytes[i];
    }
    if (!is_same) contradicts_itself_ = true;
    if (is_known) return;
    for (std::size_t i = 0; i < line.chunks.size(); ++i) member.bytes[line.chunks[i]] = received.bytes[i];
    outer_sync::add_sketch(member.sketch, received.sketch);
  }

  std::vector<const AuditReceipts*> lines_;
  std::set<ChunkId> chunks_;
  std::map<std::string, Member> members_;
  bool contradicts_itself_ = false;
};

std::vector<Group> groups_of(const std::vector<AuditReceipts>& lines) {
  // Each line leads to the first line of its group.
  std::vector<std::size_t> first(lines.size());
  std::iota(first.begin(), first.end(), std::size_t{0});
  const auto root = [&](std::size_t line) {
    while (first[line] != line) line = first[line] = first[first[line]];
    return line;
  };
  std::map<ChunkId, std::size_t> line_of;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const auto chunk : lines[i].chunks) {
      const auto known = line_of.try_emplace(chunk, i).first->second;
      const auto a = root(known), b = root(i);
      first[std::max(a, b)] = std::min(a, b);
    }
  }
  std::map<std::size_t, Group> groups;
  for (std::size_t i = 0; i < lines.size(); ++i) groups[root(i)].add(lines[i]);
  std::vector<Group> out;
  out.reserve(groups.size());
  for (auto& [line, group] : groups) out.push_back(std::move(group));
  return out;
}

// ---- least squares ----

using Matrix = std::vector<std::vector<double>>;

/// Inverts a symmetric positive matrix (Gauss-Jordan) without the rows and columns that depend on others
/// before them, and returns whether each is in the inverse.
std::vector<bool> invert(Matrix a, Matrix& out) {
  constexpr double min_pivot = 1e-9;
  const auto n = a.size();
  out.assign(n, std::vector<double>(n, 0.0));
  std::vector<double> diagonal(n);
  std::vector<bool> is_in(n, false);
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1, diagonal[i] = a[i][i];
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p][p];
    if (!(pivot > min_pivot * diagonal[p])) continue;
    is_in[p] = true;
    for (std::size_t j = 0; j < n; ++j) a[p][j] /= pivot, out[p][j] /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i][p];
      if (i == p || factor == 0) continue;
      for (std::size_t j = 0; j < n; ++j) a[i][j] -= factor * a[p][j], out[i][j] -= factor * out[p][j];
    }
  }
  return is_in;
}

/// The results of one owner. Each is divided by the length of its mean, or by a tenth of the usual length in
/// its fragment if that is longer: otherwise a mean near zero would outweigh all others.
class Fit {
 public:
  Fit(std::string owner, const Bounds& bounds, bool error_feedback, const std::vector<Mean>& means)
      : bounds_(bounds), error_feedback_(error_feedback), means_(means) {
    out_.owner = std::move(owner);
    for (const auto& mean : means_) {
      auto& usual = usual_[mean.fragment];
      const double length = product(mean.mean, mean.mean);
      if (std::isfinite(length)) usual.first += length, ++usual.second;
    }
  }

  [[nodiscard]] OwnerVerdict verdict() {
    for (const auto& mean : means_) measure(mean);
    if (!used_.empty()) {
      out_.gain = lengths_ > 0 ? along_ / lengths_ : 1;
      out_.distance = std::sqrt(std::max(0.0, apart_) / static_cast<double>(used_.size()));
      find_shares();
    }
    judge();
    return std::move(out_);
  }

 private:
  void measure(const Mean& of) {
    constexpr double small = 0.01, outlier = 4;  // the first is squared
    const double length = product(of.mean, of.mean), made = product(of.result, of.result);
    if (length == 0 && made == 0) return;
    // The residuals of earlier rounds are in no receipt.
    if (error_feedback_ && std::isfinite(made) && made > bounds_.residual * length) {
      out_.not_compared += of.chunks;
      return;
    }
    ++out_.results;
    out_.chunks += of.chunks;
    const auto& [sum, count] = usual_[of.fragment];
    const double scale = std::max(length, small * sum / std::max(count, 1.0));
    const double along = product(of.mean, of.result);
    const double apart = length - 2 * along + made;
    const bool is_finite = scale > 0 && std::isfinite(apart / scale);
    const double distance = is_finite ? std::sqrt(std::max(0.0, apart) / scale) : unbounded;
    if (distance > out_.farthest)
      out_.farthest = distance, out_.fragment = of.fragment, out_.round = of.round;
    if (!is_finite || distance > std::max(bounds_.single, outlier)) return;  // it would hide the others
    apart_ += apart / scale;
    along_ += along / scale;
    lengths_ += length / scale;
    used_.push_back({&of, scale});
    for (const auto& [name, part] : of.parts) names_.insert(name);
  }

  void find_shares() {
    if (names_.size() > max_members) return;
    const std::vector<std::string> names(names_.begin(), names_.end());
    std::map<std::string, std::size_t> place;
    for (std::size_t i = 0; i < names.size(); ++i) place[names[i]] = i;
    const auto n = names.size(), values = used_.size() * sketch_size;
    if (values < n + spare_values) return;
    Matrix products(n, std::vector<double>(n, 0.0)), inverse;
    std::vector<double> with_result(n, 0.0), shares(n, 0.0);
    double made = 0, explained = 0, largest = 0;
    for (const auto& [mean, scale] : used_) {
      made += product(mean->result, mean->result) / scale;
      for (const auto& [a, part] : mean->parts) {
        const auto i = place[a];
        with_result[i] += product(part, mean->result) / scale;
        for (const auto& [b, other] : mean->parts) products[i][place[b]] += product(part, other) / scale;
      }
    }
    const auto is_in = invert(products, inverse);
    for (std::size_t i = 0; i < n; ++i) {
      if (!is_in[i] && products[i][i] > 0) return;  // it has the same contributions as others
      largest = std::max(largest, products[i][i]);
      if (!is_in[i]) continue;
      for (std::size_t j = 0; j < n; ++j) shares[i] += is_in[j] ? inverse[i][j] * with_result[j] : 0;
      explained += shares[i] * with_result[i];
    }
    const double variance = std::max(0.0, made - explained) / static_cast<double>(values - n);
    for (std::size_t i = 0; i < n; ++i) {
      if (!is_in[i]) continue;
      out_.used.push_back({names[i], shares[i], std::sqrt(variance * std::max(0.0, inverse[i][i]))});
      judge_share(out_.used.back(), products[i][i], largest);
    }
  }

  /// `part` and `largest`: sums of squared lengths, of this member's parts and of those of the member that
  /// has the largest ones.
  void judge_share(const OwnerVerdict::Used& used, double part, double largest) {
    constexpr double alike = 9;  // squared
    const double off = std::abs(used.share - out_.gain);
    if (off <= share_bound || off <= certain * used.deviation || bounds_.effect == unbounded) return;
    // Codecs with few bits keep less of small parts, so there only the effect on the means counts.
    const bool is_small = part * alike < largest && used.share < out_.gain;
    if (is_small && off * std::sqrt(part / static_cast<double>(used_.size())) <= bounds_.effect) return;
    out_.wrong.push_back(fmt::format(
        "it counted {} {:.2f} times (standard deviation {:.2f}) as much as its tokens give; expected {:.2f}",
        used.member, used.share, used.deviation, out_.gain));
  }

  void judge() {
    const auto find = [&](std::string what) { out_.wrong.push_back(std::move(what)); };
    if (out_.farthest > bounds_.single)
      find(
          fmt::format("its result of fragment {} round {} is {:.2g} lengths of the mean away from the mean; "
                      "expected at most {}",
                      out_.fragment, out_.round, out_.farthest, bounds_.single));
    else if (out_.farthest == unbounded)
      find(fmt::format("its result of fragment {} round {} is not that of any mean", out_.fragment,
                       out_.round));
    constexpr std::size_t enough = 16;  // rounds after which residuals no longer decide
    if (used_.empty() || (error_feedback_ && used_.size() < enough)) return;
    const double values = std::sqrt(static_cast<double>(used_.size() * sketch_size));
    constexpr double usual_distance = 3;
    const double by_chance = unlikely * std::min(out_.distance, usual_distance) / values;
    if (out_.gain < bounds_.gain_min - by_chance || out_.gain > bounds_.gain_max + by_chance)
      find(fmt::format("its results have {:.2f} of the means in them; expected {} to {}", out_.gain,
                       bounds_.gain_min, bounds_.gain_max));
    if (out_.distance > bounds_.distance * (1 + unlikely / values))
      find(fmt::format("its results are {:.2f} of the means' length away from these; expected at most {}",
                       out_.distance, bounds_.distance));
  }

  struct Counted {
    const Mean* mean;
    double scale;  ///< squared length
  };
  Bounds bounds_;
  bool error_feedback_;
  const std::vector<Mean>& means_;
  OwnerVerdict out_;
  std::map<std::uint32_t, std::pair<double, double>> usual_;  ///< by fragment: sum of squared lengths, count
  std::set<std::string> names_;
  std::vector<Counted> used_;
  double apart_ = 0, along_ = 0, lengths_ = 0;
};

}  // namespace

void OwnerAudit::add(const std::string& owner, const AuditReceipts& receipts,
                     const std::map<ChunkId, Sketch>& results) {
  auto& received = received_[{owner, receipts.fragment, receipts.round}];
  received.results.insert(results.begin(), results.end());
  if (received.lines.size() > max_lines) return;
  if (std::ranges::find(received.lines, receipts) == received.lines.end()) received.lines.push_back(receipts);
}

void OwnerAudit::add(const OwnerAudit& other) {
  if (!other.received_.empty()) codecs_ = other.codecs_;
  for (const auto& [place, received] : other.received_) {
    for (const auto& line : received.lines) add(std::get<0>(place), line, received.results);
  }
  false_sketches_.insert(other.false_sketches_.begin(), other.false_sketches_.end());
  audited_.insert(other.audited_.begin(), other.audited_.end());
}

std::vector<OwnerVerdict> OwnerAudit::verdicts(const std::set<std::string>& known) const {
  std::vector<OwnerVerdict> out;
  for (auto place = received_.begin(); place != received_.end();) {
    const auto& owner = std::get<0>(place->first);
    std::vector<Mean> means;
    std::set<std::string> unknown;
    std::uint64_t not_compared = 0, contradictory = 0, parts = 0, audited = 0;
    for (; place != received_.end() && std::get<0>(place->first) == owner; ++place) {
      const auto& [of_owner, fragment, round] = place->first;
      const bool is_flooded = place->second.lines.size() > max_lines;
      for (auto& group : groups_of(place->second.lines)) {
        auto mean = group.mean(place->second.results);
        if (!mean || is_flooded) {
          (is_flooded || group.contradicts_itself() ? contradictory : not_compared) += group.chunks();
          continue;
        }
        mean->fragment = fragment;
        mean->round = round;
        mean->chunks = group.chunks();
        for (const auto& [member, part] : mean->parts) {
          if (!known.contains(member)) unknown.insert(member);
          ++parts;
          audited += audited_.contains({member, fragment, round}) ? 1 : 0;
        }
        means.push_back(std::move(*mean));
      }
    }
    auto& verdict = out.emplace_back(Fit(owner, bounds_of(codecs_), codecs_.error_feedback, means).verdict());
    verdict.not_compared += not_compared;
    verdict.contradictory = contradictory;
    verdict.parts = parts;
    verdict.audited = audited;
    verdict.unknown.assign(unknown.begin(), unknown.end());
  }
  for (const auto& sketch : false_sketches_) {
    auto of_owner = std::ranges::find(out, sketch.owner, &OwnerVerdict::owner);
    if (of_owner == out.end()) of_owner = out.insert(out.end(), {.owner = sketch.owner});
    of_owner->wrong.push_back(
        fmt::format("its receipt for the contribution of {} to fragment {} round {} has a sketch of other "
                    "bytes than it names",
                    sketch.member, sketch.fragment, sketch.round));
  }
  return out;
}

}  // namespace isthmus::app
