// Compares sparse with plain loops over numbers, bit for bit. The codec's format is written again here from
// docs/numerics.md.

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "replicas.h"

namespace isthmus::outer_sync {
namespace {

using Values = std::vector<float>;

float to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
}

/// The decoded elements that topk keeps of a piece of at most 4096: the 64 largest (fewer of a shorter
/// piece), in two magnitudes.
Values kept(const Values& y) {
  std::vector<std::size_t> order(y.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return std::abs(y[i]); });
  const auto count = (64 * y.size() + 4095) / 4096;
  const float scale = to_bf16(std::abs(y[order[0]]));
  Values out(y.size(), 0.0F);
  for (std::size_t n = 0; n < count; ++n) {
    const auto i = order[n];
    const bool is_large = std::abs(y[i] * (1 / scale)) >= 382.0F / 512;
    out[i] = std::copysign((is_large ? 424.0F : 340.0F) / 512 * scale, y[i]);
  }
  return out;
}

/// Encodes x with error feedback, piece by piece; returns the decoded values and updates the residual.
Values sent(const Values& x, Values& residual) {
  Values out;
  for (std::size_t begin = 0; begin < x.size(); begin += 4096) {
    const auto end = std::min(x.size(), begin + 4096);
    Values y;
    for (auto i = begin; i < end; ++i) {
      const float decayed = 0.95F * residual[i];
      y.push_back(x[i] + decayed);
    }
    const auto values = kept(y);
    for (auto i = begin; i < end; ++i) residual[i] = y[i - begin] - values[i - begin];
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

TEST(Sparse, EveryValueOfEveryStepIsThePapers) {
  auto config = config_of(1, 3, 0, 0);
  config.method = Method::sparse;
  config.chunk_elements = 4096;
  config.final_sync = false;
  config.resolve();
  constexpr std::size_t members = 3, size = 5000;
  const FragmentLayout layout({{0, size}}, 4096);
  Replicas replicas(config, layout, members, random_step);
  replicas.train(13);

  auto global = initial_parameters(layout);
  std::vector<Values> local(members, global), residual(members, Values(size, 0.0F));
  Values owners_residual(size, 0.0F);
  for (std::uint64_t step = 1; step <= 13; ++step) {
    for (std::size_t m = 0; m < members; ++m) {
      for (std::size_t i = 0; i < size; ++i) local[m][i] += random_step(m, step, i);
    }
    if (step % 3 == 0) {
      Values mean(size, 0.0F);
      for (std::size_t m = 0; m < members; ++m) {
        Values x;
        for (std::size_t i = 0; i < size; ++i) x.push_back(global[i] - local[m][i]);
        const auto values = sent(x, residual[m]);
        for (std::size_t i = 0; i < size; ++i) mean[i] += values[i];
      }
      for (auto& x : mean) x /= members;
      const auto result = sent(mean, owners_residual);
      for (std::size_t i = 0; i < size; ++i) global[i] -= result[i];
      for (auto& values : local) values = global;
    }
    for (std::size_t m = 0; m < members; ++m) {
      ASSERT_EQ(replicas.at(m).globals[step - 1], global) << "after step " << step;
      ASSERT_EQ(replicas.at(m).locals[step - 1], local[m]) << "replica " << m << " after step " << step;
    }
  }
  EXPECT_NE(global, initial_parameters(layout));
}

TEST(Sparse, ItSendsAFraction) {
  auto config = config_of(1, 1, 0, 0);
  config.method = Method::sparse;
  config.chunk_elements = 4096;
  config.resolve();
  Replicas replicas(config, FragmentLayout({{0, 8192}}, 4096), 2, random_step);
  std::size_t bytes = 0;
  replicas.network().on_contribution = [&](std::size_t m, ChunkId, protocol::Round, const Bytes& chunk) {
    if (m == 0) bytes += chunk.size();
  };
  replicas.train(1);
  EXPECT_EQ(bytes, 2 * (2 + 64 * 12 / 8 + 64 * 2 / 8))
      << "a scale, positions and codes; bf16 would need 16384";
}

}  // namespace
}  // namespace isthmus::outer_sync
