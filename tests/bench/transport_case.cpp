#include "transport_case.h"

#include <fmt/format.h>

namespace isthmus {
namespace {

void stream(Case& c, double rate, double rtt) {
  c.what = "stream";
  c.rate = rate;
  c.rtt = rtt;
  c.parameters = static_cast<std::uint64_t>(rate / 1e9 * 8.375e6);  // .28 s of the link in each direction
  c.chunk = 16384;  // 64 KiB in fp32; a chunk of the default size has 32 KiB in 4 bits
  c.fragments = 4;
  c.rounds = 30;
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, auto change) {
    Case c{.name = name};
    change(c);
    cases.push_back(c);
  };
  add("exchange", [](Case&) {});
  add("exchange_plain", [](Case& c) { c.tls = false; });
  add("exchange_gloo", [](Case& c) { c.what = "gloo"; });
  // Four members share a link of 200 Mbit/s each: each pair gets a third of it.
  const auto four = [](Case& c) {
    c.members = 4;
    c.rate = 200e6 / 3;
    c.parameters = 100'000'000;
    c.rounds = 4;
  };
  add("four", [&](Case& c) {
    four(c);
    c.codec = "4bit";
  });
  add("four_gloo", [&](Case& c) {
    four(c);
    c.what = "gloo";
    c.rounds = 2;
  });
  // Four members stream over access lines of 100 Mbit/s.
  add("stream_shared", [](Case& c) {
    stream(c, 100e6, 0.02);
    c.members = 4;
    c.access = 100e6;
    c.rate = c.access / 3;
  });
  add("training", [](Case& c) {
    stream(c, 200e6, 0.02);
    c.what = "training";
    c.rounds = 100;
  });
  add("training_one", [](Case& c) {
    stream(c, 200e6, 0.02);
    c.what = "training";
    c.rounds = 100;
    c.threads = 1;
  });
  add("heartbeats", [](Case& c) {
    stream(c, 10e6, 0.1);
    c.rounds = 530;
    c.heartbeat = 0.25;
    c.traced = true;
  });
  for (const double rate : {100e6, 1e9}) {
    for (const int rtt : {0, 20, 100, 200}) {
      for (const double loss : {0.0, 1e-4}) {
        const auto name = fmt::format("stream_{:.0f}M_{}ms{}", rate / 1e6, rtt, loss > 0 ? "_lossy" : "");
        add(name, [&](Case& c) {
          stream(c, rate, rtt / 1e3);
          c.loss = loss;
        });
      }
    }
  }
  return cases;
}

}  // namespace isthmus
