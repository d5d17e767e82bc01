#pragma once
// A replica of `bench outer`.

#include "bench/bench.h"
#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::app {

/// Throws Error(config) if a fragment has fewer than 16 parameters.
void check_fragments(const OuterBenchRequest& request);
/// Fragments of equal size to within 16 elements; each begins at a multiple of 16.
[[nodiscard]] outer_sync::FragmentLayout bench_layout(const OuterBenchRequest& request);
/// Bytes that one replica needs, as long as all replicas keep up.
[[nodiscard]] std::uint64_t bench_memory(const OuterBenchRequest& request);
/// The settings that all processes of a benchmark must share.
[[nodiscard]] config::SharedItems bench_items(OuterBenchRequest& request);

[[nodiscard]] int run_bench_replica(OuterBenchRequest request);

}  // namespace isthmus::app
