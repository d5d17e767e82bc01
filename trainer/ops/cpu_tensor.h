#pragma once
// Tensors in the form that the loops of cpu_kernels.h and cuda/decoder_kernels.h take. Dense, of fp32 or
// bf16.

#include <ATen/core/Tensor.h>

#include "kernels/simd.h"

namespace isthmus::trainer {

/// f(T{}) with the storage type of x: float or Bf16.
template <class F>
auto dispatch(const at::Tensor& x, const F& f) {
  if (x.scalar_type() == at::kBFloat16) return f(Bf16{});
  TORCH_CHECK(x.scalar_type() == at::kFloat, "the loops support fp32 and bf16");
  return f(float{});
}

/// Null for an undefined tensor.
template <class T>
T* data(const at::Tensor& x) {
  return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
}
inline float* floats(const at::Tensor& x) { return data<float>(x); }

}  // namespace isthmus::trainer
