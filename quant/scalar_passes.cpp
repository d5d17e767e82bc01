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

#include "arithmetic-inl.h"
#include "passes-inl.h"
}  // namespace
}  // namespace scalar

Passes scalar_passes() { return scalar::passes_of("scalar"); }

}  // namespace isthmus::quant
