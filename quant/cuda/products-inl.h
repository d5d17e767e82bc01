// Sums of products of two vectors on a GPU, in the CPU's order (quant/passes.h). Included like kernels-inl.h,
// and after it.
//
// No include guard, on purpose.

static_assert(row * row == threads);

/// The products of each tile, in the CPU's order. A thread block takes sixteen tiles at once; each of its
/// threads computes one partial sum of one tile.
__global__ void __launch_bounds__(threads)
    products_kernel(const float* x, const float* y, std::size_t elements, Products* tiles) {
  __shared__ double sums[row][row][3];
  const auto place = threadIdx.x / row;
  const auto own = threadIdx.x % row;
  for (std::size_t first = std::size_t{blockIdx.x} * row; first * products_tile < elements;
       first += std::size_t{gridDim.x} * row) {
    const auto t = first + place;
    const auto begin = t * products_tile;
    const auto end = begin + products_tile < elements ? begin + products_tile : elements;
    double xx = 0;
    double xy = 0;
    double yy = 0;
    for (auto i = begin + own; i < end; i += row) {
      const double a = x[i];
      const double b = y[i];
      xx += a * a;
      xy += a * b;
      yy += b * b;
    }
    sums[place][own][0] = xx;
    sums[place][own][1] = xy;
    sums[place][own][2] = yy;
    __syncthreads();
    if (own == 0 && begin < elements) {
      double total[3] = {};
      for (unsigned j = 0; j < row; ++j) {
        for (unsigned k = 0; k < 3; ++k) total[k] += sums[place][j][k];
      }
      tiles[t].xx = total[0];
      tiles[t].xy = total[1];
      tiles[t].yy = total[2];
    }
    __syncthreads();  // before the next tiles' sums overwrite them
  }
}
