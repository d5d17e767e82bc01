#pragma once
// From the first message of a connection until the member is in the run: hello, refusal, copying the state.

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/config.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync::protocol {

using ConfigItems = config::SharedItems;

/// member -> coordinator: first message on every connection. Its first fields never change, so that a newer
/// protocol can be reported.
struct Hello {
  std::uint32_t protocol = protocol_version;
  std::uint32_t oldest = oldest_protocol;
  std::uint32_t numerics = numerics_version;
  std::string run;
  MemberInfo member;
  std::string build;
  ConfigItems config;
  Digest model;      ///< names, shapes and fragments of all tensors; trainers only, like the tokenizer
  Digest tokenizer;  ///< vocabulary
  bool resume = false;
  /// Checkpoints from which this member could resume, the newest `max_checkpoints`. A member that resumes
  /// without the one taken copies the state.
  std::vector<CheckpointId> checkpoints;
  ViewNumber sealed = 0;     ///< highest view that this member has sealed
  ViewNumber activated = 0;  ///< highest view that has begun for it; 0: none
  Digest token;              ///< of the run; empty if it was in none
  bool done = false;         ///< it has reached the last step; its Done follows, even if it was sent before
  std::uint64_t uplink = 0;  ///< bytes per second, outgoing; 0: not known (yet)
  /// Just started: it has the run's initial parameters and none of the run's state.
  bool fresh = true;
  std::string site;        ///< where it runs; human-readable, may be empty
  Settings settings{};     ///< of the view `activated`
  std::string calendar{};  ///< of its link (core/calendar.h); empty: none
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, oldest, numerics, run, member, build);
    ar(config, model, tokenizer, resume, checkpoints, sealed, activated, token, done, uplink, fresh, site,
       settings, calendar);
  }
};

/// Whether this build and the sender's have a protocol in common.
[[nodiscard]] bool speaks_with(const Hello& hello);

/// member -> coordinator: the calendar of my link is another one now.
struct CalendarChanged {
  std::string calendar;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(calendar);
  }
};

/// coordinator -> member: you cannot take part in this run. `reason` is human-readable.
struct Refused {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// member -> coordinator -> all members: a line that all need before the first step, such as an address.
struct Announce {
  std::string text;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(text);
  }
};

/// coordinator -> joining member: copy the state from these donors, then send Ready. Observers never send
/// Ready; they get the donors again whenever a view begins.
struct Admitted {
  Digest token;
  std::vector<MemberInfo> donors;
  Settings settings{};                ///< under which the run's rounds are made
  std::vector<MemberInfo> bridges{};  ///< members through which donors without a port are reached
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, donors, settings, bridges);
  }
};

/// member -> coordinator: in every fragment I am at most one round behind the others.
struct Ready {
  template <class Archive>
  void serialize(Archive&) {}
};

/// coordinator -> member: your rounds are not the run's, or too far behind: copy the state from others.
/// member -> coordinator: I have found that out myself.
struct Evicted {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

}  // namespace isthmus::outer_sync::protocol
