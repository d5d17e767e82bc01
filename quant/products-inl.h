// Sums of products of two vectors (quant/passes.h) on a CPU. Included like passes-inl.h, and before it.
// Doubles are the instruction set's operations on fp64.
//
// No include guard, on purpose.

/// How far ahead of the computation vectors are prefetched, in elements.
constexpr std::size_t products_ahead = 512;
/// Vectors of sums computed at once: as many as there are registers for.
constexpr std::size_t sums_at_once = std::min<std::size_t>(4, row / Doubles::lanes);

/// Sums over the first `whole` elements: those at positions first, first + 1, ... of each row.
ISTHMUS_LANES void add_rows(const float* x, const float* y, std::size_t whole, std::size_t first,
                            double (&sums)[3][row]) {
  using O = Doubles;
  typename O::D xx[sums_at_once], xy[sums_at_once], yy[sums_at_once];
  for (std::size_t j = 0; j < sums_at_once; ++j) xx[j] = xy[j] = yy[j] = O::zero();
  for (auto i = first; i < whole; i += row) {
    Lanes::prefetch(x + i + products_ahead);
    Lanes::prefetch(y + i + products_ahead);
    for (std::size_t j = 0; j < sums_at_once; ++j) {
      const auto a = O::load(x + i + j * O::lanes), b = O::load(y + i + j * O::lanes);
      xx[j] = O::add_product(xx[j], a, a);
      xy[j] = O::add_product(xy[j], a, b);
      yy[j] = O::add_product(yy[j], b, b);
    }
  }
  for (std::size_t j = 0; j < sums_at_once; ++j) {
    const auto at = first + j * O::lanes;
    O::store(sums[0] + at, xx[j]);
    O::store(sums[1] + at, xy[j]);
    O::store(sums[2] + at, yy[j]);
  }
}

Products products_of_tile(const float* x, const float* y, std::size_t n) {
  alignas(64) double sums[3][row];
  const auto whole = n - n % row;
  for (std::size_t first = 0; first < row; first += sums_at_once * Doubles::lanes)
    add_rows(x, y, whole, first, sums);
  for (auto i = whole; i < n; ++i) {
    const double a = x[i], b = y[i];
    sums[0][i - whole] += a * a;
    sums[1][i - whole] += a * b;
    sums[2][i - whole] += b * b;
  }
  Products tile;
  for (std::size_t i = 0; i < row; ++i) {
    tile.xx += sums[0][i];
    tile.xy += sums[1][i];
    tile.yy += sums[2][i];
  }
  return tile;
}

void products(const float* x, const float* y, std::size_t elements, Products& total) {
  for (std::size_t begin = 0; begin < elements; begin += products_tile) {
    const auto tile = products_of_tile(x + begin, y + begin, std::min(products_tile, elements - begin));
    add_products({&tile, 1}, total);
  }
}
