// topk on a CPU: finds the largest magnitudes of a piece, and encodes them with their positions. Included by
// passes-inl.h.
//
// No include guard, on purpose.

/// Number of magnitudes with at least these bits; n must be a multiple of a row.
std::uint32_t count_at_least(const float* v, std::size_t n, std::uint32_t bits) {
  using O = Lanes;
  auto count = O::set(std::uint32_t{0});
  for (std::size_t i = 0; i < n; i += O::lanes) {
    const auto magnitude = magnitude_bits<O>(O::load(v + i));
    count = O::count(count, O::not_below(magnitude, O::set(bits)));
  }
  return O::sum_of(count);
}

/// Returns a magnitude, as bits, that exactly k of n values reach, if there is one; otherwise, because of
/// ties, the k-th largest. Found bit by bit from the top bit of the largest magnitude.
std::uint32_t smallest_of_largest(const float* v, std::size_t n, std::size_t k, std::uint32_t largest) {
  std::uint32_t found = 0;
  for (std::uint32_t bit = std::bit_floor(largest); bit != 0; bit >>= 1) {
    const auto count = count_at_least(v, n, found | bit);
    if (count >= k) found |= bit;
    if (count == k) break;
  }
  return found;
}

/// Finds the largest magnitudes of up to `piece` values with few reads of them.
struct Chooser {
  static constexpr std::size_t set = 16;  ///< values that share one maximum
  alignas(64) float maxima[piece / set + row];
  alignas(64) float candidates[piece + row];
  std::uint16_t positions[piece];

  static std::size_t fill_row(float* v, std::size_t n) {
    for (; n % row != 0; ++n) v[n] = 0;
    return n;
  }

  /// A magnitude that at least k values reach, because k of the sets' maxima do.
  std::uint32_t bound(const float* v, std::size_t n, std::size_t k, std::uint32_t largest) {
    using O = Lanes;
    std::size_t sets = 0;
    for (std::size_t begin = 0; begin < n; begin += set * O::lanes) {  // sets are side by side in the lanes
      auto maximum = O::set(std::uint32_t{0});
      for (auto i = begin; i < std::min(begin + set * O::lanes, n); i += O::lanes)
        maximum = O::max(maximum, magnitude_bits<O>(O::load(v + i)));
      O::store(maxima + sets, O::floats(maximum));
      sets += O::lanes;
    }
    return k > sets ? 0 : smallest_of_largest(maxima, fill_row(maxima, sets), k, largest);
  }

  /// Puts the positions of the k largest of n values first in `positions`, ascending; of equal ones the first
  /// are taken. `v` must be padded with zeros to a row.
  void choose(const float* v, std::size_t n, std::size_t k, std::uint32_t largest) {
    using O = Lanes;
    const auto min_candidate = bound(v, (n + row - 1) / row * row, k, largest);
    std::size_t found = 0;
    for (std::size_t i = 0; i < n; i += O::lanes) {
      const auto magnitudes = magnitude_bits<O>(O::load(v + i));
      if (!O::any(O::not_below(magnitudes, O::set(min_candidate)))) continue;
      for (auto j = i; j < std::min(i + O::lanes, n); ++j) {
        if ((std::bit_cast<std::uint32_t>(v[j]) & magnitude_mask) < min_candidate) continue;
        candidates[found] = v[j];
        positions[found++] = static_cast<std::uint16_t>(j);
      }
    }
    const auto filled = fill_row(candidates, found);
    const auto least = smallest_of_largest(candidates, filled, k, largest);
    auto equals =
        k - count_at_least(candidates, filled, least + 1);  // how many of the values equal to `least` to take
    std::size_t chosen = 0;
    for (std::size_t i = 0; i < found && chosen < k; ++i) {
      const auto magnitude = std::bit_cast<std::uint32_t>(candidates[i]) & magnitude_mask;
      if (magnitude < least || (magnitude == least && equals == 0)) continue;
      if (magnitude == least) --equals;
      positions[chosen++] = positions[i];
    }
  }
};

void store_positions(const std::uint16_t* positions, std::size_t k, std::byte* out) {
  for (std::size_t i = 0; i < k; i += 2) {
    const std::uint32_t pair = positions[i] | (i + 1 < k ? std::uint32_t{positions[i + 1]} << 12 : 0);
    std::memcpy(out, &pair, i + 1 < k ? 3 : 2);
    out += 3;
  }
}
void load_positions(const std::byte* in, std::size_t k, std::uint16_t* positions) {
  for (std::size_t i = 0; i < k; i += 2) {
    std::uint32_t pair = 0;
    std::memcpy(&pair, in, i + 1 < k ? 3 : 2);
    in += 3;
    positions[i] = pair & 0xfff;
    if (i + 1 < k) positions[i + 1] = static_cast<std::uint16_t>(pair >> 12);
  }
}

template <bool stochastic>
std::size_t encode_topk(const CodecSpec& spec, const Encoding& e) {
  using O = ScalarLanes;
  using T = Table<TopkLevels>;
  Tile tile;
  Chooser chooser;
  std::byte* out = e.out;
  for (std::size_t begin = 0; begin < e.elements; begin += piece) {
    const auto n = std::min(piece, e.elements - begin);
    gather(e, begin, n, row, piece, tile);
    const auto largest = tile.absmax[0];
    if (largest >= infinity_bits) return begin + first_at_least(tile.v, n, infinity_bits);
    const auto code = scale_code(ScaleFormat::bf16, largest, largest);
    if (code == no_scale) return begin + first_at_least(tile.v, n, largest);
    const auto scale = std::bit_cast<float>(scale_bits(ScaleFormat::bf16, code));
    const auto inverse = code == 0 ? 0 : 1 / scale;
    const auto kept = kept_of(spec.top_k, n);
    Ahead(e, begin + piece).fetch(0, piece);
    chooser.choose(tile.v, n, kept, largest);
    std::byte* values = out + 2 + positions_bytes(kept);
    std::memset(values, 0, (kept + 3) / 4);
    for (std::size_t i = 0; i < kept; ++i) {
      const auto at = chooser.positions[i];
      const auto element = static_cast<std::uint32_t>(e.noise.first_element + begin + at);
      const auto got = code_of<T, stochastic, O>(tile.v[at], inverse, element, e.noise.key);
      values[i / 4] |= static_cast<std::byte>(got.code << (2 * (i % 4)));
      tile.v[at] -= got.level * scale;
    }
    store_scale(ScaleFormat::bf16, code, out);
    store_positions(chooser.positions, kept, out);
    out = values + (kept + 3) / 4;
    keep_residual(e, begin, n, tile.v);
  }
  return e.elements;
}

template <class Use>
void decode_topk(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use) {
  using O = ScalarLanes;
  using T = Table<TopkLevels>;
  Tile tile;
  std::uint16_t positions[piece];
  for (std::size_t begin = 0; begin < elements; begin += piece) {
    const auto n = std::min(piece, elements - begin);
    const auto kept = kept_of(spec.top_k, n);
    const auto scale = load_scale(ScaleFormat::bf16, in);
    load_positions(in, kept, positions);
    in += positions_bytes(kept);
    std::memset(tile.v, 0, sizeof tile.v);
    for (std::size_t i = 0; i < kept; ++i) {
      const auto code = static_cast<std::uint32_t>(in[i / 4]) >> (2 * (i % 4)) & 3;
      tile.v[positions[i]] = T::value<O>(code) * scale;
    }
    in += (kept + 3) / 4;
    use(begin, n, tile.v);
  }
}
