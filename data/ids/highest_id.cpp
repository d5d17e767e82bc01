// Highway compiles this file once for each instruction set, and the best one is chosen at run time.
#include "ids/highest_id.h"

#include <algorithm>

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ids/highest_id.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace isthmus::data {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Id>
std::uint32_t highest_of(const std::byte* ids, std::uint64_t count) {
  const hn::ScalableTag<Id> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* all = reinterpret_cast<const Id*>(ids);
  const auto load = [&](std::uint64_t i) HWY_ATTR { return hn::LoadU(d, all + i); };
  // Four independent maxima, so that none has to wait for another.
  auto m0 = hn::Zero(d);
  auto m1 = m0, m2 = m0, m3 = m0;
  std::uint64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    m0 = hn::Max(m0, load(i));
    m1 = hn::Max(m1, load(i + lanes));
    m2 = hn::Max(m2, load(i + 2 * lanes));
    m3 = hn::Max(m3, load(i + 3 * lanes));
  }
  HWY_ALIGN Id found[HWY_MAX_BYTES / sizeof(Id)];
  hn::Store(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)), d, found);
  auto most = *std::max_element(found, found + lanes);
  for (; i < count; ++i) most = std::max(most, all[i]);
  return most;
}

std::uint32_t highest(const std::byte* ids, std::uint32_t width, std::uint64_t count) {
  return width == 2 ? highest_of<std::uint16_t>(ids, count) : highest_of<std::uint32_t>(ids, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace isthmus::data
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::data {

HWY_EXPORT(highest);

std::uint32_t highest_id(const std::byte* ids, std::uint32_t width, std::uint64_t count) {
  return HWY_DYNAMIC_DISPATCH(highest)(ids, width, count);
}

}  // namespace isthmus::data
#endif
