#pragma once
// Commands of operators, and the messages to members that follow from them (docs/protocol.md, Steering).

#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync::protocol {

/// Certificate name of an operator, alone or followed by '-' and more. No member may have such a name.
inline constexpr const char* operator_name = "operator";
[[nodiscard]] bool is_operator(const std::string& name);

/// operator -> coordinator: one command, sent instead of a hello. The answer ends the connection.
struct Command {
  std::uint32_t protocol = protocol_version;
  std::string run;   ///< name of the run; empty: any
  std::string by;    ///< name of the operator; human-readable
  std::string verb;  ///< status, set, pause, resume, checkpoint, drain, stop
  /// `set`: KEY=VALUE pairs; `drain`: names of workers or sites.
  std::vector<std::string> arguments;
  std::uint64_t at = 0;  ///< `set`: from the step after this one on; 0: as soon as possible
  std::string member;    ///< `set`, for keys that members set for themselves: the member or site; empty: all
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, run, by, verb, arguments, at, member);
  }
};

/// coordinator -> operator: the result of a command.
struct Answer {
  std::string problem;  ///< why nothing was done; empty: success
  std::string text;     ///< a JSON object
  template <class Archive>
  void serialize(Archive& ar) {
    ar(problem, text);
  }
};

/// coordinator -> member: use these values for keys that you set for yourself.
struct Adjust {
  ConfigItems items;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(items);
  }
};

/// coordinator -> joining member or observer: settings of the rounds that you follow. Sent before the
/// HeartbeatReply that names the first round to which they apply.
struct Steered {
  Settings settings;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(settings);
  }
};

/// coordinator -> member: write a checkpoint and leave soon.
struct Drain {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

}  // namespace isthmus::outer_sync::protocol
