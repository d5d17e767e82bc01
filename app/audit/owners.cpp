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
};
constexpr double unbounded = std::numeric_limits<double>::infinity();

Bounds bounds_of(const outer_sync::protocol::CodecPlan& codecs) {
  const auto& spec = codecs.codec;
  const auto usual = quant::default_spec(spec.kind);
  const bool is_measured =
      spec.clip == usual.clip && spec.rounding == usual.rounding && spec.block <= usual.block;
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
        break;  // its results have few of the means' values
    }
  }
  // The owner's residual of one round may be large compared with the mean of the next.
  if (codecs.error_feedback) bounds.single = unbounded;
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

// ---- means ----

double product(const Sketch& a, const Sketch& b) {
  double sum = 0;
  for (std::size_t i = 0; i < sketch_size; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

void add(Sketch& sum, const Sketch& sketch, double factor = 1) {
  for (std::size_t i = 0; i < sketch_size; ++i)
    sum[i] = static_cast<float>(double{sum[i]} + factor * double{sketch[i]});
}

/// The result of a group of chunks, and the members' parts of its mean, as sketches.
struct Mean {
  std::uint32_t fragment = 0;
  std::uint64_t round = 0;
  std::map<std::string, Sketch> parts;
  Sketch mean{}, result{};
};

/// Lines of a receipt with many members are about the same chunks, in other groups for each part of the
/// members. A group has all lines that share chunks.
class Group {
 public:
  void add(const AuditReceipts& line) {
    for (const auto chunk : line.chunks) chunks_.insert(chunk);
    for (const auto& received : line.contributions) {
      auto& member = members_[received.member];
      if (member.times == 0) member.weight = received.weight, member.kept = received.kept;
      agree_ = agree_ && member.weight == received.weight && member.kept == received.kept;
      for (const auto chunk : line.chunks) agree_ = member.chunks.insert(chunk).second && agree_;
      ++member.times;
      app::add(member.sketch, received.sketch);
    }
  }
  [[nodiscard]] std::uint64_t chunks() const { return chunks_.size(); }

  /// nullopt if a result is not in the log, or the receipts do not list the same contributions once for each
  /// chunk.
  [[nodiscard]] std::optional<Mean> mean(const std::map<ChunkId, Sketch>& results) const {
    Mean out;
    for (const auto chunk : chunks_) {
      const auto result = results.find(chunk);
      if (result == results.end()) return std::nullopt;
      app::add(out.result, result->second);
    }
    double all = 0, kept = 0;
    for (const auto& [name, member] : members_) {
      if (!agree_ || member.chunks.size() != chunks_.size()) return std::nullopt;
      if (!member.kept) continue;
      all += static_cast<double>(member.weight);
      ++kept;
    }
    if (kept == 0) return std::nullopt;
    for (const auto& [name, member] : members_) {
      if (!member.kept) continue;
      const double share = all > 0 ? static_cast<double>(member.weight) / all : 1 / kept;
      app::add(out.parts[name], member.sketch, share);
      app::add(out.mean, member.sketch, share);
    }
    return out;
  }

 private:
  struct Member {
    std::uint64_t weight = 0;
    bool kept = true;
    std::size_t times = 0;
    std::set<ChunkId> chunks;
    Sketch sketch{};
  };
  std::set<ChunkId> chunks_;
  std::map<std::string, Member> members_;
  bool agree_ = true;
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

/// Inverts a symmetric positive matrix (Gauss-Jordan). Returns the row that depends on the rows before it, if
/// there is one; then the result is unspecified.
std::optional<std::size_t> invert(Matrix a, Matrix& out) {
  constexpr double min_pivot = 1e-9;
  const auto n = a.size();
  out.assign(n, std::vector<double>(n, 0.0));
  std::vector<double> diagonal(n);
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1, diagonal[i] = a[i][i];
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p][p];
    if (!(pivot > min_pivot * diagonal[p])) return p;
    for (std::size_t j = 0; j < n; ++j) a[p][j] /= pivot, out[p][j] /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i][p];
      if (i == p || factor == 0) continue;
      for (std::size_t j = 0; j < n; ++j) a[i][j] -= factor * a[p][j], out[i][j] -= factor * out[p][j];
    }
  }
  return std::nullopt;
}

/// The results of one owner. Each is divided by the length of its mean, but at most by a tenth of the usual
/// length in its fragment: a mean near zero would outweigh all others.
class Fit {
 public:
  Fit(std::string owner, const Bounds& bounds, const std::vector<Mean>& means)
      : bounds_(bounds), means_(means) {
    out_.owner = std::move(owner);
    for (const auto& mean : means_) {
      auto& usual = usual_[mean.fragment];
      const double length = product(mean.mean, mean.mean);
      if (std::isfinite(length)) usual.first += length, ++usual.second;
      for (const auto& [name, part] : mean.parts) names_.insert(name);
    }
  }

  [[nodiscard]] OwnerVerdict verdict() {
    for (const auto& mean : means_) measure(mean);
    if (!used_.empty()) {
      const auto count = static_cast<double>(used_.size());
      out_.gain = lengths_ > 0 ? along_ / lengths_ : 1;
      out_.distance = std::sqrt(std::max(0.0, apart_) / count);
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
    ++out_.results;
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
  }

  void find_shares() {
    if (names_.size() > max_members) return;
    std::vector<std::string> names(names_.begin(), names_.end());
    std::map<std::string, std::size_t> place;
    for (std::size_t i = 0; i < names.size(); ++i) place[names[i]] = i;
    Matrix products(names.size(), std::vector<double>(names.size(), 0.0));
    std::vector<double> with_result(names.size(), 0.0);
    double made = 0;
    for (const auto& [mean, scale] : used_) {
      made += product(mean->result, mean->result) / scale;
      for (const auto& [a, part] : mean->parts) {
        const auto i = place[a];
        with_result[i] += product(part, mean->result) / scale;
        for (const auto& [b, other] : mean->parts) products[i][place[b]] += product(part, other) / scale;
      }
    }
    // Without members that contributed nothing, or the same as others before them.
    const auto leave_out = [&](std::size_t i) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      names.erase(names.begin() + at);
      with_result.erase(with_result.begin() + at);
      products.erase(products.begin() + at);
      for (auto& row : products) row.erase(row.begin() + at);
    };
    Matrix inverse;
    while (const auto dependent = invert(products, inverse)) leave_out(*dependent);
    const auto n = names.size(), values = used_.size() * sketch_size;
    if (values < n + spare_values) return;
    std::vector<double> shares(n, 0.0);
    double explained = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) shares[i] += inverse[i][j] * with_result[j];
      explained += shares[i] * with_result[i];
    }
    const double variance = std::max(0.0, made - explained) / static_cast<double>(values - n);
    for (std::size_t i = 0; i < n; ++i) {
      const double deviation = std::sqrt(variance * std::max(0.0, inverse[i][i]));
      out_.used.push_back({names[i], shares[i], deviation});
      const double off = std::abs(shares[i] - out_.gain);
      const double effect = off * std::sqrt(products[i][i] / static_cast<double>(used_.size()));
      if (off > share_bound && off > certain * deviation && effect > bounds_.effect)
        out_.wrong.push_back(
            fmt::format("it counted {} {:.2f} times (standard deviation {:.2f}) as much as its tokens give; "
                        "expected {:.2f}",
                        names[i], shares[i], deviation, out_.gain));
    }
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
    if (used_.empty()) return;
    const double values = std::sqrt(static_cast<double>(used_.size() * sketch_size));
    const double by_chance = unlikely * out_.distance / values;
    if (out_.gain < bounds_.gain_min - by_chance || out_.gain > bounds_.gain_max + by_chance)
      find(fmt::format("its results have {:.2f} of the means in them; expected {} to {}", out_.gain,
                       bounds_.gain_min, bounds_.gain_max));
    if (out_.distance > bounds_.distance * (1 + unlikely / values))
      find(fmt::format("its results are {:.2f} of the means' length away from these; expected at most {}",
                       out_.distance, bounds_.distance));
  }

  struct Used {
    const Mean* mean;
    double scale;  ///< squared length
  };
  Bounds bounds_;
  const std::vector<Mean>& means_;
  OwnerVerdict out_;
  std::map<std::uint32_t, std::pair<double, double>> usual_;  ///< by fragment: sum of squared lengths, count
  std::set<std::string> names_;
  std::vector<Used> used_;
  double apart_ = 0, along_ = 0, lengths_ = 0;
};

}  // namespace

void OwnerAudit::add(const std::string& owner, const AuditReceipts& receipts,
                     const std::map<ChunkId, Sketch>& results) {
  auto& received = received_[{owner, receipts.fragment, receipts.round}];
  received.results.insert(results.begin(), results.end());
  if (std::ranges::find(received.lines, receipts) == received.lines.end()) received.lines.push_back(receipts);
}

void OwnerAudit::add(const OwnerAudit& other) {
  if (!other.received_.empty()) codecs_ = other.codecs_;
  for (const auto& [place, received] : other.received_) {
    for (const auto& line : received.lines) add(std::get<0>(place), line, received.results);
  }
  false_sketches_.insert(other.false_sketches_.begin(), other.false_sketches_.end());
}

std::vector<OwnerVerdict> OwnerAudit::verdicts(const std::set<std::string>& known) const {
  std::vector<OwnerVerdict> out;
  for (auto place = received_.begin(); place != received_.end();) {
    const auto& owner = std::get<0>(place->first);
    std::vector<Mean> means;
    std::set<std::string> unknown;
    std::uint64_t chunks = 0, not_compared = 0;
    for (; place != received_.end() && std::get<0>(place->first) == owner; ++place) {
      for (const auto& group : groups_of(place->second.lines)) {
        auto mean = group.mean(place->second.results);
        (mean ? chunks : not_compared) += group.chunks();
        if (!mean) continue;
        mean->fragment = std::get<1>(place->first);
        mean->round = std::get<2>(place->first);
        for (const auto& [member, part] : mean->parts)
          if (!known.contains(member)) unknown.insert(member);
        means.push_back(std::move(*mean));
      }
    }
    auto& verdict = out.emplace_back(Fit(owner, bounds_of(codecs_), means).verdict());
    verdict.chunks = chunks;
    verdict.not_compared = not_compared;
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
