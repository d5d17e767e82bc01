#pragma once
// The cases of bench_transport.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace isthmus {

/// Parameters of a case, for all its processes.
struct Case {
  std::string name;
  std::string what = "exchange";  ///< exchange, stream, training, gloo
  int members = 2;
  double rate = 1e9;  ///< bits per second, each direction of each pair
  double access = 0;  ///< bits per second of a line that all links of a member share; `rate` is a pair's
                      ///< share of it; 0: none
  double rtt = 0.1;   ///< seconds
  double loss = 0;
  std::uint64_t parameters = 8'375'000;  ///< per fragment
  std::string codec = "fp32";
  std::uint64_t chunk = 65536;  ///< parameters
  int fragments = 1;            ///< a stream has all of them in flight
  int rounds = 12;              ///< exchanges; in a stream, rounds of each fragment
  bool tls = true;
  std::string congestion = "bbr", network_rate = "auto";
  int lanes = 8;
  double heartbeat = 1;  ///< seconds between two heartbeats
  bool traced = false;   ///< reports how long each heartbeat took
  int threads = 0;       ///< threads for training; 0: one per core
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Case, name, what, members, rate, access, rtt, loss, parameters, codec,
                                   chunk, fragments, rounds, tls, congestion, network_rate, lanes, heartbeat,
                                   traced, threads)

[[nodiscard]] std::vector<Case> all_cases();

}  // namespace isthmus
