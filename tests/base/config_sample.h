#pragma once
// A config with every type of key, for the tests of the archive.

#include <string>
#include <string_view>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/base/error.h"

namespace isthmus::config {

struct SampleOptimizer {
  double lr = 0.7;
  bool nesterov = true;
  std::string method = "sgd";
  friend bool operator==(const SampleOptimizer&, const SampleOptimizer&) = default;
  void serialize(Archive& ar) {
    ar({"lr", &lr, Scope::live, "step size", 0, 10});
    ar({"nesterov", &nesterov, Scope::agreed, "look ahead"});
    ar({"method", &method, Scope::agreed, "rule", -unbounded, unbounded, {"sgd", "adam"}});
  }
};

struct SampleOuter {
  std::int64_t sync_every = 30;
  std::int64_t offset = 0;
  Duration deadline{0.4};
  std::vector<std::int64_t> ranks = {0, 1};
  SampleOptimizer optimizer;
  friend bool operator==(const SampleOuter&, const SampleOuter&) = default;
  void serialize(Archive& ar) {
    ar({"sync_every", &sync_every, Scope::agreed, "inner steps between two syncs", 1});
    ar({"offset", &offset, Scope::agreed, "first step"});
    ar({"deadline", &deadline, Scope::per_site, "how long a peer may take", 0.001, 3600});
    ar({"ranks", &ranks, Scope::agreed, "who | takes part", 0, 7});
    ar.section("optimizer", optimizer);
  }
};

struct Sample {
  std::string name = "first run";
  std::string listen = "127.0.0.1:7000";
  SampleOuter outer;
  friend bool operator==(const Sample&, const Sample&) = default;
  void serialize(Archive& ar) {
    ar({"name", &name, Scope::agreed, "what the run is called"});
    ar({"listen", &listen, Scope::per_site, "own address"});
    ar.section("outer", outer);
  }
};

inline Sample read_sample(std::string_view yaml) { return read<Sample>(Source::from_text(yaml, "a.yaml")); }

/// The config error that `work` throws; empty if it throws none.
template <class Work>
std::string complaint(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.kind() == ErrorKind::config ? e.what() : std::string("not a config error: ") + e.what();
  }
  return "";
}

}  // namespace isthmus::config
