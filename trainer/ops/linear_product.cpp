#include "ops/linear_product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

namespace isthmus::trainer {

using at::Tensor;

namespace {

using Linear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view,
                      c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);

/// libtorch's own operator for layers by oneDNN, for all types. Nullopt on Intel processors, and if libtorch
/// has no oneDNN.
std::optional<c10::TypedOperatorHandle<Linear>> find_onednn() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return std::nullopt;
#endif
  const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!schema) return std::nullopt;
  return schema->typed<Linear>();
}

}  // namespace

Tensor linear_product(const Tensor& x_NI, const Tensor& weight_OI, const Tensor& bias_O) {
  static const auto onednn = find_onednn();
  const at::AutoDispatchBelowAutograd no_gradient;
  const auto bias = bias_O.defined() ? std::optional(bias_O) : std::nullopt;
  if (!onednn || !x_NI.is_cpu() || x_NI.scalar_type() != at::kFloat) return at::linear(x_NI, weight_OI, bias);
  return onednn->call(x_NI, weight_OI, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace isthmus::trainer
