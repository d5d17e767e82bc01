// The passes for every useful instruction set, chosen at run time (Highway compiles this file once for each).

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats.h"
#include "level_tables.h"
#include "passes_table.h"

// Disabled: vectors of a length unknown to the compiler, because structs cannot contain them; SSSE3 and the
// later AVX-512 variants, because they gain nothing here.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "vector_passes.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#undef ISTHMUS_LANES
#define ISTHMUS_LANES HWY_INLINE

HWY_BEFORE_NAMESPACE();
namespace isthmus::quant {
namespace HWY_NAMESPACE {
namespace {

#include "scalar_lanes-inl.h"

namespace hn = hwy::HWY_NAMESPACE;

/// The same operations as ScalarLanes, on many lanes.
struct Lanes {
  using DF = hn::CappedTag<float, 16>;
  using DU = hn::RebindToUnsigned<DF>;
  using DI = hn::RebindToSigned<DF>;
  using F = hn::Vec<DF>;
  using U = hn::Vec<DU>;
  using M = hn::Mask<DF>;
  using MU = hn::Mask<DU>;
  static constexpr std::size_t lanes = hn::MaxLanes(DF());

  ISTHMUS_LANES static void prefetch(const float* p) { hwy::Prefetch(p); }
  ISTHMUS_LANES static F set(float x) { return hn::Set(DF(), x); }
  ISTHMUS_LANES static U set(std::uint32_t x) { return hn::Set(DU(), x); }
  ISTHMUS_LANES static U count_from(std::uint32_t first) {
    alignas(64) static constexpr std::uint32_t numbers[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                            8, 9, 10, 11, 12, 13, 14, 15};
    return hn::Add(hn::Load(DU(), numbers), hn::Set(DU(), first));
  }

  ISTHMUS_LANES static F load(const float* p) { return hn::LoadU(DF(), p); }
  ISTHMUS_LANES static void store(float* p, F x) { hn::StoreU(x, DF(), p); }
  ISTHMUS_LANES static U load_bytes(const std::byte* p) {
    return hn::PromoteTo(DU(),
                         hn::LoadU(hn::Rebind<std::uint8_t, DU>(), reinterpret_cast<const std::uint8_t*>(p)));
  }
  /// Stores the lowest byte of each lane.
  ISTHMUS_LANES static void store_bytes(std::byte* p, U x) {
    const hn::Rebind<std::uint8_t, DU> bytes;
    hn::StoreU(hn::TruncateTo(bytes, x), bytes, reinterpret_cast<std::uint8_t*>(p));
  }
  ISTHMUS_LANES static U load_halves(const std::uint16_t* p) {
    return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<std::uint16_t, DU>(), p));
  }
  ISTHMUS_LANES static void store_halves(std::uint16_t* p, U x) {
    const hn::Rebind<std::uint16_t, DU> halves;
    hn::StoreU(hn::TruncateTo(halves, x), halves, p);
  }

  ISTHMUS_LANES static F add(F a, F b) { return hn::Add(a, b); }
  ISTHMUS_LANES static F sub(F a, F b) { return hn::Sub(a, b); }
  ISTHMUS_LANES static F mul(F a, F b) { return hn::Mul(a, b); }
  ISTHMUS_LANES static F div(F a, F b) { return hn::Div(a, b); }
  ISTHMUS_LANES static F min(F a, F b) { return hn::Min(a, b); }
  ISTHMUS_LANES static F floor(F a) { return hn::Floor(a); }
  ISTHMUS_LANES static M greater_equal(F a, F b) { return hn::Ge(a, b); }

  ISTHMUS_LANES static U bits(F a) { return hn::BitCast(DU(), a); }
  ISTHMUS_LANES static F floats(U a) { return hn::BitCast(DF(), a); }
  ISTHMUS_LANES static F to_float(U a) { return hn::ConvertTo(DF(), hn::BitCast(DI(), a)); }
  ISTHMUS_LANES static U add(U a, U b) { return hn::Add(a, b); }
  ISTHMUS_LANES static U mul(U a, U b) { return hn::Mul(a, b); }
  ISTHMUS_LANES static U bit_and(U a, U b) { return hn::And(a, b); }
  ISTHMUS_LANES static U bit_or(U a, U b) { return hn::Or(a, b); }
  ISTHMUS_LANES static U bit_xor(U a, U b) { return hn::Xor(a, b); }
  template <int n>
  ISTHMUS_LANES static U shift_left(U a) {
    return hn::ShiftLeft<n>(a);
  }
  template <int n>
  ISTHMUS_LANES static U shift_right(U a) {
    return hn::ShiftRight<n>(a);
  }
  ISTHMUS_LANES static U shift_left_by(U a, int n) { return hn::ShiftLeftSame(a, n); }
  ISTHMUS_LANES static U shift_right_by(U a, int n) { return hn::ShiftRightSame(a, n); }
  // Signed, because older instruction sets only have signed comparisons; values are below 2^31.
  ISTHMUS_LANES static U max(U a, U b) {
    return hn::BitCast(DU(), hn::Max(hn::BitCast(DI(), a), hn::BitCast(DI(), b)));
  }
  ISTHMUS_LANES static M not_below(U a, U b) {
    return hn::RebindMask(DF(), hn::Not(hn::Lt(hn::BitCast(DI(), a), hn::BitCast(DI(), b))));
  }
  ISTHMUS_LANES static std::uint32_t max_of(U a) {
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), hn::BitCast(DI(), a))));
  }
  ISTHMUS_LANES static std::uint32_t sum_of(U a) { return hn::GetLane(hn::SumOfLanes(DU(), a)); }

  ISTHMUS_LANES static U select(M m, U yes, U no) { return hn::IfThenElse(hn::RebindMask(DU(), m), yes, no); }
  ISTHMUS_LANES static U count(U a, M m) {
#if HWY_TARGET <= HWY_AVX3  // masks have their own registers
    return hn::IfThenElse(hn::RebindMask(DU(), m), hn::Add(a, hn::Set(DU(), 1U)), a);
#else  // a condition that holds is -1
    return hn::Sub(a, hn::BitCast(DU(), hn::VecFromMask(DF(), m)));
#endif
  }
  ISTHMUS_LANES static bool any(M m) { return !hn::AllFalse(DF(), m); }

  template <class T, std::size_t I = level_count<T> - 1>
  ISTHMUS_LANES static F level(U index) {
    if constexpr (I == 0) {
      return hn::Set(DF(), float{T::levels[0]});
    } else if constexpr (level_count<T> <= lanes) {
      return looked_up(level_tables<T>.levels, index);
    } else {
      const auto own = hn::Eq(index, hn::Set(DU(), static_cast<std::uint32_t>(I)));
      return hn::IfThenElse(hn::RebindMask(DF(), own), hn::Set(DF(), float{T::levels[I]}),
                            level<T, I - 1>(index));
    }
  }

  template <class T>
  static constexpr bool has_bins = lanes == level_bins&& bins_suffice<T>;

  template <class T>
  ISTHMUS_LANES static U nearest_index(F magnitude) {
    const auto& table = level_tables<T>;
    const auto bin = bin_of(magnitude);
    return count(looked_up(table.nearest_below, bin),
                 greater_equal(magnitude, looked_up(table.nearest_from, bin)));
  }
  template <class T>
  ISTHMUS_LANES static U drawn_index(F magnitude, F u) {
    const auto& table = level_tables<T>;
    const auto bin = bin_of(magnitude);
    const auto below =
        count(looked_up(table.level_below, bin), greater_equal(magnitude, looked_up(table.level_from, bin)));
    const auto begin = add(looked_up(table.levels, below), mul(u, looked_up(table.widths, below)));
    return count(below, greater_equal(magnitude, begin));
  }

 private:
  ISTHMUS_LANES static F looked_up(const float* table, U index) {
    return hn::TableLookupLanes(hn::Load(DF(), table), hn::IndicesFromVec(DF(), index));
  }
  ISTHMUS_LANES static U looked_up(const std::uint32_t* table, U index) {
    return hn::TableLookupLanes(hn::Load(DU(), table), hn::IndicesFromVec(DU(), index));
  }
  ISTHMUS_LANES static U bin_of(F magnitude) {
    const auto number =
        hn::ConvertTo(DI(), hn::Mul(hn::Min(magnitude, hn::Set(DF(), 1.0F)), hn::Set(DF(), 16.0F)));
    return hn::BitCast(DU(), hn::Min(number, hn::Set(DI(), 15)));
  }
};

/// fp64 operations on fp32 values in memory. Products are exact, so a fused multiply-add rounds like a
/// separate addition.
struct Doubles {
  using DD = hn::CappedTag<double, 16>;
  using D = hn::Vec<DD>;
  static constexpr std::size_t lanes = hn::MaxLanes(DD());
  ISTHMUS_LANES static D zero() { return hn::Zero(DD()); }
  ISTHMUS_LANES static D load(const float* p) {
    return hn::PromoteTo(DD(), hn::LoadU(hn::Rebind<float, DD>(), p));
  }
  ISTHMUS_LANES static void store(double* p, D x) { hn::StoreU(x, DD(), p); }
  ISTHMUS_LANES static D add_product(D sum, D a, D b) { return hn::MulAdd(a, b, sum); }
};

#include "arithmetic-inl.h"
#include "products-inl.h"
// after both
#include "passes-inl.h"

}  // namespace

Passes passes_for_target() { return passes_of(hwy::TargetName(HWY_TARGET)); }

}  // namespace HWY_NAMESPACE
}  // namespace isthmus::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::quant {

HWY_EXPORT(passes_for_target);

Passes vector_passes() { return HWY_DYNAMIC_DISPATCH(passes_for_target)(); }

std::vector<Passes> all_vector_passes() {
  std::vector<Passes> all;
  for (auto targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    hwy::SetSupportedTargetsForTest(targets & -targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    all.push_back(vector_passes());
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return all;
}

}  // namespace isthmus::quant
#endif
