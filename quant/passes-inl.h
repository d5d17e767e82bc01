// The passes on a CPU, for any number of lanes up to a row. A tile of values stays in the first-level cache
// while each step of the format is one loop over it. Included like arithmetic-inl.h, and after it. Lanes are
// the instruction set's operations; ScalarLanes handles the tails.
//
// No include guard, on purpose.

/// Elements of a tile, unless a block is longer.
inline constexpr std::size_t usual_tile = 512;
/// How far ahead of the computation operands are prefetched, in elements.
inline constexpr std::size_t usual_distance = 1024;

struct Tile {
  alignas(64) float v[largest_block];
  std::uint32_t absmax[usual_tile / smallest_block];  ///< bits of each block's largest magnitude
  float scale[usual_tile / smallest_block];
  float inverse[usual_tile / smallest_block];
};

// ---- inputs of encoders ----

struct PlainInput {
  const float* a;
  template <class O>
  ISTHMUS_LANES typename O::F at(std::size_t i) const {
    return O::load(a + i);
  }
};
struct DifferenceInput {
  const float* a;
  const float* b;
  template <class O>
  ISTHMUS_LANES typename O::F at(std::size_t i) const {
    return O::sub(O::load(a + i), O::load(b + i));
  }
};
struct QuotientInput {
  const float* a;
  float divisor;
  template <class O>
  ISTHMUS_LANES typename O::F at(std::size_t i) const {
    return O::div(O::load(a + i), O::set(divisor));
  }
};

/// Gathers one block, from element i on, as far as whole lanes go; returns the bits of its largest magnitude.
template <class O, class Input>
ISTHMUS_LANES std::uint32_t gather_from(const Input& input, const float* residual, float decay,
                                        std::size_t& i, std::size_t end, float* v) {
  auto largest = O::set(std::uint32_t{0});
  for (; i + O::lanes <= end; i += O::lanes) {
    auto x = input.template at<O>(i);
    if (residual != nullptr) x = O::add(x, O::mul(O::set(decay), O::load(residual + i)));
    O::store(v + i, x);
    largest = O::max(largest, magnitude_bits<O>(x));
  }
  return O::max_of(largest);
}

template <class Input>
void gather_input(const Input& input, const float* residual, float decay, std::size_t n, std::size_t block,
                  Tile& tile) {
  for (std::size_t b = 0, i = 0; i < n; ++b) {
    const auto end = std::min(i + block, n);
    const auto largest = gather_from<Lanes>(input, residual, decay, i, end, tile.v);
    tile.absmax[b] = std::max(largest, gather_from<ScalarLanes>(input, residual, decay, i, end, tile.v));
  }
}

/// Gathers elements [begin, begin + n), zeros up to the next multiple of `filled`, and each block's largest
/// magnitude.
void gather(const Encoding& e, std::size_t begin, std::size_t n, std::size_t filled, std::size_t block,
            Tile& tile) {
  const float* residual = e.residual == nullptr ? nullptr : e.residual + begin;
  switch (e.input) {
    case Encoding::Input::plain:
      gather_input(PlainInput{e.a + begin}, residual, e.decay, n, block, tile);
      break;
    case Encoding::Input::difference:
      gather_input(DifferenceInput{e.a + begin, e.b + begin}, residual, e.decay, n, block, tile);
      break;
    case Encoding::Input::quotient:
      gather_input(QuotientInput{e.a + begin, e.divisor}, residual, e.decay, n, block, tile);
      break;
  }
  for (std::size_t i = n; i % filled != 0; ++i) tile.v[i] = 0;
}

/// Prefetches the inputs of later tiles while this one is computed. Otherwise memory and computation would
/// take turns, and half of the memory's time would be lost.
struct Ahead {
  const float* streams[3] = {};
  std::size_t count = 0;

  Ahead(const Encoding& e, std::size_t begin) {
    streams[count++] = e.a + begin;
    if (e.input == Encoding::Input::difference) streams[count++] = e.b + begin;
    if (e.residual != nullptr) streams[count++] = e.residual + begin;
  }
  /// Prefetches elements [at, at + n) of the inputs; n must be a multiple of a row.
  ISTHMUS_LANES void fetch(std::size_t at, std::size_t n) const {
    for (std::size_t s = 0; s < count; ++s) {
      for (std::size_t i = 0; i < n; i += row) Lanes::prefetch(streams[s] + at + i);
    }
  }
};

void keep_residual(const Encoding& e, std::size_t begin, std::size_t n, const float* v) {
  if (e.residual != nullptr) std::memcpy(e.residual + begin, v, n * sizeof(float));
}

/// Sum of n magnitudes, added in rows: sixteen partial sums, then those in order.
float sum_of_magnitudes(const float* v, std::size_t n) {
  using O = Lanes;
  alignas(64) float sums[row] = {};
  for (std::size_t i = 0; i < n; i += O::lanes) {
    float* sum = sums + i % row;
    O::store(sum, O::add(O::load(sum), O::floats(magnitude_bits<O>(O::load(v + i)))));
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

/// Index of the first of n values with a magnitude of at least these bits.
std::size_t first_at_least(const float* v, std::size_t n, std::uint32_t bits) {
  std::size_t i = 0;
  while (i + 1 < n && (std::bit_cast<std::uint32_t>(v[i]) & magnitude_mask) < bits) ++i;
  return i;
}

// ---- block formats: encoding ----

constexpr std::size_t blocks_in(std::size_t n, std::size_t block) { return (n + block - 1) / block; }
/// Elements of a tile, with the zeros that fill its last group, which may be in blocks of their own.
constexpr std::size_t filled_up(std::size_t n) {
  return (n + largest_group - 1) / largest_group * largest_group;
}

void store_scale(ScaleFormat format, std::uint32_t code, std::byte*& out) {
  const auto bytes = static_cast<std::uint16_t>(code);
  std::memcpy(out, &bytes, scale_bytes(format));
  out += scale_bytes(format);
}
float load_scale(ScaleFormat format, const std::byte*& in) {
  std::uint16_t code = 0;
  std::memcpy(&code, in, scale_bytes(format));
  in += scale_bytes(format);
  return std::bit_cast<float>(scale_bits(format, code));
}

/// Chooses the scales of a tile of n elements. Returns n, or the index of an element that has no valid scale.
template <class T, bool from_mean>
std::size_t choose_scales(const CodecSpec& spec, std::size_t n, Tile& tile, std::byte*& out) {
  for (std::size_t b = 0, begin = 0; begin < n; ++b, begin += spec.block) {
    const auto size = std::min<std::size_t>(spec.block, n - begin);
    const float* v = tile.v + begin;
    const auto largest = tile.absmax[b];
    if (largest >= infinity_bits) return begin + first_at_least(v, size, infinity_bits);
    float wanted = 0;
    if constexpr (from_mean) {
      wanted = sum_of_magnitudes(v, (size + row - 1) / row * row) / static_cast<float>(size);
    } else {
      wanted = std::bit_cast<float>(largest) * (spec.clip / T::unit);
    }
    const auto code = scale_code(spec.scale, largest, std::bit_cast<std::uint32_t>(wanted));
    if (code == no_scale) return begin + first_at_least(v, size, largest);
    store_scale(spec.scale, code, out);
    tile.scale[b] = std::bit_cast<float>(scale_bits(spec.scale, code));
    tile.inverse[b] = code == 0 ? 0 : 1 / tile.scale[b];
  }
  return n;
}

/// Encodes one lane-wide column of a group. Writes the part of the values that the codes lose to `lost`,
/// which may be the tile's values.
template <class T, bool stochastic, std::size_t first_row, std::size_t rows>
ISTHMUS_LANES void encode_column(const Tile& tile, float* lost, std::size_t begin, int block_shift,
                                 std::uint32_t element, std::uint64_t key, typename Lanes::U& codes,
                                 typename Lanes::U& signs) {
  using O = Lanes;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto i = begin + (first_row + r) * row;
    const auto b = i >> block_shift;
    const auto x = O::load(tile.v + i);
    const auto got = code_of<T, stochastic, O>(x, O::set(tile.inverse[b]),
                                               O::count_from(element + static_cast<std::uint32_t>(i)), key);
    O::store(lost + i, O::sub(x, O::mul(got.level, O::set(tile.scale[b]))));
    if constexpr (T::bits == 3) {
      codes = O::bit_or(
          codes, O::shift_left_by(O::bit_and(got.code, O::set(std::uint32_t{3})), 2 * static_cast<int>(r)));
      const auto sign = O::template shift_right<2>(got.code);
      signs = O::bit_or(signs, O::shift_left_by(sign, static_cast<int>(first_row + r)));
    } else {
      codes = O::bit_or(codes, O::shift_left_by(got.code, T::bits * static_cast<int>(r)));
    }
  }
}

template <class T, bool stochastic>
void encode_groups(const Tile& tile, float* lost, std::size_t n, int block_shift, std::uint32_t element,
                   std::uint64_t key, const Ahead& ahead, std::byte*& out) {
  using O = Lanes;
  constexpr std::size_t rows = group_rows(T::bits);
  for (std::size_t begin = 0; begin < n; begin += rows * row) {
    ahead.fetch(begin, rows * row);
    for (std::size_t j = 0; j < row; j += O::lanes) {
      const auto zero = O::set(std::uint32_t{0});
      auto codes = zero;
      auto signs = zero;
      if constexpr (T::bits == 3) {
        auto more = zero;
        encode_column<T, stochastic, 0, 4>(tile, lost, begin + j, block_shift, element, key, codes, signs);
        encode_column<T, stochastic, 4, 4>(tile, lost, begin + j, block_shift, element, key, more, signs);
        O::store_bytes(out + row + j, more);
        O::store_bytes(out + 2 * row + j, signs);
      } else {
        encode_column<T, stochastic, 0, rows>(tile, lost, begin + j, block_shift, element, key, codes, signs);
      }
      O::store_bytes(out + j, codes);
    }
    out += group_bytes(T::bits);
  }
}

template <class T, bool stochastic, bool from_mean>
std::size_t encode_blocks(const CodecSpec& spec, const Encoding& e) {
  Tile tile;
  const auto longest = std::max<std::size_t>(spec.block, usual_tile);
  const auto distance = std::max(longest, usual_distance);
  const auto block_shift = std::countr_zero(spec.block);
  std::byte* scales = e.out;
  std::byte* codes = e.out + blocks_in(e.elements, spec.block) * scale_bytes(spec.scale);
  for (std::size_t begin = 0; begin < e.elements; begin += longest) {
    const auto n = std::min(longest, e.elements - begin);
    gather(e, begin, n, largest_group, spec.block, tile);
    const auto good = choose_scales<T, from_mean>(spec, n, tile, scales);
    if (good < n) return begin + good;
    for (auto b = blocks_in(n, spec.block); b < blocks_in(filled_up(n), spec.block); ++b)
      tile.scale[b] = tile.inverse[b] = 0;
    const bool whole = e.residual != nullptr && n % largest_group == 0;
    encode_groups<T, stochastic>(tile, whole ? e.residual + begin : tile.v, n, block_shift,
                                 static_cast<std::uint32_t>(e.noise.first_element + begin), e.noise.key,
                                 Ahead(e, begin + distance), codes);
    if (!whole) keep_residual(e, begin, n, tile.v);
  }
  return e.elements;
}

template <class T>
std::size_t encode_blocks(const CodecSpec& spec, const Encoding& e) {
  constexpr bool is_sign = T::bits == 1;
  if (spec.rounding == Rounding::stochastic) return encode_blocks<T, true, false>(spec, e);
  return encode_blocks<T, false, is_sign>(spec, e);
}

// ---- block formats: decoding ----

template <class T, std::size_t first_row, std::size_t rows>
ISTHMUS_LANES void decode_column(Tile& tile, std::size_t begin, int block_shift, typename Lanes::U codes,
                                 typename Lanes::U signs) {
  using O = Lanes;
  constexpr int code_bits = T::bits == 3 ? 2 : T::bits;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto i = begin + (first_row + r) * row;
    auto code = O::bit_and(O::shift_right_by(codes, code_bits * static_cast<int>(r)),
                           O::set((std::uint32_t{1} << code_bits) - 1));
    if constexpr (T::bits == 3) {
      const auto sign = O::shift_right_by(signs, static_cast<int>(first_row + r));
      code = O::bit_or(code, O::template shift_left<2>(O::bit_and(sign, O::set(std::uint32_t{1}))));
    }
    O::store(tile.v + i, O::mul(T::template value<O>(code), O::set(tile.scale[i >> block_shift])));
  }
}

template <class T>
void decode_groups(const std::byte*& in, std::size_t n, int block_shift, Tile& tile) {
  using O = Lanes;
  constexpr std::size_t rows = group_rows(T::bits);
  for (std::size_t begin = 0; begin < n; begin += rows * row) {
    for (std::size_t j = 0; j < row; j += O::lanes) {
      const auto codes = O::load_bytes(in + j);
      if constexpr (T::bits == 3) {
        const auto signs = O::load_bytes(in + 2 * row + j);
        decode_column<T, 0, 4>(tile, begin + j, block_shift, codes, signs);
        decode_column<T, 4, 4>(tile, begin + j, block_shift, O::load_bytes(in + row + j), signs);
      } else {
        decode_column<T, 0, rows>(tile, begin + j, block_shift, codes, codes);
      }
    }
    in += group_bytes(T::bits);
  }
}

/// Calls use(first element, number of elements, values) for each tile.
template <class T, class Use>
void decode_blocks(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use) {
  Tile tile;
  const auto longest = std::max<std::size_t>(spec.block, usual_tile);
  const auto block_shift = std::countr_zero(spec.block);
  const std::byte* scales = in;
  const std::byte* codes = in + blocks_in(elements, spec.block) * scale_bytes(spec.scale);
  for (std::size_t begin = 0; begin < elements; begin += longest) {
    const auto n = std::min(longest, elements - begin);
    for (std::size_t b = 0; b < blocks_in(n, spec.block); ++b) tile.scale[b] = load_scale(spec.scale, scales);
    for (auto b = blocks_in(n, spec.block); b < blocks_in(filled_up(n), spec.block); ++b) tile.scale[b] = 0;
    decode_groups<T>(codes, n, block_shift, tile);
    use(begin, n, tile.v);
  }
}

// ---- fp32 and bf16 ----

std::size_t encode_fp32(const Encoding& e) {
  Tile tile;
  for (std::size_t begin = 0; begin < e.elements; begin += usual_tile) {
    const auto n = std::min(usual_tile, e.elements - begin);
    gather(e, begin, n, row, usual_tile, tile);
    if (tile.absmax[0] >= infinity_bits) return begin + first_at_least(tile.v, n, infinity_bits);
    Ahead(e, begin + usual_distance).fetch(0, n);
    std::memcpy(e.out + begin * 4, tile.v, n * 4);
    if (e.residual != nullptr) std::memset(e.residual + begin, 0, n * 4);
  }
  return e.elements;
}

template <bool stochastic>
std::size_t encode_bf16(const Encoding& e) {
  using O = Lanes;
  Tile tile;
  alignas(64) std::uint16_t halves[usual_tile];
  for (std::size_t begin = 0; begin < e.elements; begin += usual_tile) {
    const auto n = std::min(usual_tile, e.elements - begin);
    gather(e, begin, n, row, usual_tile, tile);
    if (tile.absmax[0] > largest_bf16_bits) return begin + first_at_least(tile.v, n, largest_bf16_bits + 1);
    Ahead(e, begin + usual_distance).fetch(0, n);
    const auto element = static_cast<std::uint32_t>(e.noise.first_element + begin);
    for (std::size_t i = 0; i < n; i += O::lanes) {
      const auto x = O::load(tile.v + i);
      const auto half =
          bf16_of<stochastic, O>(x, O::count_from(element + static_cast<std::uint32_t>(i)), e.noise.key);
      O::store_halves(halves + i, half);
      O::store(tile.v + i, O::sub(x, O::floats(O::template shift_left<16>(half))));
    }
    std::memcpy(e.out + begin * 2, halves, n * 2);
    keep_residual(e, begin, n, tile.v);
  }
  return e.elements;
}

/// Largest bits of any magnitude in n encoded fp32 or bf16 values, as fp32.
std::uint32_t largest_magnitude(CodecKind kind, const std::byte* in, std::size_t n) {
  using O = Lanes;
  alignas(64) float v[usual_tile];
  alignas(64) std::uint16_t halves[usual_tile];
  auto largest = O::set(std::uint32_t{0});
  for (std::size_t begin = 0; begin < n; begin += usual_tile) {
    const auto count = std::min(usual_tile, n - begin);
    const auto filled = (count + row - 1) / row * row;
    if (kind == CodecKind::fp32) {
      std::memset(v + filled - row, 0, row * sizeof(float));
      std::memcpy(v, in + begin * 4, count * 4);
      for (std::size_t i = 0; i < filled; i += O::lanes)
        largest = O::max(largest, magnitude_bits<O>(O::load(v + i)));
    } else {
      std::memset(halves + filled - row, 0, row * sizeof(std::uint16_t));
      std::memcpy(halves, in + begin * 2, count * 2);
      for (std::size_t i = 0; i < filled; i += O::lanes) {
        const auto bits = O::template shift_left<16>(O::load_halves(halves + i));
        largest = O::max(largest, O::bit_and(bits, O::set(magnitude_mask)));
      }
    }
  }
  return O::max_of(largest);
}

template <class Use>
void decode_fp32(const std::byte* in, std::size_t elements, const Use& use) {
  Tile tile;
  for (std::size_t begin = 0; begin < elements; begin += usual_tile) {
    const auto n = std::min(usual_tile, elements - begin);
    std::memcpy(tile.v, in + begin * 4, n * 4);
    use(begin, n, tile.v);
  }
}

template <class Use>
void decode_bf16(const std::byte* in, std::size_t elements, const Use& use) {
  using O = Lanes;
  Tile tile;
  alignas(64) std::uint16_t halves[usual_tile] = {};
  for (std::size_t begin = 0; begin < elements; begin += usual_tile) {
    const auto n = std::min(usual_tile, elements - begin);
    std::memcpy(halves, in + begin * 2, n * 2);
    for (std::size_t i = 0; i < n; i += O::lanes)
      O::store(tile.v + i, O::floats(O::template shift_left<16>(O::load_halves(halves + i))));
    use(begin, n, tile.v);
  }
}

// ---- topk ----

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
  using T = Table<Largest>;
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
  using T = Table<Largest>;
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

// ---- all formats ----

std::size_t encode(const CodecSpec& spec, const Encoding& e) {
  const bool drawn = spec.rounding == Rounding::stochastic;
  switch (spec.kind) {
    case CodecKind::fp32:
      return encode_fp32(e);
    case CodecKind::bf16:
      return drawn ? encode_bf16<true>(e) : encode_bf16<false>(e);
    case CodecKind::int8:
      return encode_blocks<Even<Int8>>(spec, e);
    case CodecKind::int4:
      return encode_blocks<Even<Int4>>(spec, e);
    case CodecKind::e3m0:
      return encode_blocks<Table<E3m0>>(spec, e);
    case CodecKind::lloyd4:
      return encode_blocks<Table<Lloyd4>>(spec, e);
    case CodecKind::lloyd3:
      return encode_blocks<Table<Lloyd3>>(spec, e);
    case CodecKind::lloyd2:
      return encode_blocks<Table<Lloyd2>>(spec, e);
    case CodecKind::sign:
      return encode_blocks<Table<Sign>>(spec, e);
    case CodecKind::topk:
      return drawn ? encode_topk<true>(spec, e) : encode_topk<false>(spec, e);
  }
  return 0;
}

/// Decodes tile by tile; use(first element, number of elements, values) gets each tile while it is in the
/// cache.
template <class Use>
void decode_tiles(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use) {
  switch (spec.kind) {
    case CodecKind::fp32:
      return decode_fp32(in, elements, use);
    case CodecKind::bf16:
      return decode_bf16(in, elements, use);
    case CodecKind::int8:
      return decode_blocks<Even<Int8>>(spec, in, elements, use);
    case CodecKind::int4:
      return decode_blocks<Even<Int4>>(spec, in, elements, use);
    case CodecKind::e3m0:
      return decode_blocks<Table<E3m0>>(spec, in, elements, use);
    case CodecKind::lloyd4:
      return decode_blocks<Table<Lloyd4>>(spec, in, elements, use);
    case CodecKind::lloyd3:
      return decode_blocks<Table<Lloyd3>>(spec, in, elements, use);
    case CodecKind::lloyd2:
      return decode_blocks<Table<Lloyd2>>(spec, in, elements, use);
    case CodecKind::sign:
      return decode_blocks<Table<Sign>>(spec, in, elements, use);
    case CodecKind::topk:
      return decode_topk(spec, in, elements, use);
  }
}

struct Copy {
  float* out;
  void operator()(std::size_t begin, std::size_t n, const float* v) const {
    std::memcpy(out + begin, v, n * sizeof(float));
  }
};

struct Accumulate {
  float weight;
  float* sum;
  template <class O>
  ISTHMUS_LANES void add(std::size_t& i, std::size_t n, const float* v, float* to) const {
    for (; i + O::lanes <= n; i += O::lanes)
      O::store(to + i, O::add(O::load(to + i), O::mul(O::set(weight), O::load(v + i))));
  }
  void operator()(std::size_t begin, std::size_t n, const float* v) const {
    std::size_t i = 0;
    add<Lanes>(i, n, v, sum + begin);
    add<ScalarLanes>(i, n, v, sum + begin);
  }
};

enum class Local : std::uint8_t { none, copy, mix, carry };

template <bool nesterov, Local merge>
struct Apply {
  float lr, momentum, alpha;
  float* theta;
  float* velocity;
  float* local;
  template <class O>
  ISTHMUS_LANES void step(std::size_t& i, std::size_t n, std::size_t begin, const float* g) const {
    const auto mu = O::set(momentum);
    const auto rate = O::set(lr);
    for (; i + O::lanes <= n; i += O::lanes) {
      const auto at = begin + i;
      auto v = O::load(velocity + at);
      const auto direction = outer_direction<nesterov, O>(O::load(g + i), mu, v);
      O::store(velocity + at, v);
      const auto before = O::load(theta + at);
      const auto moved = O::sub(before, O::mul(rate, direction));
      O::store(theta + at, moved);
      if constexpr (merge == Local::copy) O::store(local + at, moved);
      if constexpr (merge == Local::carry)
        O::store(local + at, O::add(O::load(local + at), O::sub(moved, before)));
      if constexpr (merge == Local::mix) {
        const auto kept = O::mul(O::set(alpha), O::load(local + at));
        O::store(local + at, O::add(kept, O::mul(O::set(1 - alpha), moved)));
      }
    }
  }
  void operator()(std::size_t begin, std::size_t n, const float* g) const {
    std::size_t i = 0;
    step<Lanes>(i, n, begin, g);
    step<ScalarLanes>(i, n, begin, g);
  }
};

void decode(const CodecSpec& spec, const std::byte* in, float* out, std::size_t elements) {
  decode_tiles(spec, in, elements, Copy{out});
}

void accumulate(const CodecSpec& spec, const std::byte* in, float weight, float* sum, std::size_t elements) {
  decode_tiles(spec, in, elements, Accumulate{weight, sum});
}

template <bool nesterov>
void apply_and_merge(const CodecSpec& spec, const std::byte* in, const OuterStep& s, float* theta,
                     float* velocity, float* local, std::size_t elements) {
  const auto run = [&]<Local merge>(std::integral_constant<Local, merge>) {
    decode_tiles(spec, in, elements,
                 Apply<nesterov, merge>{s.lr, s.momentum, s.alpha, theta, velocity, local});
  };
  if (local == nullptr) return run(std::integral_constant<Local, Local::none>());
  if (s.merge == Merge::carry) return run(std::integral_constant<Local, Local::carry>());
  if (s.alpha == 1) return run(std::integral_constant<Local, Local::none>());
  if (s.alpha == 0) return run(std::integral_constant<Local, Local::copy>());
  run(std::integral_constant<Local, Local::mix>());
}

void apply(const CodecSpec& spec, const std::byte* in, const OuterStep& step, float* theta, float* velocity,
           float* local, std::size_t elements) {
  if (step.nesterov) return apply_and_merge<true>(spec, in, step, theta, velocity, local, elements);
  apply_and_merge<false>(spec, in, step, theta, velocity, local, elements);
}

Passes passes_of(std::string_view target) {
  return {target, encode, decode, accumulate, apply, products, largest_magnitude};
}
