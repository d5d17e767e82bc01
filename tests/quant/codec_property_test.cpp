// Properties over arbitrary inputs.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "codec_support.h"

namespace isthmus::quant {
namespace {

template <class Choices>
auto any_of(const Choices& choices) {
  return *rc::gen::elementOf(std::vector(std::begin(choices), std::end(choices)));
}

/// Any format without the narrow scales, which refuse most values.
CodecSpec any_spec() {
  constexpr ScaleFormat wide[] = {ScaleFormat::bf16, ScaleFormat::e8m0};
  constexpr float clips[] = {1, 0.85F};
  return {.kind = any_of(all_kinds),
          .block = std::uint32_t{16} << *rc::gen::inRange(0, 6),
          .scale = any_of(wide),
          .clip = any_of(clips),
          .rounding = any_of(all_roundings),
          .top_k = *rc::gen::inRange<std::uint32_t>(1, 4097)};
}

std::size_t any_length() { return *rc::gen::inRange<std::size_t>(0, 700); }

Noise any_noise() {
  return {.key = *rc::gen::arbitrary<std::uint64_t>(),
          .first_element = *rc::gen::inRange<std::uint64_t>(0, 1U << 30)};
}

/// Finite values with any exponent up to 2^110, so that no format refuses them.
Values any_values(std::size_t n) {
  const auto seed = *rc::gen::arbitrary<unsigned>();
  const auto exponent = *rc::gen::inRange(-149, 90);
  const auto spread = *rc::gen::inRange(0, 20);
  std::mt19937 engine(seed);
  Values out(n);
  for (auto& x : out) {
    const auto mantissa = static_cast<float>(static_cast<std::int32_t>(engine())) * 0x1p-31F;
    x = std::ldexp(mantissa, exponent + (spread == 0 ? 0 : static_cast<int>(engine() % spread)));
    if (engine() % 16 == 0) x = 0;
  }
  return out;
}

Encoded encoded_or_fail(const CodecSpec& spec, const Values& x, const Noise& noise = {}) {
  auto out = buffer(spec, x.size());
  RC_ASSERT(!encode(spec, x, {}, noise, out));
  return out;
}

Values decoded(const CodecSpec& spec, const Encoded& bytes, std::size_t n) {
  Values out(n);
  RC_ASSERT(decode(spec, bytes, out));
  return out;
}

/// All signed levels in ascending order.
Values signed_levels(CodecKind kind) {
  const auto positive = levels_of(kind);
  Values all;
  for (auto level = positive.rbegin(); level != positive.rend(); ++level) all.push_back(-*level);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

/// Distance to the nearest level, by linear search.
float smallest_distance(CodecKind kind, float in_scales) {
  float least = std::numeric_limits<float>::infinity();
  for (const float level : signed_levels(kind)) least = std::min(least, std::abs(in_scales - level));
  return least;
}

RC_GTEST_PROP(CodecProperty, RoundingToNearestGivesTheNearestLevel, ()) {
  auto spec = any_spec();
  spec.kind = any_of(block_kinds);
  spec.rounding = Rounding::nearest;
  const auto x = any_values(any_length());
  const auto bytes = encoded_or_fail(spec, x);
  const auto y = decoded(spec, bytes, x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto scale = scale_of(spec, bytes, i / spec.block);
    RC_ASSERT(y[i] == value_of(spec.kind, code_at(spec, bytes, x.size(), i), scale));
    if (scale == 0) continue;
    const float in_scales = x[i] * (1 / scale);
    RC_ASSERT(std::abs(in_scales - y[i] / scale) == smallest_distance(spec.kind, in_scales));
  }
}

RC_GTEST_PROP(CodecProperty, StochasticRoundingGivesOneOfTheTwoNeighbours, ()) {
  auto spec = any_spec();
  spec.kind = any_of(block_kinds);
  spec.rounding = Rounding::stochastic;
  const auto x = any_values(any_length());
  const auto bytes = encoded_or_fail(spec, x, any_noise());
  const auto y = decoded(spec, bytes, x.size());
  const auto levels = signed_levels(spec.kind);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto scale = scale_of(spec, bytes, i / spec.block);
    if (scale == 0) continue;
    const float in_scales = x[i] * (1 / scale);
    const auto above = std::lower_bound(levels.begin(), levels.end(), in_scales);
    const auto below = std::upper_bound(levels.begin(), levels.end(), in_scales);
    const bool is_above = y[i] / scale == (above == levels.end() ? levels.back() : *above);
    const bool is_below = y[i] / scale == (below == levels.begin() ? levels.front() : *(below - 1));
    RC_ASSERT(is_above || is_below);
  }
}

RC_GTEST_PROP(CodecProperty, Bf16IsWithinItsLastPlace, ()) {
  auto spec = any_spec();
  spec.kind = CodecKind::bf16;
  const auto x = any_values(any_length());
  const auto y = decoded(spec, encoded_or_fail(spec, x, any_noise()), x.size());
  const float units = spec.rounding == Rounding::nearest ? 0x1p-8F : 0x1p-7F;
  for (std::size_t i = 0; i < x.size(); ++i)
    RC_ASSERT(std::abs(y[i] - x[i]) <= std::max(std::abs(x[i]) * units, 0x1p-132F));
}

RC_GTEST_PROP(CodecProperty, TopkKeepsTheLargest, ()) {
  auto spec = any_spec();
  spec.kind = CodecKind::topk;
  const auto x = any_values(1 + any_length());
  const auto y = decoded(spec, encoded_or_fail(spec, x, any_noise()), x.size());
  float smallest_kept = std::numeric_limits<float>::infinity();
  float largest_left = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (y[i] != 0) {
      smallest_kept = std::min(smallest_kept, std::abs(x[i]));
    } else {
      largest_left = std::max(largest_left, std::abs(x[i]));
    }
  }
  if (std::isinf(smallest_kept)) return;  // all below the smallest scale
  RC_ASSERT(largest_left <= smallest_kept);
  const auto kept = std::count_if(y.begin(), y.end(), [](float v) { return v != 0; });
  RC_ASSERT(static_cast<std::size_t>(kept) == kept_of(spec.top_k, x.size()));
}

RC_GTEST_PROP(CodecProperty, ResidualIsExactlyWhatWasNotSent, ()) {
  const auto spec = any_spec();
  const auto noise = any_noise();
  constexpr float decays[] = {1, 0.95F, 0};
  const auto decay = any_of(decays);
  const auto x = any_values(any_length());
  const auto before = any_values(x.size());
  auto residual = before;
  auto bytes = buffer(spec, x.size());
  RC_ASSERT(!encode(spec, x, {residual, decay}, noise, bytes));
  const auto y = decoded(spec, bytes, x.size());
  Values sum(x.size());
  Values lost(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float carried = decay * before[i];
    sum[i] = x[i] + carried;
    lost[i] = sum[i] - y[i];
  }
  RC_ASSERT(same_bits(residual, lost));
  RC_ASSERT(encoded_or_fail(spec, sum, noise) == bytes);
}

RC_GTEST_PROP(CodecProperty, DifferenceIsEncodedLikeItsValues, ()) {
  const auto spec = any_spec();
  const auto noise = any_noise();
  const auto a = any_values(any_length());
  const auto b = any_values(a.size());
  Values difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  auto residual = any_values(a.size());
  auto same_residual = residual;
  auto bytes = buffer(spec, a.size());
  auto same_bytes = bytes;
  RC_ASSERT(!encode_difference(spec, a, b, {residual, 1}, noise, bytes));
  RC_ASSERT(!encode(spec, difference, {same_residual, 1}, noise, same_bytes));
  RC_ASSERT(bytes == same_bytes);
  RC_ASSERT(same_bits(residual, same_residual));
}

RC_GTEST_PROP(CodecProperty, QuotientIsEncodedLikeItsValues, ()) {
  const auto spec = any_spec();
  const auto noise = any_noise();
  const auto divisor = static_cast<float>(*rc::gen::inRange(1, 9));
  const auto sum = any_values(any_length());
  Values mean(sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) mean[i] = sum[i] / divisor;
  auto bytes = buffer(spec, sum.size());
  RC_ASSERT(!encode_quotient(spec, sum, divisor, {}, noise, bytes));
  RC_ASSERT(encoded_or_fail(spec, mean, noise) == bytes);
}

RC_GTEST_PROP(CodecProperty, AccumulatingIsDecodingAndThenAdding, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto weight = static_cast<float>(*rc::gen::inRange(-20, 20)) / 7.0F;
  const auto bytes = encoded_or_fail(spec, x);
  const auto y = decoded(spec, bytes, x.size());
  auto sum = any_values(x.size());
  auto expected = sum;
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] = expected[i] + weight * y[i];
  RC_ASSERT(decode_accumulate(spec, bytes, weight, sum));
  RC_ASSERT(same_bits(sum, expected));
}

RC_GTEST_PROP(CodecProperty, ApplyingIsDecodingAndThenTheStepOfFp32, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto bytes = encoded_or_fail(spec, x);
  const auto plain = encoded_or_fail({.kind = CodecKind::fp32}, decoded(spec, bytes, x.size()));
  constexpr float alphas[] = {0, 0.3F, 1};
  const OuterStep step{.nesterov = *rc::gen::arbitrary<bool>(),
                       .merge = *rc::gen::arbitrary<bool>() ? Merge::carry : Merge::mix,
                       .alpha = any_of(alphas)};
  auto theta = any_values(x.size());
  auto velocity = any_values(x.size());
  auto local = any_values(x.size());
  auto same_theta = theta;
  auto same_velocity = velocity;
  auto same_local = local;
  RC_ASSERT(decode_apply(spec, bytes, step, theta, velocity, local));
  RC_ASSERT(decode_apply({.kind = CodecKind::fp32}, plain, step, same_theta, same_velocity, same_local));
  RC_ASSERT(same_bits(theta, same_theta));
  RC_ASSERT(same_bits(velocity, same_velocity));
  RC_ASSERT(same_bits(local, same_local));
}

RC_GTEST_PROP(CodecProperty, StrangeBytesAreRefusedOrGiveFiniteValues, ()) {
  const auto spec = any_spec();
  const auto n = any_length();
  std::mt19937 engine(*rc::gen::arbitrary<unsigned>());
  // Starts from an encoder's bytes, so that not all inputs are refused at the first scale.
  auto bytes = encoded_or_fail(spec, any_values(n));
  const auto wrong = bytes.empty() ? 0 : *rc::gen::inRange<std::size_t>(0, 4);
  for (std::size_t i = 0; i < wrong; ++i) bytes[engine() % bytes.size()] = static_cast<std::byte>(engine());
  const Values before(n, 1.0F);
  auto y = before;
  if (decode(spec, bytes, y)) {
    RC_ASSERT(std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); }));
  } else {
    RC_ASSERT(wrong > 0 && y == before);
  }
}

RC_GTEST_PROP(CodecProperty, BlocksDoNotInfluenceEachOther, ()) {
  auto spec = any_spec();
  spec.rounding = Rounding::nearest;
  if (spec.kind == CodecKind::topk) spec.top_k = 64;
  const auto unit = unit_of(spec);
  const auto x = any_values(3 * unit);
  const Values middle(x.begin() + unit, x.begin() + 2 * unit);
  const auto all = decoded(spec, encoded_or_fail(spec, x), x.size());
  const Values from_all(all.begin() + unit, all.begin() + 2 * unit);
  RC_ASSERT(same_bits(from_all, decoded(spec, encoded_or_fail(spec, middle), middle.size())));
}

}  // namespace
}  // namespace isthmus::quant
