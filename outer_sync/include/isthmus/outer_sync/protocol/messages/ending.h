#pragma once
// The agreed stop, leaving, and the end of a run.

#include <cstdint>
#include <string>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::protocol {

/// member -> coordinator: end the run. `reason` is human-readable.
struct StopRequest {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: begin no further step, and report the current one.
struct Hold {
  template <class Archive>
  void serialize(Archive&) {}
};

/// member -> coordinator: I stop after this step.
struct Held {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// coordinator -> member: continue to the end of this step and stop there, like all trainers. To a reducer:
/// all trainers are done; finish.
struct StopAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// member -> coordinator: finished. `summary` is a JSON object. A reducer sends no hash, since it has no
/// parameters.
struct Done {
  std::string summary;
  Digest global_hash;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(summary, global_hash);
  }
};

/// coordinator -> member: all are done. `problem` is empty, or says what is wrong with the result of the run.
struct Finished {
  std::string problem;
  Digest global_hash{};  ///< final hash of all trainers
  template <class Archive>
  void serialize(Archive& ar) {
    ar(problem, global_hash);
  }
};

/// member -> coordinator: I cannot continue.
struct Leave {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: the run cannot continue.
struct Abort {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

}  // namespace isthmus::outer_sync::protocol
