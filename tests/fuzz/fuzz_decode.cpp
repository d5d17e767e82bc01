// Arbitrary bytes for decode: rejected bytes write nothing, accepted bytes give the reference's finite
// values.

#include "fuzz_support.h"

using namespace isthmus::quant;

namespace {

/// Positions past the end of a piece, or repeated positions, would yield fewer values.
bool has_as_many_as_kept(const Case& c, const Values& out) {
  for (std::size_t begin = 0; begin < out.size(); begin += piece) {
    const auto n = std::min(piece, out.size() - begin);
    const auto there =
        n - static_cast<std::size_t>(std::count(out.begin() + begin, out.begin() + begin + n, 0.0F));
    if (there != 0 && there != kept_of(c.spec.top_k, n)) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Case c;
  if (!c.read(data, size)) return 0;
  const auto bytes = c.encoded();
  const auto before = some_values(c.elements, 0.5F);
  auto out = before;
  const bool accepted = decode(c.spec, bytes, out);
  require(accepted == valid(c.spec, bytes, c.elements), "decode and valid disagree");
  if (!accepted) {
    require(same_bits(out, before), "a rejected stream wrote something");
    return 0;
  }
  for (const float value : out)
    require(std::isfinite(value), "an accepted stream gave a value that is not finite");
  require(c.spec.kind != CodecKind::topk || has_as_many_as_kept(c, out), "topk: fewer values than positions");
  Values expected(c.elements);
  scalar_passes().decode(c.spec, bytes.data(), expected.data(), c.elements);
  require(same_bits(out, expected), "result differs from the scalar pass's");
  return 0;
}
