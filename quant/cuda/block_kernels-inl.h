// Formats with a scale for each block. Included by kernels-inl.h.

// ---- scales ----

/// Puts the largest magnitude of each quad's block into `m`. `of_warps` is for blocks that span several
/// warps.
ISTHMUS_LANES void block_maxima(const Values& v, unsigned block, std::uint32_t (&m)[quads],
                                std::uint32_t (&of_warps)[warps]) {
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u)
    m[u] = larger(larger(magnitude_of(v[u][0]), magnitude_of(v[u][1])),
                  larger(magnitude_of(v[u][2]), magnitude_of(v[u][3])));
  for (unsigned apart = 1; apart < warp_size && apart * quad < block; apart *= 2) {
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) m[u] = larger(m[u], __shfl_xor_sync(all_lanes, m[u], apart));
  }
  constexpr unsigned span = warp_size * quad;  // elements of one quad index
  if (block <= span) return;
  m[0] = m[1] = larger(m[0], m[1]);
  m[2] = m[3] = larger(m[2], m[3]);
  if (block == 2 * span) return;
  auto largest = larger(m[0], m[2]);
  if (block > quads * span) {
    if (lane_index() == 0) of_warps[warp_index()] = largest;
    __syncthreads();
    const auto count = block / (quads * span);
    const auto first = warp_index() / count * count;
    for (unsigned w = first; w < first + count; ++w) largest = larger(largest, of_warps[w]);
    __syncthreads();  // before the next tile's maxima overwrite them
  }
  m[0] = m[1] = m[2] = m[3] = largest;
}

/// Sums the magnitudes of each quad's block in the CPU's order: sixteen partial sums, each by one thread,
/// then added in order.
ISTHMUS_LANES void block_sums(const Values& v, unsigned block, float (&sums)[quads],
                              float (&shared)[tile_size]) {
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) shared[offset_of(u) + k] = ScalarLanes::floats(magnitude_of(v[u][k]));
  }
  __syncthreads();
  const auto blocks = tile_size / block;
  for (unsigned i = threadIdx.x; i < blocks * row; i += threads) {
    float* const column = shared + i / row * block + i % row;
    float sum = 0;
    for (unsigned r = 0; r < block; r += row) sum = ScalarLanes::add(sum, column[r]);
    *column = sum;  // no other thread reads this element before the next barrier
  }
  __syncthreads();
  for (unsigned b = threadIdx.x; b < blocks; b += threads) {
    float* const columns = shared + b * block;
    float sum = 0;
    for (unsigned j = 0; j < row; ++j) sum = ScalarLanes::add(sum, columns[j]);
    *columns = sum;
  }
  __syncthreads();
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) sums[u] = shared[offset_of(u) / block * block];
  __syncthreads();  // before the next tile's magnitudes overwrite them
}

struct Scale {
  std::uint32_t code;
  float value, inverse;
};
/// The scale of a block with this largest magnitude and this wanted scale. Reports the element if the format
/// has no such scale, and returns a zero scale so that the kernel can continue.
ISTHMUS_LANES Scale choose_scale(ScaleFormat format, std::uint32_t largest, float wanted,
                                 const float (&x)[quad], std::size_t i, unsigned long long* first_bad) {
  auto code = largest >= infinity_bits ? no_scale : scale_code(format, largest, ScalarLanes::bits(wanted));
  if (code == no_scale) {
    report_bad(x, i, smaller(largest, infinity_bits), first_bad);
    code = 0;
  }
  const auto value = ScalarLanes::floats(scale_bits(format, code));
  return {code, value, code == 0 ? 0 : ScalarLanes::div(1, value)};
}

// ---- block formats ----

/// The row of its group that a lane's quads are in; quad_in_row: their index in that row.
template <class T>
ISTHMUS_LANES unsigned row_in_group() {
  return lane_index() / (row / quad) % group_rows(T::bits);
}
ISTHMUS_LANES unsigned quad_in_row() { return lane_index() % (row / quad); }

/// Combines the words of all rows of a group, or of `rows` of them.
ISTHMUS_LANES std::uint32_t join_rows(std::uint32_t word, unsigned rows) {
  ISTHMUS_UNROLL
  for (unsigned apart = row / quad; apart < rows * (row / quad); apart *= 2)
    word |= __shfl_xor_sync(all_lanes, word, apart);
  return word;
}

/// Packs a quad's codes with those of its group and stores them at `out`; `exists`: whether the group is part
/// of the output.
template <class T>
ISTHMUS_LANES void store_codes(const std::uint32_t (&codes)[quad], std::byte* out, bool exists) {
  constexpr unsigned rows = group_rows(T::bits);
  const auto own_row = row_in_group<T>();
  std::uint32_t word = 0;
  if constexpr (T::bits == 3) {
    std::uint32_t signs = 0;
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) {
      word |= (codes[k] & 3) << (8 * k + 2 * (own_row % 4));
      signs |= codes[k] >> 2 << (8 * k + own_row);
    }
    word = join_rows(word, rows / 2);
    signs = join_rows(signs, rows);
    // Row 0 stores the codes of the first half, row 4 those of the second half, and row 1 the signs.
    const auto place = own_row == 0 ? 0 : own_row == 4 ? row : 2 * row;
    if (exists && own_row % 4 < 2 && own_row != 5)
      store_number(out + place + quad * quad_in_row(), own_row == 1 ? signs : word);
  } else {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) word |= codes[k] << (8 * k + T::bits * own_row);
    word = join_rows(word, rows);
    if (exists && own_row == 0) store_number(out + quad * quad_in_row(), word);
  }
}

/// Byte offset of the group of element i.
template <class T>
ISTHMUS_LANES std::size_t group_offset(std::size_t i) {
  return i / (group_rows(T::bits) * row) * group_bytes(T::bits);
}
ISTHMUS_LANES std::size_t all_scales(const CodecSpec& spec, std::size_t elements) {
  return (elements + spec.block - 1) / spec.block * scale_bytes(spec.scale);
}

template <class T, bool stochastic>
ISTHMUS_LANES void encode_quad(const Encoding& e, std::size_t i, const Scale& scale, float (&x)[quad],
                               std::uint32_t (&codes)[quad]) {
  using O = ScalarLanes;
  ISTHMUS_UNROLL
  for (unsigned k = 0; k < quad; ++k) {
    const auto got = code_of<T, stochastic, O>(x[k], scale.inverse, element_index(e, i + k), e.noise.key);
    codes[k] = got.code;
    x[k] = O::sub(x[k], O::mul(got.level, scale.value));
  }
}

template <class T, bool stochastic, bool from_mean>
__global__ void __launch_bounds__(threads)
    encode_blocks_kernel(CodecSpec spec, Encoding e, unsigned long long* first_bad) {
  __shared__ std::uint32_t of_warps[warps];
  __shared__ float magnitudes[from_mean ? tile_size : 1];
  const auto block_shift = static_cast<unsigned>(31 - __clz(static_cast<int>(spec.block)));
  const float part = ScalarLanes::div(spec.clip, T::unit);
  std::byte* const codes_out = e.out + all_scales(spec, e.elements);
  for (std::size_t t = blockIdx.x; t * tile_size < e.elements; t += gridDim.x) {
    const auto begin = t * tile_size;
    const auto n = size_of_tile(t, e.elements);
    Values v;
    std::uint32_t largest[quads];
    [[maybe_unused]] float sums[quads];
    gather(e, begin, n, v);
    block_maxima(v, spec.block, largest, of_warps);
    if constexpr (from_mean) block_sums(v, spec.block, sums, magnitudes);
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      const auto i = begin + offset_of(u);
      const auto b = i >> block_shift;
      float wanted = 0;
      if constexpr (from_mean) {
        const auto left = e.elements - (b << block_shift);  // unused for whole blocks past the end
        wanted = ScalarLanes::div(sums[u], static_cast<float>(left < spec.block ? left : spec.block));
      } else {
        wanted = ScalarLanes::mul(ScalarLanes::floats(largest[u]), part);
      }
      const auto scale = choose_scale(spec.scale, largest[u], wanted, v[u], i, first_bad);
      if (i == b << block_shift && i < e.elements)
        store_scale_code(spec.scale, e.out + b * scale_bytes(spec.scale), scale.code);
      std::uint32_t codes[quad];
      encode_quad<T, stochastic>(e, i, scale, v[u], codes);
      constexpr std::size_t group = group_rows(T::bits) * row;
      store_codes<T>(codes, codes_out + group_offset<T>(i), i / group * group < e.elements);
    }
    keep_residual(e, begin, n, v);
  }
}

/// Decodes the thread's quad from the group at `in`.
template <class T>
ISTHMUS_LANES void decode_quad(const std::byte* in, float scale, float (&x)[quad]) {
  const auto own_row = row_in_group<T>();
  const std::byte* const at = in + quad * quad_in_row();
  if constexpr (T::bits == 3) {
    const auto word = load_number<std::uint32_t>(at + own_row / 4 * row) >> (2 * (own_row % 4));
    const auto signs = load_number<std::uint32_t>(at + 2 * row) >> own_row;
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) {
      const auto code = (word >> (8 * k) & 3) | (signs >> (8 * k) & 1) << 2;
      x[k] = ScalarLanes::mul(T::template value<ScalarLanes>(code), scale);
    }
  } else {
    const auto word = load_number<std::uint32_t>(at) >> (T::bits * own_row);
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) {
      const auto code = word >> (8 * k) & ((1U << T::bits) - 1);
      x[k] = ScalarLanes::mul(T::template value<ScalarLanes>(code), scale);
    }
  }
}

/// Calls use(first element, size of the tile, the thread's values) for each tile.
template <class T, class Use>
__global__ void __launch_bounds__(threads)
    decode_blocks_kernel(CodecSpec spec, const std::byte* in, std::size_t elements, Use use) {
  const auto block_shift = static_cast<unsigned>(31 - __clz(static_cast<int>(spec.block)));
  const std::byte* const codes = in + all_scales(spec, elements);
  for (std::size_t t = blockIdx.x; t * tile_size < elements; t += gridDim.x) {
    const auto begin = t * tile_size;
    Values x = {};
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      const auto i = begin + offset_of(u);
      if (i >= elements) continue;
      const auto code = load_scale_code(spec.scale, in + (i >> block_shift) * scale_bytes(spec.scale));
      decode_quad<T>(codes + group_offset<T>(i), ScalarLanes::floats(scale_bits(spec.scale, code)), x[u]);
    }
    use(begin, size_of_tile(t, elements), x);
  }
}
