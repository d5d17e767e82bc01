#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats.h"
#include "passes_table.h"

#define ISTHMUS_LANES inline

namespace isthmus::quant {
namespace scalar {
namespace {
#include "scalar_lanes-inl.h"

struct Lanes : ScalarLanes {
  static void prefetch(const float* /*p*/) {}
  static U shift_left_by(U a, int n) { return a << n; }
  static U shift_right_by(U a, int n) { return a >> n; }
};

struct Doubles {
  using D = double;
  static constexpr std::size_t lanes = 1;
  static D zero() { return 0; }
  static D load(const float* p) { return *p; }
  static void store(double* p, D x) { *p = x; }
  static D add_product(D sum, D a, D b) { return sum + a * b; }
};

#include "arithmetic-inl.h"
#include "products-inl.h"
// after both
#include "passes-inl.h"
}  // namespace
}  // namespace scalar

Passes scalar_passes() { return scalar::passes_of("scalar"); }

}  // namespace isthmus::quant
