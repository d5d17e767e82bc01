// Operations on one lane, as simple as possible: for the reference, the tails of vectorised loops and CUDA.
// Included like arithmetic-inl.h, and before it.
//
// No include guard, on purpose.

/// An instruction set: one function for each operation that the passes need, hence their number.
struct ScalarLanes {
  using F = float;
  using U = std::uint32_t;
  using M = bool;
  static constexpr std::size_t lanes = 1;
  template <class T>
  static constexpr bool has_bins = false;

  ISTHMUS_LANES static F set(float x) { return x; }
  ISTHMUS_LANES static U set(std::uint32_t x) { return x; }
  /// first, first + 1, ...: one for each lane
  ISTHMUS_LANES static U count_from(std::uint32_t first) { return first; }

  ISTHMUS_LANES static F load(const float* p) { return *p; }
  ISTHMUS_LANES static void store(float* p, F x) { *p = x; }
  ISTHMUS_LANES static U load_bytes(const std::byte* p) { return static_cast<U>(*p); }
  ISTHMUS_LANES static void store_bytes(std::byte* p, U x) { *p = static_cast<std::byte>(x); }
  ISTHMUS_LANES static U load_halves(const std::uint16_t* p) { return *p; }
  ISTHMUS_LANES static void store_halves(std::uint16_t* p, U x) { *p = static_cast<std::uint16_t>(x); }

  ISTHMUS_LANES static F add(F a, F b) { return a + b; }
  ISTHMUS_LANES static F sub(F a, F b) { return a - b; }
  ISTHMUS_LANES static F mul(F a, F b) { return a * b; }
  ISTHMUS_LANES static F div(F a, F b) { return a / b; }
  ISTHMUS_LANES static F min(F a, F b) { return a < b ? a : b; }
  ISTHMUS_LANES static F floor(F a) { return std::floor(a); }
  ISTHMUS_LANES static M greater_equal(F a, F b) { return a >= b; }

  ISTHMUS_LANES static U bits(F a) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(a);
#else
    return std::bit_cast<U>(a);
#endif
  }
  ISTHMUS_LANES static F floats(U a) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(a);
#else
    return std::bit_cast<F>(a);
#endif
  }
  /// Requires values below 2^31.
  ISTHMUS_LANES static F to_float(U a) { return static_cast<F>(static_cast<std::int32_t>(a)); }
  ISTHMUS_LANES static U add(U a, U b) { return a + b; }
  ISTHMUS_LANES static U mul(U a, U b) { return a * b; }
  ISTHMUS_LANES static U bit_and(U a, U b) { return a & b; }
  ISTHMUS_LANES static U bit_or(U a, U b) { return a | b; }
  ISTHMUS_LANES static U bit_xor(U a, U b) { return a ^ b; }
  template <int n>
  ISTHMUS_LANES static U shift_left(U a) {
    return a << n;
  }
  template <int n>
  ISTHMUS_LANES static U shift_right(U a) {
    return a >> n;
  }
  /// Requires values below 2^31.
  ISTHMUS_LANES static U max(U a, U b) { return a > b ? a : b; }
  ISTHMUS_LANES static M not_below(U a, U b) { return a >= b; }

  ISTHMUS_LANES static U select(M m, U yes, U no) { return m ? yes : no; }
  /// Adds one where the condition holds.
  ISTHMUS_LANES static U count(U a, M m) { return a + (m ? 1U : 0U); }
  ISTHMUS_LANES static bool any(M m) { return m; }
  ISTHMUS_LANES static U max_of(U a) { return a; }
  ISTHMUS_LANES static U sum_of(U a) { return a; }

  /// T::levels[index]
  template <class T, std::size_t I = level_count<T> - 1>
  ISTHMUS_LANES static F level(U index) {
    if constexpr (I == 0) {
      constexpr float first = T::levels[0];
      return first;
    } else {
      constexpr float own = T::levels[I];
      return index == I ? own : level<T, I - 1>(index);
    }
  }
};
