// The passes' kernels. A thread block iterates over tiles of 4096 elements, of which each thread holds
// sixteen in registers: every operand is read once and written once, codes are packed by shuffles, and shared
// memory is only for exchange between warps. The launches are at the end.
//
// Included like arithmetic-inl.h, and after it: by passes.cu, and by a test that runs the kernels' threads
// one after the other on the CPU.
//
// No include guard, on purpose.

inline constexpr unsigned threads = 256;
inline constexpr unsigned warp_size = 32;
inline constexpr unsigned warps = threads / warp_size;
inline constexpr unsigned quad = 4;   ///< neighbouring elements that a thread reads at once
inline constexpr unsigned quads = 4;  ///< per thread in a tile
inline constexpr unsigned tile_size = threads * quads * quad;
inline constexpr unsigned all_lanes = 0xffffffff;
// No block, piece or group spans two tiles, and no group spans two warps.
static_assert(tile_size == largest_block && tile_size == piece);
static_assert(warp_size * quad == largest_group);
static_assert(warps * quads == warp_size);

/// A thread's part of a tile. The quads of one index in a warp's 32 lanes are 128 consecutive elements.
using Values = float[quads][quad];

ISTHMUS_LANES unsigned lane_index() { return threadIdx.x % warp_size; }
ISTHMUS_LANES unsigned warp_index() { return threadIdx.x / warp_size; }
/// Where in the tile the thread's quad u begins.
ISTHMUS_LANES unsigned offset_of(unsigned u) {
  return (warp_index() * quads + u) * (warp_size * quad) + lane_index() * quad;
}
ISTHMUS_LANES std::uint32_t magnitude_of(float x) { return ScalarLanes::bits(x) & magnitude_mask; }
ISTHMUS_LANES std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }
ISTHMUS_LANES std::uint32_t smaller(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }

// ---- memory ----
// Wide accesses if the addresses allow them, which is the same for all threads of a tile.

template <class T>
ISTHMUS_LANES bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(T) == 0;
}

/// Loads the thread's part of the n values at p; zeros past the end.
ISTHMUS_LANES void load(const float* p, unsigned n, Values& x) {
  if (n == tile_size && is_aligned<float4>(p)) {
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      const float4 got = *reinterpret_cast<const float4*>(p + offset_of(u));
      x[u][0] = got.x;
      x[u][1] = got.y;
      x[u][2] = got.z;
      x[u][3] = got.w;
    }
    return;
  }
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) x[u][k] = offset_of(u) + k < n ? p[offset_of(u) + k] : 0;
  }
}
ISTHMUS_LANES void store(float* p, unsigned n, const Values& x) {
  if (n == tile_size && is_aligned<float4>(p)) {
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u)
      *reinterpret_cast<float4*>(p + offset_of(u)) = float4{x[u][0], x[u][1], x[u][2], x[u][3]};
    return;
  }
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k)
      if (offset_of(u) + k < n) p[offset_of(u) + k] = x[u][k];
  }
}

/// Loads a little-endian number from encoded bytes, at any alignment.
template <class T>
ISTHMUS_LANES T load_number(const std::byte* p) {
  if (is_aligned<T>(p)) return *reinterpret_cast<const T*>(p);
  T number = 0;
  ISTHMUS_UNROLL
  for (unsigned i = 0; i < sizeof(T); ++i) number |= static_cast<T>(static_cast<T>(p[i]) << (8 * i));
  return number;
}
template <class T>
ISTHMUS_LANES void store_number(std::byte* p, T number) {
  if (is_aligned<T>(p)) {
    *reinterpret_cast<T*>(p) = number;
    return;
  }
  ISTHMUS_UNROLL
  for (unsigned i = 0; i < sizeof(T); ++i) p[i] = static_cast<std::byte>(number >> (8 * i) & 0xff);
}
ISTHMUS_LANES std::uint32_t load_scale_code(ScaleFormat format, const std::byte* p) {
  return scale_bytes(format) == 2 ? load_number<std::uint16_t>(p) : static_cast<std::uint32_t>(*p);
}
ISTHMUS_LANES void store_scale_code(ScaleFormat format, std::byte* p, std::uint32_t code) {
  if (scale_bytes(format) == 2) return store_number(p, static_cast<std::uint16_t>(code));
  *p = static_cast<std::byte>(code);
}

// ---- inputs of encoders ----

/// Number of elements in tile t, which must exist.
ISTHMUS_LANES unsigned size_of_tile(std::size_t t, std::size_t elements) {
  const auto left = elements - t * tile_size;
  return left < tile_size ? static_cast<unsigned>(left) : tile_size;
}

/// Loads n elements from `begin` on; zeros past the end. All operands are requested before any is used.
ISTHMUS_LANES void gather(const Encoding& e, std::size_t begin, unsigned n, Values& v) {
  Values b = {};
  Values r = {};
  load(e.a + begin, n, v);
  if (e.input == Encoding::Input::difference) load(e.b + begin, n, b);
  if (e.residual != nullptr) load(e.residual + begin, n, r);
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) {
      float x = v[u][k];
      if (e.input == Encoding::Input::difference) x = ScalarLanes::sub(x, b[u][k]);
      if (e.input == Encoding::Input::quotient) x = ScalarLanes::div(x, e.divisor);
      if (e.residual != nullptr) x = ScalarLanes::add(x, ScalarLanes::mul(e.decay, r[u][k]));
      v[u][k] = offset_of(u) + k < n ? x : 0;  // 0 / divisor could be -0 or NaN
    }
  }
}
ISTHMUS_LANES void keep_residual(const Encoding& e, std::size_t begin, unsigned n, const Values& v) {
  if (e.residual != nullptr) store(e.residual + begin, n, v);
}
/// The element's index in the noise's numbering.
ISTHMUS_LANES std::uint32_t element_index(const Encoding& e, std::size_t i) {
  return static_cast<std::uint32_t>(e.noise.first_element + i);
}

/// Reports the first of a quad's values with a magnitude of at least these bits: it cannot be encoded. `i`:
/// index of the quad's first value.
ISTHMUS_LANES void report_bad(const float (&x)[quad], std::size_t i, std::uint32_t bits,
                              unsigned long long* first_bad) {
  ISTHMUS_UNROLL
  for (unsigned k = quad; k-- > 0;)
    if (magnitude_of(x[k]) >= bits) atomicMin(first_bad, static_cast<unsigned long long>(i + k));
}

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

// ---- fp32 and bf16 ----

/// Stores a quad's values as T; leaves out those past the end.
template <class T>
ISTHMUS_LANES void store_quad(const T (&codes)[quad], std::byte* out, std::size_t i, std::size_t elements) {
  std::byte* const to = out + i * sizeof(T);
  if (i + quad <= elements) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; k += 8 / sizeof(T)) {
      std::uint64_t word = 0;
      ISTHMUS_UNROLL
      for (unsigned j = 0; j < 8 / sizeof(T); ++j)
        word |= static_cast<std::uint64_t>(codes[k + j]) << (8 * sizeof(T) * j);
      store_number(to + k * sizeof(T), word);
    }
    return;
  }
  ISTHMUS_UNROLL
  for (unsigned k = 0; k < quad; ++k)
    if (i + k < elements) store_number(to + k * sizeof(T), codes[k]);
}
template <class T>
ISTHMUS_LANES void load_quad(const std::byte* in, std::size_t i, std::size_t elements, T (&codes)[quad]) {
  const std::byte* const from = in + i * sizeof(T);
  if (i + quad <= elements) {
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; k += 8 / sizeof(T)) {
      const auto word = load_number<std::uint64_t>(from + k * sizeof(T));
      ISTHMUS_UNROLL
      for (unsigned j = 0; j < 8 / sizeof(T); ++j) codes[k + j] = static_cast<T>(word >> (8 * sizeof(T) * j));
    }
    return;
  }
  ISTHMUS_UNROLL
  for (unsigned k = 0; k < quad; ++k) codes[k] = i + k < elements ? load_number<T>(from + k * sizeof(T)) : 0;
}

/// Rounds a quad to bf16; what rounding loses replaces the values.
template <bool stochastic>
ISTHMUS_LANES void halve_quad(const Encoding& e, std::size_t i, float (&x)[quad],
                              std::uint16_t (&halves)[quad]) {
  using O = ScalarLanes;
  ISTHMUS_UNROLL
  for (unsigned k = 0; k < quad; ++k) {
    const auto half = bf16_of<stochastic, O>(x[k], element_index(e, i + k), e.noise.key);
    halves[k] = static_cast<std::uint16_t>(half);
    x[k] = O::sub(x[k], O::floats(O::shift_left<16>(half)));
  }
}

template <CodecKind kind, bool stochastic>
__global__ void __launch_bounds__(threads) encode_floats_kernel(Encoding e, unsigned long long* first_bad) {
  for (std::size_t t = blockIdx.x; t * tile_size < e.elements; t += gridDim.x) {
    const auto begin = t * tile_size;
    const auto n = size_of_tile(t, e.elements);
    Values v;
    gather(e, begin, n, v);
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      const auto i = begin + offset_of(u);
      if constexpr (kind == CodecKind::fp32) {
        report_bad(v[u], i, infinity_bits, first_bad);
        std::uint32_t codes[quad];
        ISTHMUS_UNROLL
        for (unsigned k = 0; k < quad; ++k) {
          codes[k] = ScalarLanes::bits(v[u][k]);
          v[u][k] = 0;  // nothing is lost
        }
        store_quad(codes, e.out, i, e.elements);
      } else {
        report_bad(v[u], i, largest_bf16_bits + 1, first_bad);
        std::uint16_t halves[quad];
        halve_quad<stochastic>(e, i, v[u], halves);
        store_quad(halves, e.out, i, e.elements);
      }
    }
    keep_residual(e, begin, n, v);
  }
}

template <CodecKind kind, class Use>
__global__ void __launch_bounds__(threads)
    decode_floats_kernel(const std::byte* in, std::size_t elements, Use use) {
  using Code = std::conditional_t<kind == CodecKind::fp32, std::uint32_t, std::uint16_t>;
  for (std::size_t t = blockIdx.x; t * tile_size < elements; t += gridDim.x) {
    const auto begin = t * tile_size;
    Values x;
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      Code codes[quad];
      load_quad(in, begin + offset_of(u), elements, codes);
      ISTHMUS_UNROLL
      for (unsigned k = 0; k < quad; ++k)
        x[u][k] = ScalarLanes::floats(std::uint32_t{codes[k]} << (32 - 8 * sizeof(Code)));
    }
    use(begin, size_of_tile(t, elements), x);
  }
}

// ---- topk ----

ISTHMUS_LANES std::uint32_t sum_in_thread_block(std::uint32_t own, std::uint32_t (&of_warps)[warps]) {
  own = __reduce_add_sync(all_lanes, own);
  if (lane_index() == 0) of_warps[warp_index()] = own;
  __syncthreads();
  std::uint32_t sum = 0;
  ISTHMUS_UNROLL
  for (unsigned w = 0; w < warps; ++w) sum += of_warps[w];
  return sum;
}

/// Returns a magnitude, as bits, that exactly k of the tile's values reach, if there is one; otherwise,
/// because of ties, the k-th largest. Found bit by bit from the top bit of the largest magnitude. The counts
/// alternate between two places, so that one barrier per bit separates readers from writers.
ISTHMUS_LANES std::uint32_t smallest_of_largest(const Values& v, unsigned k, std::uint32_t largest,
                                                std::uint32_t (&counts)[2][warps]) {
  std::uint32_t found = 0;
  unsigned turn = 0;
  for (std::uint32_t bit = largest == 0 ? 0 : sign_mask >> __clz(static_cast<int>(largest)); bit != 0;
       bit >>= 1) {
    std::uint32_t own = 0;
    ISTHMUS_UNROLL
    for (unsigned i = 0; i < quads * quad; ++i)
      own += magnitude_of(v[i / quad][i % quad]) >= (found | bit) ? 1 : 0;
    const auto count = sum_in_thread_block(own, counts[turn]);
    turn ^= 1;
    if (count >= k) found |= bit;
    if (count == k) break;
  }
  return found;
}

/// Inclusive prefix sums over the lanes.
ISTHMUS_LANES std::uint32_t sum_up_to(std::uint32_t x) {
  ISTHMUS_UNROLL
  for (unsigned apart = 1; apart < warp_size; apart *= 2) {
    const auto other = __shfl_up_sync(all_lanes, x, apart);
    if (lane_index() >= apart) x += other;
  }
  return x;
}

/// Counts values in two halves of a word: the lower half those above a magnitude, the upper half those equal
/// to it.
ISTHMUS_LANES std::uint32_t tally(float x, std::uint32_t least) {
  const auto magnitude = magnitude_of(x);
  return (magnitude > least ? 1U : 0U) | (magnitude == least ? 0x10000U : 0U);
}

/// Tallies of the values before each quad in the tile; returns the tally of the whole tile. Zeros past the
/// end count last.
ISTHMUS_LANES std::uint32_t tally_before(const Values& v, std::uint32_t least, std::uint32_t (&before)[quads],
                                         std::uint32_t (&totals)[warp_size]) {
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u) {
    std::uint32_t own = 0;
    ISTHMUS_UNROLL
    for (unsigned k = 0; k < quad; ++k) own += tally(v[u][k], least);
    const auto up_to = sum_up_to(own);
    before[u] = up_to - own;
    if (lane_index() == warp_size - 1) totals[warp_index() * quads + u] = up_to;
  }
  __syncthreads();
  const auto total = totals[lane_index()];
  const auto up_to = sum_up_to(total);
  ISTHMUS_UNROLL
  for (unsigned u = 0; u < quads; ++u)
    before[u] += __shfl_sync(all_lanes, up_to - total, warp_index() * quads + u);
  return __shfl_sync(all_lanes, up_to, warp_size - 1);
}

inline constexpr unsigned position_bits = 12;
inline constexpr std::uint32_t position_mask = (1U << position_bits) - 1;

/// Stores a piece's positions and codes from the k chosen entries, each with its code above its position.
ISTHMUS_LANES void store_chosen(const std::uint16_t* chosen, unsigned k, std::byte* out) {
  for (unsigned i = 2 * threadIdx.x; i < k; i += 2 * threads) {
    const bool both = i + 1 < k;
    const auto pair = (chosen[i] & position_mask) |
                      (both ? (chosen[i + 1] & position_mask) << position_bits : std::uint32_t{0});
    std::byte* const to = out + i / 2 * 3;
    to[0] = static_cast<std::byte>(pair & 0xff);
    to[1] = static_cast<std::byte>(pair >> 8 & 0xff);
    if (both) to[2] = static_cast<std::byte>(pair >> 16);
  }
  for (unsigned i = threadIdx.x; 4 * i < k; i += threads) {
    std::uint32_t codes = 0;
    for (unsigned j = 0; j < 4 && 4 * i + j < k; ++j)
      codes |= static_cast<std::uint32_t>(chosen[4 * i + j] >> position_bits) << (2 * j);
    out[positions_bytes(k) + i] = static_cast<std::byte>(codes);
  }
}

template <bool stochastic>
__global__ void __launch_bounds__(threads)
    encode_topk_kernel(CodecSpec spec, Encoding e, unsigned long long* first_bad) {
  using O = ScalarLanes;
  __shared__ std::uint32_t of_warps[warps];
  __shared__ std::uint32_t counts[2][warps];
  __shared__ std::uint32_t totals[warp_size];
  __shared__ std::uint16_t chosen[piece];
  // The threads read what a piece leaves in shared memory before their next barrier, in the next piece's
  // maxima.
  for (std::size_t t = blockIdx.x; t * piece < e.elements; t += gridDim.x) {
    const auto begin = t * piece;
    const auto n = size_of_tile(t, e.elements);
    std::byte* const out = e.out + t * piece_bytes(spec.top_k);
    Values v;
    std::uint32_t largest[quads];
    gather(e, begin, n, v);
    block_maxima(v, piece, largest, of_warps);
    Scale scale = {};
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u)
      scale = choose_scale(ScaleFormat::bf16, largest[u], O::floats(largest[u]), v[u], begin + offset_of(u),
                           first_bad);
    const auto kept = static_cast<unsigned>(kept_of(spec.top_k, n));
    const auto least = smallest_of_largest(v, kept, largest[0], counts);
    std::uint32_t before[quads];
    const auto all = tally_before(v, least, before, totals);
    const auto room = kept - (all & 0xffff);  // number of values equal to `least` to keep: the first ones
    ISTHMUS_UNROLL
    for (unsigned u = 0; u < quads; ++u) {
      ISTHMUS_UNROLL
      for (unsigned k = 0; k < quad; ++k) {
        const auto own = tally(v[u][k], least);
        const auto equals_before = before[u] >> 16;
        if ((own & 1) != 0 || (own != 0 && equals_before < room)) {
          const auto rank = (before[u] & 0xffff) + smaller(equals_before, room);
          const auto at = offset_of(u) + k;
          const auto got = code_of<Table<Largest>, stochastic, O>(v[u][k], scale.inverse,
                                                                  element_index(e, begin + at), e.noise.key);
          chosen[rank] = static_cast<std::uint16_t>(at | got.code << position_bits);
          v[u][k] = O::sub(v[u][k], O::mul(got.level, scale.value));
        }
        before[u] += own;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) store_number(out, static_cast<std::uint16_t>(scale.code));
    store_chosen(chosen, kept, out + 2);
    keep_residual(e, begin, n, v);
  }
}

/// Positions have twelve bits, so even an invalid position stays within the tile.
template <class Use>
__global__ void __launch_bounds__(threads)
    decode_topk_kernel(CodecSpec spec, const std::byte* in, std::size_t elements, Use use) {
  alignas(float4) __shared__ float tile[piece];
  for (std::size_t t = blockIdx.x; t * piece < elements; t += gridDim.x) {
    const auto n = size_of_tile(t, elements);
    const auto kept = static_cast<unsigned>(kept_of(spec.top_k, n));
    const std::byte* const at = in + t * piece_bytes(spec.top_k);
    const auto scale = ScalarLanes::floats(scale_bits(ScaleFormat::bf16, load_number<std::uint16_t>(at)));
    const std::byte* const positions = at + 2;
    const std::byte* const codes = positions + positions_bytes(kept);
    Values x = {};
    store(tile, tile_size, x);  // each thread clears its own elements, which it alone has read
    __syncthreads();
    for (unsigned i = threadIdx.x; i < kept; i += threads) {
      const std::uint32_t two = static_cast<std::uint32_t>(positions[i * 3 / 2]) |
                                static_cast<std::uint32_t>(positions[i * 3 / 2 + 1]) << 8;
      const auto code = static_cast<std::uint32_t>(codes[i / 4]) >> (2 * (i % 4)) & 3;
      tile[i % 2 == 0 ? two & position_mask : two >> 4] =
          ScalarLanes::mul(Table<Largest>::value<ScalarLanes>(code), scale);
    }
    __syncthreads();
    load(tile, tile_size, x);
    use(t * piece, n, x);
  }
}

// ---- uses of decoded values ----

struct CopyTo {
  float* out;
  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    store(out + begin, n, x);
  }
};

struct AddTo {
  float weight;
  float* sum;
  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    using O = ScalarLanes;
    Values s;
    load(sum + begin, n, s);
    ISTHMUS_UNROLL
    for (unsigned i = 0; i < quads * quad; ++i) {
      auto& to = s[i / quad][i % quad];
      to = O::add(to, O::mul(weight, x[i / quad][i % quad]));
    }
    store(sum + begin, n, s);
  }
};

struct ApplyTo {
  OuterStep step;
  float* theta;
  float* velocity;
  float* local;  ///< null: none

  ISTHMUS_LANES bool carries() const { return local != nullptr && step.merge == Merge::carry; }
  ISTHMUS_LANES bool mixes() const {
    return local != nullptr && step.merge == Merge::mix && step.alpha != 0 && step.alpha != 1;
  }
  ISTHMUS_LANES bool copies() const {
    return local != nullptr && step.merge == Merge::mix && step.alpha == 0;
  }

  ISTHMUS_LANES void operator()(std::size_t begin, unsigned n, const Values& x) const {
    using O = ScalarLanes;
    Values p;
    Values v;
    Values l = {};
    load(theta + begin, n, p);
    load(velocity + begin, n, v);
    if (mixes() || carries()) load(local + begin, n, l);
    ISTHMUS_UNROLL
    for (unsigned i = 0; i < quads * quad; ++i) {
      const auto u = i / quad;
      const auto k = i % quad;
      const auto direction = step.nesterov ? outer_direction<true, O>(x[u][k], step.momentum, v[u][k])
                                           : outer_direction<false, O>(x[u][k], step.momentum, v[u][k]);
      const auto before = p[u][k];
      p[u][k] = O::sub(before, O::mul(step.lr, direction));
      l[u][k] = carries() ? O::add(l[u][k], O::sub(p[u][k], before))
                          : O::add(O::mul(step.alpha, l[u][k]), O::mul(O::sub(1, step.alpha), p[u][k]));
    }
    store(theta + begin, n, p);
    store(velocity + begin, n, v);
    if (mixes() || carries()) store(local + begin, n, l);
    if (copies()) store(local + begin, n, p);
  }
};

// ---- launches ----
// launch(kernel, arguments...) runs a kernel; the caller decides on how many thread blocks.

template <class T, class Launch>
void launch_encode_blocks(const CodecSpec& spec, const Encoding& e, unsigned long long* first_bad,
                          const Launch& launch) {
  constexpr bool is_sign = T::bits == 1;
  if (spec.rounding == Rounding::stochastic)
    return launch(encode_blocks_kernel<T, true, false>, spec, e, first_bad);
  launch(encode_blocks_kernel<T, false, is_sign>, spec, e, first_bad);
}

template <class Launch>
void launch_encode(const CodecSpec& spec, const Encoding& e, unsigned long long* first_bad,
                   const Launch& launch) {
  const bool drawn = spec.rounding == Rounding::stochastic;
  switch (spec.kind) {
    case CodecKind::fp32:
      return launch(encode_floats_kernel<CodecKind::fp32, false>, e, first_bad);
    case CodecKind::bf16:
      return launch(
          drawn ? encode_floats_kernel<CodecKind::bf16, true> : encode_floats_kernel<CodecKind::bf16, false>,
          e, first_bad);
    case CodecKind::int8:
      return launch_encode_blocks<Even<Int8>>(spec, e, first_bad, launch);
    case CodecKind::int4:
      return launch_encode_blocks<Even<Int4>>(spec, e, first_bad, launch);
    case CodecKind::e3m0:
      return launch_encode_blocks<Table<E3m0>>(spec, e, first_bad, launch);
    case CodecKind::lloyd4:
      return launch_encode_blocks<Table<Lloyd4>>(spec, e, first_bad, launch);
    case CodecKind::lloyd3:
      return launch_encode_blocks<Table<Lloyd3>>(spec, e, first_bad, launch);
    case CodecKind::lloyd2:
      return launch_encode_blocks<Table<Lloyd2>>(spec, e, first_bad, launch);
    case CodecKind::sign:
      return launch_encode_blocks<Table<Sign>>(spec, e, first_bad, launch);
    case CodecKind::topk:
      return launch(drawn ? encode_topk_kernel<true> : encode_topk_kernel<false>, spec, e, first_bad);
  }
}

/// `use`: CopyTo, AddTo or ApplyTo.
template <class Use, class Launch>
void launch_decode(const CodecSpec& spec, const std::byte* in, std::size_t elements, const Use& use,
                   const Launch& launch) {
  switch (spec.kind) {
    case CodecKind::fp32:
      return launch(decode_floats_kernel<CodecKind::fp32, Use>, in, elements, use);
    case CodecKind::bf16:
      return launch(decode_floats_kernel<CodecKind::bf16, Use>, in, elements, use);
    case CodecKind::int8:
      return launch(decode_blocks_kernel<Even<Int8>, Use>, spec, in, elements, use);
    case CodecKind::int4:
      return launch(decode_blocks_kernel<Even<Int4>, Use>, spec, in, elements, use);
    case CodecKind::e3m0:
      return launch(decode_blocks_kernel<Table<E3m0>, Use>, spec, in, elements, use);
    case CodecKind::lloyd4:
      return launch(decode_blocks_kernel<Table<Lloyd4>, Use>, spec, in, elements, use);
    case CodecKind::lloyd3:
      return launch(decode_blocks_kernel<Table<Lloyd3>, Use>, spec, in, elements, use);
    case CodecKind::lloyd2:
      return launch(decode_blocks_kernel<Table<Lloyd2>, Use>, spec, in, elements, use);
    case CodecKind::sign:
      return launch(decode_blocks_kernel<Table<Sign>, Use>, spec, in, elements, use);
    case CodecKind::topk:
      return launch(decode_topk_kernel<Use>, spec, in, elements, use);
  }
}
