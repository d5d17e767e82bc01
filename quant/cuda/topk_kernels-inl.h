// The format topk. Included by kernels-inl.h.

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
          const auto got = code_of<Table<TopkLevels>, stochastic, O>(
              v[u][k], scale.inverse, element_index(e, begin + at), e.noise.key);
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
          ScalarLanes::mul(Table<TopkLevels>::value<ScalarLanes>(code), scale);
    }
    __syncthreads();
    load(tile, tile_size, x);
    use(t * piece, n, x);
  }
}
