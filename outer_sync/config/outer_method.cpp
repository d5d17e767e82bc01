#include "isthmus/outer_sync/config/outer_method.h"

#include <algorithm>
#include <array>
#include <string>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/config.h"

namespace isthmus::outer_sync {
namespace {

void fix_nothing(OuterConfig& /*config*/) {}

/// Waits for each result: with the alpha merge nothing is left to average.
void fix_waiting(OuterConfig& config) {
  config.sync_delay = 0;
  if (!config.carries()) config.merge_alpha = 0;
}

void fix_diloco(OuterConfig& config) {
  fix_waiting(config);
  config.num_fragments = 1;
}

void fix_local_sgd(OuterConfig& config) {
  fix_waiting(config);
  config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
}

/// The settings of the paper. There replicas exchange their sparse values; here the chunk owner encodes the
/// mean once more in the same format, with its own residual under the same rule.
void fix_sparse(OuterConfig& config) {
  config.sync_delay = 0;
  config.merge = "alpha";
  config.merge_alpha = 0;
  config.num_fragments = 1;
  config.codec = "topk";
  config.error_feedback = true;
  config.feedback_decay = 0.95;
  config.optimizer = {.lr = 1, .momentum = 0, .nesterov = false};
}

/// The replicas' parameters never differ, so there is nothing to exchange.
void fix_data_parallel(OuterConfig& config) { config.gossip_every = 0; }

/// In the order of the enumerators.
constexpr std::array all_methods = {
    OuterMethod{Method::streaming_diloco, "streaming_diloco", fix_nothing},
    OuterMethod{Method::diloco, "diloco", fix_diloco},
    OuterMethod{Method::local_sgd, "local_sgd", fix_local_sgd},
    OuterMethod{Method::sparse, "sparse", fix_sparse},
    OuterMethod{Method::data_parallel, "data_parallel", fix_data_parallel},
};
constexpr bool in_order() {
  for (std::size_t i = 0; i < all_methods.size(); ++i) {
    if (static_cast<std::size_t>(all_methods[i].method) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

const OuterMethod& outer_method(Method method) { return all_methods.at(static_cast<std::size_t>(method)); }

Method method_of(std::string_view name) {
  const auto* const found = std::ranges::find(all_methods, name, &OuterMethod::name);
  if (found == all_methods.end())
    throw Error(ErrorKind::config,
                "outer.method is " + std::string(name) + "; expected the name of a method");
  return found->method;
}

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> names;
  names.reserve(all_methods.size());
  for (const auto& method : all_methods) names.push_back(method.name);
  return names;
}

quant::OuterStep rule_at(const OuterConfig& config, std::uint64_t step) {
  const bool averages = config.averages_at(step);
  return {.lr = averages ? 1 : static_cast<float>(config.optimizer.lr),
          .momentum = averages ? 0 : static_cast<float>(config.outer_momentum()),
          .nesterov = config.optimizer.nesterov,
          .merge = config.carries() ? quant::Merge::carry : quant::Merge::mix,
          .alpha = static_cast<float>(config.merge_alpha)};
}

}  // namespace isthmus::outer_sync
