// isthmus._native.codecs: the codecs on arrays of fp32; results go to the caller's memory.

#include "codecs.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/quant/passes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace isthmus::python {
namespace {

using ConstValues = nb::ndarray<nb::pytorch, const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Room = nb::ndarray<nb::pytorch, float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Encoded = nb::ndarray<nb::pytorch, const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using EncodedRoom = nb::ndarray<nb::pytorch, std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span_of(Array& array) {
  return std::span(array.data(), array.size());
}

void check_size(const char* what, std::size_t size, std::size_t expected) {
  if (size != expected)
    throw Error(ErrorKind::config, std::string(what) + " has " + std::to_string(size) +
                                       " elements; expected " + std::to_string(expected));
}

quant::CodecSpec make_spec(const std::string& kind, std::optional<std::uint32_t> block,
                           const std::optional<std::string>& scale, std::optional<float> clip,
                           bool stochastic, std::optional<std::uint32_t> top_k) {
  auto spec = quant::default_spec(quant::codec_kind(kind));
  spec.block = block.value_or(spec.block);
  if (scale) spec.scale = quant::scale_format(*scale);
  spec.clip = clip.value_or(spec.clip);
  spec.rounding = stochastic ? quant::Rounding::stochastic : quant::Rounding::nearest;
  spec.top_k = top_k.value_or(spec.top_k);
  if (auto problem = quant::problem_of(spec); !problem.empty()) throw Error(ErrorKind::config, problem);
  return spec;
}

void encode(const quant::CodecSpec& spec, ConstValues values, EncodedRoom out, std::optional<Room> residual,
            float decay, std::uint64_t key) {
  check_size("out", out.size(), quant::encoded_size(spec, values.size()));
  quant::Feedback feedback;
  if (residual) {
    check_size("residual", residual->size(), values.size());
    feedback = {span_of(*residual), decay};
  }
  std::optional<std::size_t> bad;
  {
    const nb::gil_scoped_release release;
    bad = quant::encode(spec, span_of(values), feedback, {key, 0}, std::as_writable_bytes(span_of(out)));
  }
  if (bad)
    throw Error(ErrorKind::divergence,
                "element " + std::to_string(*bad) + " is not finite, or too large for the codec");
}

void decode(const quant::CodecSpec& spec, Encoded bytes, Room out) {
  bool good = false;
  {
    const nb::gil_scoped_release release;
    good = quant::decode(spec, std::as_bytes(span_of(bytes)), span_of(out));
  }
  if (!good)
    throw Error(ErrorKind::data, "these " + std::to_string(bytes.size()) + " bytes are not an encoding of " +
                                     std::to_string(out.size()) + " values with " +
                                     std::string(quant::to_string(spec.kind)));
}

}  // namespace

void add_codecs(nb::module_& parent) {
  auto m = parent.def_submodule(
      "codecs", "Encodes arrays of fp32 and decodes them; docs/numerics.md describes the formats.");
  nb::class_<quant::CodecSpec>(m, "Spec", "All settings of a codec. Immutable.")
      .def_prop_ro("kind", [](const quant::CodecSpec& s) { return std::string(quant::to_string(s.kind)); })
      .def_prop_ro("scale", [](const quant::CodecSpec& s) { return std::string(quant::to_string(s.scale)); })
      .def_prop_ro("stochastic",
                   [](const quant::CodecSpec& s) { return s.rounding == quant::Rounding::stochastic; })
      .def_ro("block", &quant::CodecSpec::block)
      .def_ro("clip", &quant::CodecSpec::clip)
      .def_ro("top_k", &quant::CodecSpec::top_k);
  m.def("make_spec", &make_spec, "kind"_a, "block"_a = nb::none(), "scale"_a = nb::none(),
        "clip"_a = nb::none(), "stochastic"_a = false, "top_k"_a = nb::none());
  m.def("encoded_size", &quant::encoded_size, "spec"_a, "elements"_a, "Size in bytes.");
  m.def("bits_per_element", &quant::bits_per_element, "spec"_a,
        "Bits per element in long arrays, including scales.");
  m.def("encode", &encode, "spec"_a, "values"_a, "out"_a, "residual"_a = nb::none(), "decay"_a = 1.0F,
        "key"_a = 0);
  m.def("decode", &decode, "spec"_a, "encoded"_a, "out"_a);
  nb::list kinds;
  for (const auto name : quant::codec_names) kinds.append(std::string(name));
  m.attr("KINDS") = nb::tuple(kinds);
}

}  // namespace isthmus::python
