// The formats' arithmetic on values, for any number of lanes: one definition for the scalar, the vectorised
// and the CUDA passes. Each includes it once, inside its namespace, after defining ISTHMUS_LANES, the
// attributes of a function there. O, the operations, is a struct of static functions on F (fp32), U (uint32)
// and M (conditions), each a single IEEE 754 operation rounded to nearest even or an integer operation; see
// ScalarLanes.
//
// No include guard, on purpose.

/// Random bits from element indices: a 32-bit mix of two rounds (the constants are those of C. Wellons' "hash
/// prospector") with half of the key before each. random_unit24 makes them uniform in [0, 1), multiples of
/// 2^-24.
template <class O>
ISTHMUS_LANES typename O::U random_bits32(typename O::U element, std::uint64_t key) {
  auto x = O::add(element, O::set(static_cast<std::uint32_t>(key)));
  x = O::bit_xor(x, O::template shift_right<16>(x));
  x = O::mul(x, O::set(std::uint32_t{0x7feb352d}));
  x = O::bit_xor(x, O::template shift_right<15>(x));
  x = O::add(x, O::set(static_cast<std::uint32_t>(key >> 32)));
  x = O::mul(x, O::set(std::uint32_t{0x846ca68b}));
  x = O::bit_xor(x, O::template shift_right<16>(x));
  x = O::mul(x, O::set(std::uint32_t{0x9e3779b1}));
  return O::bit_xor(x, O::template shift_right<15>(x));
}
template <class O>
ISTHMUS_LANES typename O::F random_unit24(typename O::U element, std::uint64_t key) {
  return O::mul(O::to_float(O::template shift_right<8>(random_bits32<O>(element, key))), O::set(0x1p-24F));
}

template <class O>
ISTHMUS_LANES typename O::U magnitude_bits(typename O::F x) {
  return O::bit_and(O::bits(x), O::set(magnitude_mask));
}

template <class O>
struct Coded {
  typename O::U code;
  typename O::F level;  ///< value of the code, in units of the scale
};

// Lanes with a faster way to the same result provide `nearest_index` and `drawn_index`.

/// Counts the levels from I on that begin at or below this magnitude.
template <class T, class O, std::size_t I = 1>
ISTHMUS_LANES typename O::U count_nearest(typename O::F magnitude, typename O::U code) {
  if constexpr (I < level_count<T>) {
    return count_nearest<T, O, I + 1>(magnitude,
                                      O::count(code, O::greater_equal(magnitude, O::set(threshold<T, I>))));
  } else {
    return code;
  }
}
/// The same, with the beginning of each level's range drawn, by `u`, between this level and the one below.
template <class T, class O, std::size_t I = 1>
ISTHMUS_LANES typename O::U count_drawn(typename O::F magnitude, typename O::F u, typename O::U code) {
  if constexpr (I < level_count<T>) {
    constexpr float below = T::levels[I - 1];
    constexpr float width = T::levels[I] - T::levels[I - 1];
    const auto begin = O::add(O::set(below), O::mul(u, O::set(width)));
    return count_drawn<T, O, I + 1>(magnitude, u, O::count(code, O::greater_equal(magnitude, begin)));
  } else {
    return code;
  }
}

/// A symmetric table of levels; a code is the sign above the level's index.
template <class T>
struct Table : T {
  static constexpr float smallest = T::levels[0];

  template <class O>
  ISTHMUS_LANES static typename O::F with_sign(typename O::F magnitude, typename O::U sign) {
    return O::floats(O::bit_or(O::bits(magnitude), sign));
  }
  template <class O>
  ISTHMUS_LANES static Coded<O> coded(typename O::U index, typename O::U sign) {
    return {O::bit_or(index, O::template shift_right<32 - T::bits>(sign)),
            with_sign<O>(O::template level<T>(index), sign)};
  }
  template <class O>
  ISTHMUS_LANES static Coded<O> nearest(typename O::F in_scales) {
    const auto bits = O::bits(in_scales);
    const auto magnitude = O::floats(magnitude_bits<O>(in_scales));
    const auto sign = O::bit_and(bits, O::set(sign_mask));
    if constexpr (O::template has_bins<T>) return coded<O>(O::template nearest_index<T>(magnitude), sign);
    return coded<O>(count_nearest<T, O>(magnitude, O::set(std::uint32_t{0})), sign);
  }
  /// Between the smallest levels of either sign, the sign is drawn.
  template <class O>
  ISTHMUS_LANES static Coded<O> drawn(typename O::F in_scales, typename O::F u) {
    const auto bits = O::bits(in_scales);
    const auto magnitude = O::floats(magnitude_bits<O>(in_scales));
    auto sign = O::bit_and(bits, O::set(sign_mask));
    if constexpr (smallest > 0) {
      const auto flips_below = O::sub(O::set(smallest), O::mul(u, O::set(2 * smallest)));
      const auto flipped = O::bit_xor(sign, O::set(sign_mask));
      sign = O::select(O::greater_equal(magnitude, flips_below), sign, flipped);
    }
    if constexpr (O::template has_bins<T>) return coded<O>(O::template drawn_index<T>(magnitude, u), sign);
    return coded<O>(count_drawn<T, O>(magnitude, u, O::set(std::uint32_t{0})), sign);
  }
  template <class O>
  ISTHMUS_LANES static typename O::F value(typename O::U code) {
    const auto sign = O::bit_and(O::template shift_left<32 - T::bits>(code), O::set(sign_mask));
    const auto index = O::bit_and(code, O::set((std::uint32_t{1} << (T::bits - 1)) - 1));
    return with_sign<O>(O::template level<T>(index), sign);
  }
};

/// Levels 0, 1, 2, ... T::unit, computed instead of looked up. A code is the sign above the level.
template <class T>
struct Even : T {
  template <class O>
  ISTHMUS_LANES static Coded<O> coded(typename O::F x, typename O::F level) {
    const auto sign = O::bit_and(O::bits(x), O::set(sign_mask));
    const auto clipped = O::min(level, O::set(T::unit));
    const auto index = O::bit_and(O::bits(O::add(clipped, O::set(rounder))), O::set(std::uint32_t{0xff}));
    return {O::bit_or(index, O::template shift_right<32 - T::bits>(sign)),
            O::floats(O::bit_or(O::bits(clipped), sign))};
  }
  template <class O>
  ISTHMUS_LANES static Coded<O> nearest(typename O::F in_scales) {
    const auto sum = O::add(O::floats(magnitude_bits<O>(in_scales)), O::set(rounder));
    return coded<O>(in_scales, O::sub(sum, O::set(rounder)));
  }
  template <class O>
  ISTHMUS_LANES static Coded<O> drawn(typename O::F in_scales, typename O::F u) {
    return coded<O>(in_scales, O::floor(O::add(O::floats(magnitude_bits<O>(in_scales)), u)));
  }
  template <class O>
  ISTHMUS_LANES static typename O::F value(typename O::U code) {
    const auto sign = O::bit_and(O::template shift_left<32 - T::bits>(code), O::set(sign_mask));
    const auto index = O::bit_and(code, O::set((std::uint32_t{1} << (T::bits - 1)) - 1));
    return O::floats(O::bit_or(O::bits(O::to_float(index)), sign));
  }
};

template <CodecKind kind>
struct Floats {};
struct Topk {};

/// Calls `visit` with the format of a codec: Floats, Even or Table over its levels, or Topk.
template <class Visit>
auto with_format(CodecKind kind, const Visit& visit) {
  switch (kind) {
    case CodecKind::fp32:
      return visit(Floats<CodecKind::fp32>());
    case CodecKind::bf16:
      return visit(Floats<CodecKind::bf16>());
    case CodecKind::int8:
      return visit(Even<Int8>());
    case CodecKind::int4:
      return visit(Even<Int4>());
    case CodecKind::e3m0:
      return visit(Table<E3m0>());
    case CodecKind::lloyd4:
      return visit(Table<Lloyd4>());
    case CodecKind::lloyd3:
      return visit(Table<Lloyd3>());
    case CodecKind::lloyd2:
      return visit(Table<Lloyd2>());
    case CodecKind::sign:
      return visit(Table<Sign>());
    case CodecKind::topk:
      break;
  }
  return visit(Topk());
}

/// The code of one value and the level that it decodes to.
template <class T, bool stochastic, class O>
ISTHMUS_LANES Coded<O> code_of(typename O::F x, typename O::F inverse_scale, typename O::U element,
                               std::uint64_t key) {
  const auto in_scales = O::mul(x, inverse_scale);
  if constexpr (stochastic) {
    return T::template drawn<O>(in_scales, random_unit24<O>(element, key));
  } else {
    return T::template nearest<O>(in_scales);
  }
}

/// bfloat16 of a value, in the lower half of a lane. Stochastic rounding adds 16 random bits below the last
/// kept one.
template <bool stochastic, class O>
ISTHMUS_LANES typename O::U bf16_of(typename O::F x, typename O::U element, std::uint64_t key) {
  const auto bits = O::bits(x);
  if constexpr (stochastic) {
    const auto sum = O::add(bits, O::template shift_right<16>(random_bits32<O>(element, key)));
    return O::template shift_right<16>(sum);
  } else {
    const auto odd = O::bit_and(O::template shift_right<16>(bits), O::set(std::uint32_t{1}));
    return O::template shift_right<16>(O::add(O::add(bits, O::set(std::uint32_t{0x7fff})), odd));
  }
}

/// v <- mu v + g; returns the direction of the outer step.
template <bool nesterov, class O>
ISTHMUS_LANES typename O::F outer_direction(typename O::F g, typename O::F momentum, typename O::F& v) {
  v = O::add(O::mul(momentum, v), g);
  if constexpr (nesterov) {
    return O::add(g, O::mul(momentum, v));
  } else {
    return v;
  }
}
