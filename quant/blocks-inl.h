// The formats in blocks with a scale each (int8, int4, e3m0, lloyd, sign) on a CPU. Included by passes-inl.h.
//
// No include guard, on purpose.

// ---- encoding ----

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

// ---- decoding ----

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
