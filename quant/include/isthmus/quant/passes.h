#pragma once
// The outer loop's passes over encoded and plain values. Each reads every operand once, works in place and
// allocates nothing. They use the CPU's best instruction set; all instruction sets give the same bits.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "isthmus/quant/codec.h"

namespace isthmus::quant {

/// Source of the random numbers for stochastic rounding: a function of the key and the element's index,
/// independent of the order of chunks, threads or devices. Not used for rounding to nearest.
struct Noise {
  std::uint64_t key = 0;
  std::uint64_t first_element = 0;  ///< index of the run's first element; runs end by 2^32
};
/// The key of one fragment's values in one round; `seed` is the sender's own.
[[nodiscard]] std::uint64_t noise_key(std::uint64_t seed, std::uint64_t fragment, std::uint64_t round);

/// Error feedback: `residual` (as long as the input) times `decay` is added to the input, and replaced by
/// what this encoding loses of the sum. An empty residual: nothing is carried.
struct Feedback {
  std::span<float> residual;
  float decay = 1;
};

// Encoders return nullopt, or the index of the first element that cannot be encoded because it is not finite
// or too large for the format; then `out` and the residual are unspecified. If a block's scale would be too
// large, this is the first of the block's largest elements. `out` must have encoded_size bytes.

/// x
[[nodiscard]] std::optional<std::size_t> encode(const CodecSpec& spec, std::span<const float> x,
                                                Feedback feedback, const Noise& noise,
                                                std::span<std::byte> out);
/// minuend - subtrahend: an outer gradient, global minus local parameters.
[[nodiscard]] std::optional<std::size_t> encode_difference(const CodecSpec& spec,
                                                           std::span<const float> minuend,
                                                           std::span<const float> subtrahend,
                                                           Feedback feedback, const Noise& noise,
                                                           std::span<std::byte> out);
/// sum / divisor: the mean of contributions.
[[nodiscard]] std::optional<std::size_t> encode_quotient(const CodecSpec& spec, std::span<const float> sum,
                                                         float divisor, Feedback feedback, const Noise& noise,
                                                         std::span<std::byte> out);

// Decoders accept bytes from the network. They return false, before they write anything, unless `in` has
// exactly encoded_size bytes, its scales and positions are within the format's limits, and all values are
// finite. Codes may have any value, including the padding of the last byte or group.

[[nodiscard]] bool valid(const CodecSpec& spec, std::span<const std::byte> in, std::size_t elements);
[[nodiscard]] bool decode(const CodecSpec& spec, std::span<const std::byte> in, std::span<float> out);
/// sum[i] = sum[i] + weight * value[i], two roundings.
[[nodiscard]] bool decode_accumulate(const CodecSpec& spec, std::span<const std::byte> in, float weight,
                                     std::span<float> sum);

/// How an outer step changes the local parameters. mix: they become their weighted mean with the global ones
/// (Streaming DiLoCo, arXiv 2501.18512, Algorithm 2). carry: they move as far as the global ones moved.
enum class Merge : std::uint8_t { mix, carry };

/// SGD with momentum mu and the merge that follows it. DiLoCo (arXiv 2311.08105, Algorithm 1) uses the
/// Nesterov form.
struct OuterStep {
  float lr = 0.7F;
  float momentum = 0.9F;
  bool nesterov = true;
  Merge merge = Merge::mix;
  float alpha = 0;  ///< mix: weight of the local parameters; 0 copies the global ones and 1 keeps the local
                    ///< ones, bit for bit
};
/// With g the decoded values, theta the global parameters, v their momentum:
///   v <- mu v + g;  theta <- theta - lr (g + mu v)   (Nesterov; otherwise theta <- theta - lr v)
///   mix:    local <- alpha local + (1 - alpha) theta
///   carry:  local <- local + (theta - theta before)
[[nodiscard]] bool decode_apply(const CodecSpec& spec, std::span<const std::byte> in, const OuterStep& step,
                                std::span<float> theta, std::span<float> velocity, std::span<float> local);

/// <x, x>, <x, y> and <y, y> of two vectors.
struct Products {
  double xx = 0, xy = 0, yy = 0;
  friend bool operator==(const Products&, const Products&) = default;
};
/// Elements of a tile, the unit by which a GPU's threads share the work. It is part of the sums' definition.
inline constexpr std::size_t products_tile = 1024;
/// Adds the products of two equally long vectors to `total`, tile by tile. Each tile has sixteen fp64 sums,
/// with element i in sum i mod 16, which are added in order at its end. A product of two fp32 values is exact
/// in fp64, so every machine gets the same bits.
void add_products(std::span<const float> x, std::span<const float> y, Products& total);
/// Adds the products of tiles, in order.
void add_products(std::span<const Products> tiles, Products& total);

}  // namespace isthmus::quant
