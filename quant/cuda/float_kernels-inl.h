// fp32 and bf16. Included by kernels-inl.h.

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
