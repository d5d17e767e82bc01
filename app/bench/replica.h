#pragma once
// A replica of `bench outer`.

#include "bench/bench.h"
#include "isthmus/base/config.h"

namespace isthmus::app {

/// Bytes that one replica needs, as long as all replicas keep up.
[[nodiscard]] std::uint64_t bench_memory(const OuterBenchRequest& request);
/// The settings that all processes of a benchmark must share.
[[nodiscard]] config::SharedItems bench_items(OuterBenchRequest& request);

[[nodiscard]] int run_bench_replica(OuterBenchRequest request);

}  // namespace isthmus::app
