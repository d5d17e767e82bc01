#pragma once
// The two ends of bench_tcp inside the lab.

#include <array>
#include <cstdint>

namespace isthmus {

/// Parameters of a measurement; sent to the other end over the control connection as raw bytes.
struct Case {
  int flows = 1;
  int both = 0;
  std::array<char, 16> cc{};
  double pace = 0;  // part of the payload rate, for all flows together
  int sndbuf = 0, rcvbuf = 0, lowat = 0;
  std::uint64_t bytes = 33'500'000;  // for all flows together, in each direction
  double payload_rate = 0;           // bit/s
  int rounds = 8;
  double gap = 0;  // seconds without traffic before each transfer except the first
};

/// The server: transfers for one client, which signals the start of each. Prints "ready" once it listens.
void serve();
/// The client: prints the seconds of each transfer and finally the number of retransmitted segments.
void drive(const char* address, const Case& c);

}  // namespace isthmus
