// Every instruction set of this CPU gives the same bits as the scalar passes.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "codec_support.h"
#include "isthmus/base/random.h"
#include "level_tables.h"
#include "passes_table.h"

namespace isthmus::quant {
namespace {

/// Searched once, since the search changes the set that the codecs choose meanwhile.
const std::vector<Passes>& vector_targets() {
  static const auto targets = all_vector_passes();
  return targets;
}

// ---- inputs ----

float random_symmetric(std::uint64_t stream, std::uint64_t i) { return 2 * random_unit(11, stream, i) - 1; }

/// Bell-shaped: sums of uniform numbers.
float bell(std::uint64_t i) {
  float sum = 0;
  for (std::uint64_t k = 0; k < 12; ++k) sum += random_unit(11, 2, 12 * i + k);
  return sum - 6;
}
/// Heavier tails. Bits of the logarithm may differ between libraries.
float laplace(std::uint64_t i) {
  const float u = random_unit(11, 3, i) + 0x1p-25F;
  return std::copysign(-std::log(u), random_symmetric(4, i));
}
/// The rows of a weight matrix have gradients of very different magnitude.
float row_scale(std::uint64_t i) {
  return std::ldexp(1.0F, static_cast<int>(random_bits(11, 5, i / 768) % 12) - 16);
}

float scattered_at(const CodecSpec& /*spec*/, std::size_t i) {
  return std::ldexp(random_symmetric(0, i), static_cast<int>(random_bits(11, 1, i / 40) % 60) - 40);
}
float bell_rows(const CodecSpec& /*spec*/, std::size_t i) { return bell(i) * row_scale(i); }
float laplace_rows(const CodecSpec& /*spec*/, std::size_t i) { return laplace(i) * row_scale(i); }
float zeros_and_denormals(const CodecSpec& /*spec*/, std::size_t i) {
  constexpr float values[] = {0, -0.0F, 0x1p-149F, -0x1p-149F, 0x1p-127F, -0x1p-126F, 0x1p-121F, 0};
  return values[random_bits(11, 6, i) % (i % 600 < 300 ? 2 : 8)];
}
float one_large(const CodecSpec& spec, std::size_t i) {
  return i % spec.block == random_bits(11, 7, i / spec.block) % spec.block
             ? -37.5F
             : random_symmetric(8, i) * 0x1p-20F;
}
/// Levels, thresholds and their neighbours, in blocks with powers of two as scales.
float borders(const CodecSpec& spec, std::size_t i) {
  if (i % spec.block == 3) return unit_level(spec.kind) * 0.125F;
  const auto levels = levels_of(spec.kind);
  const auto pick = random_bits(11, 9, i) % levels.size();
  const float level = levels[pick];
  const float border = pick == 0 ? level : (level + levels[pick - 1]) / 2;
  const float exact = random_bits(11, 10, i) % 2 == 0 ? level : border;
  const float near[] = {exact, std::nextafter(exact, 0.0F), std::nextafter(exact, infinity)};
  return std::copysign(near[random_bits(11, 12, i) % 3] * 0.125F, random_symmetric(13, i));
}
float around_the_smallest_scale(const CodecSpec& spec, std::size_t i) {
  const float smallest = spec.scale == ScaleFormat::e5m3 ? 0x1p-28F : 0x1p-120F;
  return random_symmetric(14, i) * smallest * std::ldexp(1.0F, static_cast<int>(i / spec.block % 9) - 2);
}
/// Only the last of every hundred blocks exceeds the largest scale.
float around_the_largest_scale(const CodecSpec& spec, std::size_t i) {
  const float largest = spec.scale == ScaleFormat::e5m3 ? 14.0F : 0x1p120F;
  const float most = unit_level(spec.kind) * largest;
  return random_symmetric(15, i) * most * (i / spec.block % 100 == 99 ? 1.5F : 0.999F);
}
float all_equal(const CodecSpec& /*spec*/, std::size_t i) { return i % 3 == 0 ? -0.5F : 0.5F; }
float few_values(const CodecSpec& /*spec*/, std::size_t i) {
  return static_cast<float>(static_cast<int>(random_bits(11, 16, i) % 9) - 4) * 0.25F;
}

struct Data {
  const char* name;
  float (*at)(const CodecSpec&, std::size_t);
};
constexpr Data all_data[] = {{"scattered", scattered_at},
                             {"bell rows", bell_rows},
                             {"Laplace rows", laplace_rows},
                             {"zeros and denormals", zeros_and_denormals},
                             {"one large", one_large},
                             {"borders", borders},
                             {"around the smallest scale", around_the_smallest_scale},
                             {"around the largest scale", around_the_largest_scale},
                             {"all equal", all_equal},
                             {"few values", few_values}};

// ---- one case ----

struct Case {
  CodecSpec spec;
  std::size_t n = 0;
  const Data* data = nullptr;
  Encoding::Input input = Encoding::Input::plain;
  float divisor = 1;
  bool carries = false;
  float decay = 1;
  Noise noise;
};

std::string text_of(const Case& c) {
  constexpr const char* inputs[] = {"plain", "difference", "quotient"};
  return text_of(c.spec) + ", " + std::to_string(c.n) + " elements, " + c.data->name + ", " +
         inputs[static_cast<std::size_t>(c.input)] +
         (c.carries ? ", residual with decay " + std::to_string(c.decay) : "");
}

/// The operands of a case, with exact sizes and only float alignment.
struct Operands {
  Values a, b, residual;
  explicit Operands(const Case& c) : a(c.n), b(c.n), residual(c.n) {
    for (std::size_t i = 0; i < c.n; ++i) {
      a[i] = c.data->at(c.spec, i);
      b[i] = i / 200 % 2 == 0 ? 0 : bell_rows(c.spec, i + 7);
      residual[i] = i / 300 % 2 == 0 ? 0 : a[(i * 7 + 3) % c.n] * 0.25F;
    }
  }
};

struct Outcome {
  std::size_t good = 0;
  Encoded bytes;
  Values residual;
};

Outcome encoded_by(const Passes& passes, const Case& c, const Operands& operands) {
  Outcome out{.bytes = buffer(c.spec, c.n), .residual = operands.residual};
  const Encoding e{.input = c.input,
                   .a = operands.a.data(),
                   .b = operands.b.data(),
                   .divisor = c.divisor,
                   .residual = c.carries ? out.residual.data() : nullptr,
                   .decay = c.decay,
                   .noise = c.noise,
                   .elements = c.n,
                   .out = out.bytes.data()};
  out.good = passes.encode(c.spec, e);
  return out;
}

template <class T>
std::size_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.empty()) return 0;
  std::size_t i = 0;
  while (i < a.size() && std::memcmp(&a[i], &b[i], sizeof(T)) == 0) ++i;
  return i;
}
/// Compares the index of the first difference with the size.
template <class T>
void expect_same(const std::vector<T>& got, const std::vector<T>& expected, const Passes& passes,
                 const Case& c, const char* what) {
  const auto at = first_difference(got, expected);
  EXPECT_EQ(at, expected.size()) << passes.target << ": " << what << " [" << at << "] differs; "
                                 << text_of(c);
}

/// The results of three decoders for the same bytes.
struct Decoded {
  Values plain, sum, theta, velocity, local;
};

Decoded decoded_by(const Passes& passes, const Case& c, const Operands& operands, const Encoded& bytes) {
  Decoded out{Values(c.n), operands.residual, operands.b, operands.residual, operands.a};
  const auto draw = c.noise.key;
  const OuterStep step{.nesterov = draw % 2 == 0,
                       .merge = draw / 2 % 4 == 3 ? Merge::carry : Merge::mix,
                       .alpha = static_cast<float>(draw / 2 % 4) / 2};
  passes.decode(c.spec, bytes.data(), out.plain.data(), c.n);
  passes.accumulate(c.spec, bytes.data(), 1 / 3.0F, out.sum.data(), c.n);
  passes.apply(c.spec, bytes.data(), step, out.theta.data(), out.velocity.data(),
               draw / 8 % 4 == 0 ? nullptr : out.local.data(), c.n);
  return out;
}

/// Replaces the codes after the block formats' scales with random codes, including codes that rounding never
/// gives.
void scramble_codes(const Case& c, Encoded& bytes) {
  if (!has_blocks(c.spec.kind)) return;
  for (auto i = blocks_of(c.spec, c.n) * scale_bytes(c.spec.scale); i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(random_bits(11, 17, i));
}

void expect_targets_agree(const Case& c) {
  const Operands operands(c);
  const auto scalar = scalar_passes();
  const auto expected = encoded_by(scalar, c, operands);
  auto bytes = expected.bytes;
  const bool all_good = expected.good == c.n;
  if (c.noise.key % 3 == 0) scramble_codes(c, bytes);
  const auto expected_values = all_good ? decoded_by(scalar, c, operands, bytes) : Decoded{};
  for (const auto& passes : vector_targets()) {
    const auto got = encoded_by(passes, c, operands);
    EXPECT_EQ(got.good, expected.good) << passes.target << ": index of the bad element; " << text_of(c);
    if (!all_good || got.good != c.n) continue;
    expect_same(got.bytes, expected.bytes, passes, c, "byte");
    expect_same(got.residual, expected.residual, passes, c, "residual");
    const auto values = decoded_by(passes, c, operands, bytes);
    expect_same(values.plain, expected_values.plain, passes, c, "decoded");
    expect_same(values.sum, expected_values.sum, passes, c, "sum");
    expect_same(values.theta, expected_values.theta, passes, c, "theta");
    expect_same(values.velocity, expected_values.velocity, passes, c, "velocity");
    expect_same(values.local, expected_values.local, passes, c, "local");
  }
}

// ---- all cases ----

/// Draws all parameters that the loops of a test do not set, each from its own stream.
Case drawn_case(const CodecSpec& spec, std::size_t n, std::uint64_t number) {
  const auto draw = [&](std::uint64_t stream, std::uint64_t choices) {
    return random_bits(12, stream, number) % choices;
  };
  constexpr float clips[] = {1, 1, 0.8F};
  constexpr std::uint32_t top_ks[] = {64, 64, 1, 300, 4096};
  constexpr float divisors[] = {1, 3, 4, 7};
  Case c;
  c.spec = spec;
  c.n = n;
  c.data = &all_data[draw(0, std::size(all_data))];
  c.spec.clip = clips[draw(1, std::size(clips))];
  c.spec.top_k = top_ks[draw(2, std::size(top_ks))];
  c.input = static_cast<Encoding::Input>(draw(3, 3));
  c.divisor = divisors[draw(4, std::size(divisors))];
  c.carries = draw(5, 3) != 0;
  c.decay = draw(5, 3) == 1 ? 1 : 0.95F;
  c.noise = {.key = random_bits(12, 6, number), .first_element = draw(7, 1U << 20)};
  return c;
}

/// Each kind with every rounding, scale and some blocks; formats without blocks only with the roundings.
std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs;
  for (const auto kind : all_kinds) {
    for (const auto rounding : all_roundings) {
      for (const auto scale : all_scales) {
        for (const std::uint32_t block : {16, 64, 128, 1024, 4096}) {
          if (!has_blocks(kind) && (scale != ScaleFormat::bf16 || block != 64)) continue;
          specs.push_back({.kind = kind, .block = block, .scale = scale, .rounding = rounding});
        }
      }
    }
  }
  return specs;
}

TEST(Targets, AreTheOnesThatThisCpuHas) {
  EXPECT_FALSE(vector_targets().empty());
  EXPECT_EQ(scalar_passes().target, "scalar");
  std::string names;
  for (const auto& passes : vector_targets()) names.append(" ").append(passes.target);
  RecordProperty("targets", names);
  // Enumerating the targets must not change the choice.
  EXPECT_EQ(vector_passes().target, vector_targets().front().target);
}

TEST(Targets, AgreeAtAllLengths) {
  std::uint64_t number = 0;
  for (const auto& spec : all_specs()) {
    for (const std::size_t n :
         {0, 1, 2, 15, 16, 17, 63, 127, 129, 511, 512, 513, 1024, 1499, 4095, 4096, 4097, 9001})
      expect_targets_agree(drawn_case(spec, n, number++));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Targets, AgreeOnAllInputs) {
  std::uint64_t number = 1 << 20;
  for (const auto& spec : all_specs()) {
    for (const auto& data : all_data) {
      for (int way = 0; way < 9; ++way) {
        auto c = drawn_case(spec, 300 + number % 900, number);
        ++number;
        c.data = &data;
        c.input = static_cast<Encoding::Input>(way % 3);
        c.carries = way / 3 != 0;
        c.decay = way / 3 == 1 ? 1 : 0.95F;
        expect_targets_agree(c);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Targets, AgreeOnManyTilesOfRecordedLikeData) {
  std::uint64_t number = 1 << 24;
  for (const auto kind : all_kinds) {
    for (const auto rounding : all_roundings) {
      auto spec = default_spec(kind);
      spec.rounding = rounding;
      for (const auto* data : {&all_data[1], &all_data[2]}) {
        auto c = drawn_case(spec, 40'000 + 13, number++);
        c.data = data;
        expect_targets_agree(c);
      }
    }
  }
}

/// One bad element among good ones: not finite itself or in the encoded sum, or too large.
struct BadElement {
  const char* what;
  float a, b, residual;
  bool fits_fp32;  ///< for the element alone
};
constexpr BadElement bad_elements[] = {
    {"infinity", infinity, 0, 0, false},
    {"minus infinity", -infinity, 0, 0, false},
    {"NaN", std::numeric_limits<float>::quiet_NaN(), 0, 0, false},
    {"an overflowing difference", largest, -largest, 0, false},
    {"an overflowing sum", -largest, 0, -largest, false},
    {"a NaN carried", 0, 0, std::numeric_limits<float>::quiet_NaN(), false},
    {"the largest number", largest, 0, 0, true}};

/// Chooses the kind of input in which the element is bad.
void suit(Case& c, const BadElement& bad) {
  c.divisor = 1;
  c.decay = 1;
  if (bad.b != 0) c.input = Encoding::Input::difference;
  if (bad.residual != 0) c.carries = true;
}
/// A mean over more than 128 magnitudes brings the largest number into range.
bool can_hold_the_largest(const CodecSpec& spec) {
  return spec.kind == CodecKind::fp32 ||
         (spec.kind == CodecKind::sign && spec.rounding == Rounding::nearest && spec.block > 128);
}

TEST(Targets, NameTheFirstBadElement) {
  constexpr Data good{"bell rows", bell_rows};
  auto targets = vector_targets();
  targets.push_back(scalar_passes());
  std::uint64_t number = 1 << 28;
  for (const auto& spec : all_specs()) {
    for (const auto& bad : bad_elements) {
      if (bad.fits_fp32 && can_hold_the_largest(spec)) continue;
      ++number;
      auto c = drawn_case(spec, 1 + random_bits(12, 20, number) % 5000, number);
      c.data = &good;
      suit(c, bad);
      Operands operands(c);
      const auto where = random_bits(12, 21, number) % c.n;
      operands.a[where] = bad.a;
      operands.b[where] = bad.b;
      operands.residual[where] = bad.residual;
      // A later bad element does not count. An infinity in the same block takes precedence over a value that
      // is merely too large.
      if (!bad.fits_fp32 && where + 1 < c.n) operands.a[c.n - 1] = infinity;
      for (const auto& passes : targets)
        EXPECT_EQ(encoded_by(passes, c, operands).good, where)
            << passes.target << ": " << bad.what << "; " << text_of(c);
    }
    if (testing::Test::HasFailure()) return;
  }
}

// ---- tables of levels ----

/// The definition: counts the levels after the first with a range that begins at or below this magnitude.
template <class T>
std::uint32_t nearest_by_search(float magnitude) {
  std::uint32_t index = 0;
  for (std::size_t i = 1; i < level_count<T>; ++i)
    index += magnitude >= (T::levels[i - 1] + T::levels[i]) / 2 ? 1 : 0;
  return index;
}
template <class T>
std::uint32_t below_by_search(float magnitude) {
  std::uint32_t index = 0;
  for (std::size_t i = 1; i < level_count<T>; ++i) index += magnitude >= T::levels[i] ? 1 : 0;
  return index;
}

template <class T>
void expect_bins_are_the_definition(float magnitude) {
  const auto& tables = level_tables<T>;
  const auto bin = bin_of(magnitude);
  EXPECT_EQ(tables.nearest_below[bin] + (magnitude >= tables.nearest_from[bin] ? 1 : 0),
            nearest_by_search<T>(magnitude))
      << magnitude;
  EXPECT_EQ(tables.level_below[bin] + (magnitude >= tables.level_from[bin] ? 1 : 0),
            below_by_search<T>(magnitude))
      << magnitude;
}

TEST(LevelTables, BinsAreTheDefinition) {
  static_assert(bins_suffice<Lloyd4>);
  static_assert(!bins_suffice<E3m0>, "half of its borders are below the second bin");
  for (int i = 0; i <= 4096 * 3; ++i) expect_bins_are_the_definition<Lloyd4>(static_cast<float>(i) / 4096.0F);
  for (int i = 0; i <= 1024; ++i) {  // all levels and borders are multiples of 1/1024
    const float exact = static_cast<float>(i) / 1024.0F;
    expect_bins_are_the_definition<Lloyd4>(std::nextafter(exact, 0.0F));
    expect_bins_are_the_definition<Lloyd4>(std::nextafter(exact, infinity));
  }
}

template <class T>
void expect_thresholds_are_exact() {
  for (std::size_t i = 1; i < level_count<T>; ++i) {
    EXPECT_LT(T::levels[i - 1], T::levels[i]);
    EXPECT_EQ(double{T::levels[i - 1]} + double{T::levels[i]}, double{T::levels[i - 1] + T::levels[i]});
  }
}
TEST(LevelTables, ThresholdsAreExact) {
  expect_thresholds_are_exact<E3m0>();
  expect_thresholds_are_exact<Lloyd4>();
  expect_thresholds_are_exact<Lloyd3>();
  expect_thresholds_are_exact<Lloyd2>();
  expect_thresholds_are_exact<TopkLevels>();
}

}  // namespace
}  // namespace isthmus::quant
