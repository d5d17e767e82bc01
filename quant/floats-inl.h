// fp32 and bf16 on a CPU. Included by passes-inl.h.
//
// No include guard, on purpose.

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
