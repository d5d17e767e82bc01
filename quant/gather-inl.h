// The first step of every encoder on a CPU: a tile of its input, with the residual added, in the first-level
// cache, and the largest magnitude of each block. Included by passes-inl.h.
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
