#pragma once
// The processes of bench_transport inside the lab. Each prints its result as one line of JSON.

#include <string>

#include "transport_case.h"

namespace isthmus {

/// Runs the coordinator until all members have left; prints "ready" once it listens.
void coordinate(const Case& c, const std::string& host, const std::string& certs);
/// Joins as a member, runs the case's exchanges and leaves.
void exchange(const Case& c, const std::string& name, const std::string& host, const std::string& coordinator,
              const std::string& certs);
#ifdef ISTHMUS_BENCH_TRAINER
/// The mean of the same number of fp32 values, by Gloo's own choice of algorithm.
void reduce_with_gloo(const Case& c, int rank, const std::string& host, const std::string& store);
#endif

}  // namespace isthmus
