#pragma once
// The outer methods, outer.method: values of the outer settings that a method fixes, and the outer step of a
// round. docs/numerics.md has the formulas: g is the mean outer gradient of a round, theta the global
// parameters, v their momentum, P the number of fragments, tau the delay.

#include <cstdint>
#include <string_view>
#include <vector>

#include "isthmus/quant/passes.h"

namespace isthmus::outer_sync {

struct OuterConfig;

// To add a method that learning rate, momentum and merge can express (momentum and nesterov are keys):
//   1. an enumerator here, at the end, and an entry at the end of `all_methods`
//      (config/outer_method.cpp) with the settings that it fixes. The key, its documentation and
//      `isthmus plan` read that table;
//   2. its formulas in docs/numerics.md, `isthmus config > docs/config.md`, and a test that compares a run
//      with the formulas, such as tests/outer_sync/engine/method_sparse_test.cpp; tests/app/methods_test.cpp.
// If it needs another formula for the outer step, also:
//   3. a field of OuterStep (quant/passes.h), set by `rule_at` below, and its key in config/config.cpp;
//   4. the arithmetic, once for CPUs and GPUs: `outer_direction` in quant/arithmetic-inl.h, and where it is
//      called (`apply` in passes-inl.h, `ApplyTo` in cuda/kernels-inl.h); tests/quant/apply_test.cpp;
//   5. the field in a log's records, for the replay: `RecordRule` in log/records.h. That changes the file
//      format, so raise the version of the header (log/log_header.h);
//   6. `figures_of` (engine/step_figures.h), if gain and correlation are computed differently, and
//      `OuterLoop::settle` (engine/outer_loop.cpp), if the merge keeps another share of a contribution.
// A second vector for each parameter besides the momentum also changes OuterState, snapshots, checkpoints,
// state transfer and `memory_bound`: follow `velocity_` in engine/outer_state.cpp.
enum class Method : std::uint8_t {
  /// arXiv 2501.18512, Algorithm 2: fragments in turn; v <- mu v + g;  theta <- theta - lr (g + mu v).
  streaming_diloco,
  /// arXiv 2311.08105, Algorithm 1: the same with P = 1, tau = 0.
  diloco,
  /// arXiv 1805.09767: tau = 0; theta <- theta - g, the mean of the local parameters.
  local_sgd,
  /// SparseLoCo, arXiv 2508.15706: P = 1, tau = 0, topk, and a decaying residual e instead of momentum; x is
  /// the outer gradient: y = x + beta e;  sent = Q(topk(y));  e <- y - sent;  theta <- theta - mean(sent).
  sparse,
  /// No outer loop: gradients are averaged at every step.
  data_parallel,
};

/// One method.
struct OuterMethod {
  Method method;
  std::string_view name;      ///< value of outer.method
  void (*fix)(OuterConfig&);  ///< overwrites the settings that the method fixes
};
[[nodiscard]] const OuterMethod& outer_method(Method method);

[[nodiscard]] inline std::string_view to_string(Method method) { return outer_method(method).name; }
/// Throws Error(config) for an unknown name.
[[nodiscard]] Method method_of(std::string_view name);
/// All names, in the order shown to users.
[[nodiscard]] std::vector<std::string_view> method_names();

/// The outer step and merge of a round sent at this step. `config` must be resolved.
[[nodiscard]] quant::OuterStep rule_at(const OuterConfig& config, std::uint64_t step);

}  // namespace isthmus::outer_sync
