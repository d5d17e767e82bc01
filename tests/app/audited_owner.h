#pragma once
// An owner of chunks with receipts and results of real reducers, honest or not, and the audit of them. For
// tests.

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "audit/owners.h"
#include "isthmus/base/random.h"
#include "isthmus/outer_sync/engine/reducer.h"
#include "isthmus/outer_sync/engine/sketch.h"
#include "isthmus/quant/passes.h"
#include "run/audit/receipt_groups.h"

namespace isthmus::app::audited_owner {

using outer_sync::Reducer;
using outer_sync::protocol::CodecPlan;
using outer_sync::protocol::SharedBytes;
using outer_sync::protocol::Sketch;
using quant::CodecKind;
using Weights = std::vector<std::uint64_t>;

inline constexpr std::uint64_t chunk_elements = 4096;
inline constexpr std::uint64_t chunks = 4;
inline const outer_sync::FragmentLayout layout({{0, chunks* chunk_elements}}, chunk_elements);

using Values = std::vector<float>;

/// From a bell-shaped distribution; rarely far larger ones, as in outer gradients. They are kept, since they
/// take most of the time and all worlds use the same.
inline const Values& random_values(std::uint64_t seed, std::uint64_t round, std::uint64_t chunk) {
  static std::map<std::array<std::uint64_t, 3>, Values> known;
  const auto [place, is_new] = known.try_emplace({seed, round, chunk});
  auto& values = place->second;
  if (!is_new) return values;
  values.resize(chunk_elements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto u = random_unit(seed, round, 2 * (chunk * chunk_elements + i));
    const auto v = random_unit(seed, round, 2 * (chunk * chunk_elements + i) + 1);
    const auto bell =
        std::sqrt(-2 * std::log(1 - 0.999999F * u)) * std::cos(2 * std::numbers::pi_v<float> * v);
    values[i] = bell * bell * bell;
  }
  return values;
}

/// Members with similar outer gradients, and one owner for all chunks.
struct World {
  quant::CodecSpec codec = quant::default_spec(CodecKind::lloyd4);
  std::size_t members = 2;
  std::uint64_t rounds = 20;
  float largest = 1;  ///< size of the last member's outer gradients; that of the others is 1
  bool error_feedback = false;
  std::vector<std::uint64_t> weights = std::vector<std::uint64_t>(members, 1000);
  float persistent = 0;       ///< size of a part of the outer gradients that all rounds have in common
  std::uint64_t audited = 1;  ///< the first round under audit
  /// Changes what the owner reduces, and with which weights.
  std::function<void(std::vector<Values>&, std::vector<std::uint64_t>&, std::uint64_t round)> lie = {};
  /// Size of all outer gradients in a round.
  std::function<float(std::uint64_t round)> size = [](std::uint64_t) { return 1.0F; };
  /// Changes the owner's receipts.
  std::function<void(std::vector<AuditReceipts>&)> forge = {};

  [[nodiscard]] SharedBytes encoded(const Values& values, std::uint64_t round) const {
    Bytes bytes(quant::encoded_size(codec, values.size()));
    EXPECT_FALSE(quant::encode(codec, values, {}, {quant::noise_key(1, 0, round), 0}, bytes));
    return std::make_shared<const Bytes>(std::move(bytes));
  }

  [[nodiscard]] std::vector<Values> gradients(std::uint64_t round, std::uint64_t chunk) const {
    const auto &common = random_values(1000, round, chunk), &always = random_values(1000, 0, chunk);
    std::vector<Values> out;
    for (std::size_t m = 0; m < members; ++m) {
      auto& own = out.emplace_back(random_values(m, round, chunk));
      const float factor = size(round) * (m + 1 == members ? largest : 1);
      for (std::size_t i = 0; i < own.size(); ++i)
        own[i] = factor * (own[i] + 0.5F * common[i] + persistent * always[i]);
    }
    return out;
  }

  [[nodiscard]] OwnerVerdict verdict() const {
    const CodecPlan plan{.codec = codec, .warmup_codec = codec, .error_feedback = error_feedback, .seed = 1};
    Reducer reducer(layout, plan);
    OwnerAudit audit(plan);
    std::set<std::string> known;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      ReceiptGroups groups;
      std::vector<AuditReceipts> lines;
      std::map<outer_sync::ChunkId, Sketch> results;
      for (outer_sync::ChunkId chunk = 0; chunk < chunks; ++chunk) {
        auto values = gradients(round, chunk);
        outer_sync::protocol::Receipt receipt{.round = round, .chunk = chunk, .of = chunks};
        std::vector<SharedBytes> reduced;
        for (std::size_t m = 0; m < members; ++m) {
          reduced.push_back(encoded(values[m], round));
          auto& received = receipt.contributions.emplace_back(reducer.received(chunk, round, *reduced[m]));
          received.member = "m" + std::to_string(m);
          received.weight = weights[m];
          known.insert(received.member);
        }
        auto used = weights;
        if (lie) {
          lie(values, used, round);
          for (std::size_t m = 0; m < members; ++m) reduced[m] = encoded(values[m], round);
        }
        const auto made = reducer.received(chunk, round, *reducer.reduce(chunk, round, reduced, used).bytes);
        receipt.result = made.bytes;
        results[chunk] = made.sketch;
        for (auto& line : groups.add(receipt)) lines.push_back(std::move(line));
      }
      for (auto& line : groups.rest()) lines.push_back(std::move(line));
      if (forge) forge(lines);
      if (round < audited) continue;
      for (const auto& line : lines) audit.add("owner", line, results);
    }
    return audit.verdicts(known).at(0);
  }
};

}  // namespace isthmus::app::audited_owner
