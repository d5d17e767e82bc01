// How the decoder's kernels read and write groups of elements, and combine values over a block of threads.
// Included by decoder_kernels-inl.h.

inline constexpr unsigned threads = 256;
inline constexpr unsigned warp_size = 32;
inline constexpr unsigned warps = threads / warp_size;
inline constexpr unsigned all_lanes = 0xffffffff;
inline constexpr Index group = 4;  ///< neighbouring elements that a thread reads at once
inline constexpr Index stride = threads * group;
inline constexpr Index warp_stride = warp_size * group;
inline constexpr Index max_warp_columns = 1024;  ///< columns that a warp's registers hold

// ---- memory ----

struct alignas(8) FourBf16 {
  std::uint32_t low, high;
};

ISTHMUS_LANES float wide(float x) { return x; }
ISTHMUS_LANES float wide(Bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }
/// Rounds to nearest, ties to even. Rounding would turn a GPU's own NaN, 0x7fffffff, into -0.
/// ISTHMUS_TWO_BF16 is the hardware's instruction for two values, if it has one.
ISTHMUS_LANES std::uint32_t bf16_bits(float x) {
#ifdef ISTHMUS_TWO_BF16
  return ISTHMUS_TWO_BF16(x, 0.0F) & 0xffffU;
#else
  const std::uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return bits >> 16 | 0x40U;
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
#endif
}
ISTHMUS_LANES std::uint32_t two_bf16(float low, float high) {
#ifdef ISTHMUS_TWO_BF16
  return ISTHMUS_TWO_BF16(low, high);
#else
  return bf16_bits(low) | bf16_bits(high) << 16;
#endif
}
/// The value after it was stored and read again.
ISTHMUS_LANES float as_stored(float x, float) { return x; }
ISTHMUS_LANES float as_stored(float x, Bf16) { return __uint_as_float(bf16_bits(x) << 16); }
ISTHMUS_LANES void put(float x, float& out) { out = x; }
ISTHMUS_LANES void put(float x, Bf16& out) { out.bits = static_cast<std::uint16_t>(bf16_bits(x)); }

/// The type of a group in memory.
template <class T>
struct Memory;
template <>
struct Memory<float> {
  using Four = float4;
};
template <>
struct Memory<Bf16> {
  using Four = FourBf16;
};
template <class T>
using Four = typename Memory<T>::Four;

ISTHMUS_LANES void unpack(const float4& got, float (&x)[group]) {
  x[0] = got.x;
  x[1] = got.y;
  x[2] = got.z;
  x[3] = got.w;
}
ISTHMUS_LANES void unpack(const FourBf16& got, float (&x)[group]) {
  x[0] = __uint_as_float(got.low << 16);
  x[1] = __uint_as_float(got.low & 0xffff0000U);
  x[2] = __uint_as_float(got.high << 16);
  x[3] = __uint_as_float(got.high & 0xffff0000U);
}
ISTHMUS_LANES void write_four(const float (&x)[group], float* p) {
  *reinterpret_cast<float4*>(p) = float4{x[0], x[1], x[2], x[3]};
}
ISTHMUS_LANES void write_four(const float (&x)[group], Bf16* p) {
  *reinterpret_cast<FourBf16*>(p) = FourBf16{two_bf16(x[0], x[1]), two_bf16(x[2], x[3])};
}

// A warp waits for what it has read at its first use and at every branch. So kernels with few threads first
// read all that they need, without branches. That requires dense rows: each group of four is at a multiple of
// its size.
template <class T>
bool is_dense(Index channels, std::initializer_list<const T*> pointers) {
  bool dense = channels % group == 0;
  for (const T* p : pointers) dense = dense && reinterpret_cast<std::uintptr_t>(p) % sizeof(Four<T>) == 0;
  return dense;
}
/// The group at `at` of a dense row of n elements; zeros past its end.
template <class T>
ISTHMUS_LANES Four<T> fetch(const T* p, Index n, Index at) {
  return at < n ? *reinterpret_cast<const Four<T>*>(p + at) : Four<T>{};
}
template <class T>
ISTHMUS_LANES void put_dense(const float (&x)[group], T* p, Index n, Index at) {
  if (at < n) write_four(x, p + at);
}

/// The group from `at` on of the n elements at `p`; zeros past their end.
template <class T>
ISTHMUS_LANES void load(const T* p, Index n, Index at, float (&x)[group]) {
  const bool together =
      at + group <= n && reinterpret_cast<std::uintptr_t>(p + at) % (group * sizeof(T)) == 0;
  if (together) return unpack(*reinterpret_cast<const Four<T>*>(p + at), x);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) x[k] = at + k < n ? wide(p[at + k]) : 0;
}
template <class T>
ISTHMUS_LANES void store(const float (&x)[group], T* p, Index n, Index at) {
  const bool together =
      at + group <= n && reinterpret_cast<std::uintptr_t>(p + at) % (group * sizeof(T)) == 0;
  if (together) return write_four(x, p + at);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) {
    if (at + k < n) put(x[k], p[at + k]);
  }
}

ISTHMUS_LANES Index own_begin() { return static_cast<Index>(threadIdx.x) * group; }

// ---- over the threads of a block ----

struct Sum {
  ISTHMUS_LANES static float of(float a, float b) { return a + b; }
};
struct Larger {
  ISTHMUS_LANES static float of(float a, float b) { return a > b ? a : b; }
};

/// The sum over each group of `lanes` neighbouring lanes, a power of two. Every lane of the warp calls it.
template <unsigned lanes = warp_size>
ISTHMUS_LANES float over_lanes(float x) {
  for (unsigned apart = lanes / 2; apart > 0; apart /= 2)
    x += __uint_as_float(__shfl_xor_sync(all_lanes, __float_as_uint(x), apart));
  return x;
}
ISTHMUS_LANES unsigned own_warp() { return threadIdx.x / warp_size; }
ISTHMUS_LANES unsigned own_lane() { return threadIdx.x % warp_size; }

/// The same over all threads of a block. Every thread must call it.
template <class Operation>
ISTHMUS_LANES float over_block(float x) {
  __shared__ float of_warp[warps];
  for (unsigned apart = warp_size / 2; apart > 0; apart /= 2)
    x = Operation::of(x, __uint_as_float(__shfl_xor_sync(all_lanes, __float_as_uint(x), apart)));
  __syncthreads();  // all threads have read the previous values
  if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = x;
  __syncthreads();
  float all = of_warp[0];
  for (unsigned w = 1; w < warps; ++w) all = Operation::of(all, of_warp[w]);
  return all;
}
