#pragma once
// Values that a method forces in the outer config, overriding the config file. OuterConfig::resolve calls
// these after reading.

namespace isthmus::outer_sync {
struct OuterConfig;
}

namespace isthmus::outer_sync::methods {

/// Eager updates (methods/eager.h): whole-round overlap; local parameters are set, not merged.
void make_eager(OuterConfig& config);

/// CO2 (methods/co2.h): whole-round overlap, no merge (alpha = 0), momentum without the Nesterov form.
void make_co2(OuterConfig& config);

/// SparseLoCo (arXiv 2508.15706): only the largest elements of each outer gradient are sent, in two bits; the
/// rest is kept and decays. With x_t the outer gradient of the whole model:
///   y_t = x_t + beta e_t;   sent_t = Q(topk(y_t));   e_t+1 = y_t - sent_t;   theta <- theta - mean(sent_t)
/// The decaying residual replaces outer momentum. In the paper replicas exchange their sparse values; here
/// the chunk owner encodes the mean once more in the same format, with its own residual under the same rule.
/// The paper's settings: one fragment, no delay, topk (outer.codec_top_k of every 4096, 64 by default), beta
/// = .95, outer learning rate 1, no momentum.
void make_sparse(OuterConfig& config);

}  // namespace isthmus::outer_sync::methods
