// A thread's part of a tile: its shape, its loads and stores, and the inputs of encoders. Included by
// kernels-inl.h.

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
