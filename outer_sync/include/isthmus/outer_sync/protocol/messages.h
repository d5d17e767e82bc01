#pragma once
// All messages between members and the coordinator (docs/protocol.md), as one variant, and its bytes: the
// bounded archive serializes control messages. `messages/` has a header for each subject.

#include <cstddef>
#include <span>
#include <variant>

#include "isthmus/base/archive.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/commands.h"
#include "isthmus/outer_sync/protocol/messages/ending.h"
#include "isthmus/outer_sync/protocol/messages/heartbeats.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/paths.h"
#include "isthmus/outer_sync/protocol/messages/reports.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/messages/versions.h"
#include "isthmus/outer_sync/protocol/messages/views.h"

namespace isthmus::outer_sync::protocol {

/// The order is that of the wire tags: append only.
using ControlMessage =
    std::variant<Hello, Refused, Seal, Sealed, NewView, Heartbeat, HeartbeatReply, EvalReport, Announce,
                 StopRequest, Hold, Held, StopAt, Done, Finished, Leave, Abort, Admitted, Ready, Evicted,
                 Suspended, Relays, Command, Answer, Adjust, Steered, Drain, Records, RecordsTaken,
                 CheckpointRequest, CheckpointAt, CalendarChanged>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
/// Throws Error(network) for an unknown tag or a malformed body.
[[nodiscard]] ControlMessage decode_control(std::span<const std::byte> bytes);

}  // namespace isthmus::outer_sync::protocol
