// Properties over arbitrary inputs.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "codec_support.h"

namespace isthmus::quant {
namespace {

CodecSpec any_spec() {
  const auto kind = *rc::gen::elementOf(std::vector<CodecKind>(std::begin(all_kinds), std::end(all_kinds)));
  return {kind, 2 * *rc::gen::inRange<std::uint32_t>(8, 200)};
}

std::size_t any_length() { return *rc::gen::inRange<std::size_t>(0, 700); }

/// Finite, of any exponent up to 2^110, so that no format refuses them.
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

Encoded encoded(const CodecSpec& spec, const Values& x) {
  auto out = buffer(spec, x.size());
  RC_ASSERT(encode(spec, x, {}, out));
  return out;
}

Values decoded(const CodecSpec& spec, const Encoded& bytes, std::size_t n) {
  Values out(n);
  RC_ASSERT(decode(spec, bytes, out));
  return out;
}

/// The code of one value by plain search instead of bit tricks.
float nearest_value(CodecKind kind, float x, float scale) {
  const float in_scales = scale == 0 ? 0 : x * (1 / scale);
  if (kind != CodecKind::e3m0) return std::nearbyint(in_scales) * scale;
  float best = 0;
  for (int e = 1; e <= 7; ++e) {
    const auto level = std::ldexp(1.0F, e - 7);
    if (std::abs(std::abs(in_scales) - level) <= std::abs(std::abs(in_scales) - best)) best = level;
  }
  return std::copysign(best, in_scales) * scale;
}

RC_GTEST_PROP(CodecProperty, DecodingGivesTheNearestCode, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto bytes = encoded(spec, x);
  const auto y = decoded(spec, bytes, x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (spec.kind == CodecKind::fp32) RC_ASSERT(y[i] == x[i]);
    if (spec.kind == CodecKind::bf16)
      RC_ASSERT(std::abs(y[i] - x[i]) <= std::max(std::abs(x[i]) * 0x1p-8F, 0x1p-133F));
    if (spec.kind == CodecKind::fp32 || spec.kind == CodecKind::bf16) continue;
    const auto scale = scale_of(bytes, i / spec.block);
    RC_ASSERT(y[i] == nearest_value(spec.kind, x[i], scale));
    const float half_step = scale * (spec.kind == CodecKind::e3m0 ? 0.25001F : 0.50001F);
    RC_ASSERT(std::abs(x[i] - y[i]) <= std::max(half_step, 0x1p-120F));
  }
}

RC_GTEST_PROP(CodecProperty, EncodingWhatWasDecodedChangesNothing, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto once = decoded(spec, encoded(spec, x), x.size());
  RC_ASSERT(same_bits(once, decoded(spec, encoded(spec, once), x.size())));
}

RC_GTEST_PROP(CodecProperty, ResidualIsExactlyWhatWasNotSent, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto before = any_values(x.size());
  auto residual = before;
  auto bytes = buffer(spec, x.size());
  RC_ASSERT(encode(spec, x, residual, bytes));
  const auto y = decoded(spec, bytes, x.size());
  Values sum(x.size());
  Values lost(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum[i] = x[i] + before[i];
    lost[i] = sum[i] - y[i];
  }
  RC_ASSERT(same_bits(residual, lost));
  RC_ASSERT(encoded(spec, sum) == bytes);
}

RC_GTEST_PROP(CodecProperty, DifferenceIsEncodedLikeItsValues, ()) {
  const auto spec = any_spec();
  const auto a = any_values(any_length());
  const auto b = any_values(a.size());
  Values difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  auto residual = any_values(a.size());
  auto same_residual = residual;
  auto bytes = buffer(spec, a.size());
  auto same_bytes = bytes;
  RC_ASSERT(encode_difference(spec, a, b, residual, bytes));
  RC_ASSERT(encode(spec, difference, same_residual, same_bytes));
  RC_ASSERT(bytes == same_bytes);
  RC_ASSERT(same_bits(residual, same_residual));
}

RC_GTEST_PROP(CodecProperty, QuotientIsEncodedLikeItsValues, ()) {
  const auto spec = any_spec();
  const auto divisor = static_cast<float>(*rc::gen::inRange(1, 9));
  const auto sum = any_values(any_length());
  Values mean(sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) mean[i] = sum[i] / divisor;
  auto bytes = buffer(spec, sum.size());
  RC_ASSERT(encode_quotient(spec, sum, divisor, {}, bytes));
  RC_ASSERT(encoded(spec, mean) == bytes);
}

RC_GTEST_PROP(CodecProperty, AccumulatingIsDecodingAndThenAdding, ()) {
  const auto spec = any_spec();
  const auto x = any_values(any_length());
  const auto weight = static_cast<float>(*rc::gen::inRange(-20, 20)) / 7.0F;
  const auto bytes = encoded(spec, x);
  const auto y = decoded(spec, bytes, x.size());
  auto sum = any_values(x.size());
  auto expected = sum;
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] = expected[i] + weight * y[i];
  RC_ASSERT(decode_accumulate(spec, bytes, weight, sum));
  RC_ASSERT(same_bits(sum, expected));
}

RC_GTEST_PROP(CodecProperty, StrangeBytesAreRefusedOrGiveFiniteValues, ()) {
  const auto spec = any_spec();
  const auto n = any_length();
  std::mt19937 engine(*rc::gen::arbitrary<unsigned>());
  // Mostly an encoder's bytes, so that not all are refused at the first scale.
  auto bytes = encoded(spec, any_values(n));
  const auto wrong = bytes.empty() ? 0 : *rc::gen::inRange<std::size_t>(0, 4);
  for (std::size_t i = 0; i < wrong; ++i) bytes[engine() % bytes.size()] = static_cast<std::byte>(engine());
  Values y(n);
  if (!decode(spec, bytes, y)) return;
  RC_ASSERT(std::all_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); }));
  if (wrong == 0 || spec.kind == CodecKind::fp32) RC_ASSERT(decode_accumulate(spec, bytes, 1, y));
}

RC_GTEST_PROP(CodecProperty, BlocksDoNotInfluenceEachOther, ()) {
  const auto spec = any_spec();
  const auto x = any_values(3 * spec.block);
  const Values middle(x.begin() + spec.block, x.begin() + 2 * spec.block);
  const auto all = decoded(spec, encoded(spec, x), x.size());
  const Values from_all(all.begin() + spec.block, all.begin() + 2 * spec.block);
  RC_ASSERT(same_bits(from_all, decoded(spec, encoded(spec, middle), middle.size())));
}

}  // namespace
}  // namespace isthmus::quant
