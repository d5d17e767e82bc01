#pragma once
// A replica of `bench outer`.

#include "bench/bench.h"
#include "isthmus/base/config.h"
#include "isthmus/outer_sync/core/layout.h"

namespace isthmus::app {

/// Throws Error(config) where there are fewer than 16 parameters for a fragment.
void check_fragments(const OuterBenchRequest& request);
/// Fragments of equal size, but for 16 elements, at multiples of which each begins.
[[nodiscard]] outer_sync::FragmentLayout bench_layout(const OuterBenchRequest& request);
/// Bytes that one replica of a run of so many will take, while everybody keeps up.
[[nodiscard]] std::uint64_t bench_memory(const OuterBenchRequest& request);
/// What all processes of a benchmark must share.
[[nodiscard]] config::SharedItems bench_items(OuterBenchRequest& request);

[[nodiscard]] int run_bench_replica(OuterBenchRequest request);

}  // namespace isthmus::app
