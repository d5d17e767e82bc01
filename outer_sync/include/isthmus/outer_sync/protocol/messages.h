#pragma once
// What members and the coordinator say to each other (docs/protocol.md). Control messages go through the
// bounded archive; chunk messages are a fixed header and codec bytes.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/config.h"
#include "isthmus/base/hash.h"
#include "isthmus/outer_sync/layout.h"

namespace isthmus::outer_sync::protocol {

/// Grows whenever a message changes its form or meaning; members with another one are refused by name.
inline constexpr std::uint32_t protocol_version = 3;
/// Grows whenever encoded bytes or agreed arithmetic change their bits.
inline constexpr std::uint32_t numerics_version = 2;

using Round = std::uint64_t;        ///< of one fragment, from 1; 0 is the initial state
using MemberIndex = std::uint16_t;  ///< position in the view's member list
using ViewNumber = std::uint64_t;
using ReplicaId = std::uint64_t;  ///< of one incarnation of a replica; stable over views
using SharedBytes = std::shared_ptr<const Bytes>;

// ---- views ----

struct MemberInfo {
  std::string name;
  std::uint64_t incarnation = 0;  ///< grows at every start of this replica
  std::string address;            ///< HOST:PORT that peers dial
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, incarnation, address);
  }
};

/// First eight bytes, little-endian, of SHA-256(name, a zero byte, incarnation). A replica that has started
/// again has another one.
[[nodiscard]] ReplicaId id_of(const MemberInfo& member);

struct View {
  ViewNumber number = 0;
  std::vector<MemberInfo> members;  ///< sorted by name: sums are taken in this order
  std::vector<MemberIndex> owners;  ///< of each chunk
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, members, owners);
  }
};

/// Gives each chunk of a fragment to the member with the fewest elements of that fragment so far, then of
/// all.
[[nodiscard]] std::vector<MemberIndex> balanced_owners(const FragmentLayout& layout, std::size_t members);

// ---- bulk ----

enum class ChunkKind : std::uint8_t { contribution = 1, result = 2 };

struct ChunkKey {
  Round round = 0;
  ChunkId chunk = 0;
  MemberIndex sender = 0;
  ChunkKind kind = ChunkKind::contribution;
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

struct ChunkMessage {
  ViewNumber view = 0;
  ChunkKey key;
  SharedBytes bytes;
  std::uint64_t weight = 0;               ///< of a contribution: tokens behind it
  std::vector<ReplicaId> contributors{};  ///< in a result; empty: all members of the view
};

/// A view has no more members than this.
inline constexpr std::size_t most_members = 1024;

// ---- control ----

using ConfigItems = config::SharedItems;

struct FragmentState {
  Round round = 0;  ///< last applied
  Digest chain;     ///< chain hash after that round
  friend bool operator==(const FragmentState&, const FragmentState&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(round, chain);
  }
};

/// member -> coordinator, first message.
struct Hello {
  std::uint32_t protocol = protocol_version;
  std::uint32_t numerics = numerics_version;
  std::string run;
  MemberInfo member;
  std::string build;
  ConfigItems config;
  Digest model;      ///< names, shapes and fragments of all tensors
  Digest tokenizer;  ///< vocabulary
  bool resume = false;
  std::vector<std::uint64_t> checkpoints;  ///< steps this member could resume from
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, numerics, run, member, build, config, model, tokenizer, resume, checkpoints);
  }
};

/// coordinator -> member: not with this run; `reason` is for people.
struct Refused {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: forget older views; start from the checkpoint of `resume_step` (0: from the
/// beginning).
struct Seal {
  ViewNumber view = 0;
  std::uint64_t resume_step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, resume_step);
  }
};

/// member -> coordinator: where this member stands.
struct Sealed {
  ViewNumber view = 0;
  std::vector<Range> layout;  ///< fragments of the flat buffer
  std::uint64_t chunk_elements = 0;
  std::vector<FragmentState> fragments;
  Digest parameters;  ///< of the global parameters
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, layout, chunk_elements, fragments, parameters);
  }
};

/// coordinator -> member: the view begins. `token` is what members of this run show each other on bulk
/// connections.
struct NewView {
  View view;
  Digest token;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, token);
  }
};

/// member -> coordinator, every `network.heartbeat` from its hello on, so that silence is noticed while
/// members join and load too.
struct Heartbeat {
  std::uint64_t step = 0;
  double loss = 0;               ///< nats per token, last step
  double tokens_per_second = 0;  ///< since the last heartbeat
  double utilization = 0;        ///< 0..1 since the start
  std::uint64_t bytes_sent = 0;  ///< since the start, headers and control included
  /// Last applied round, first 8 bytes of its chain hash; empty before Sealed.
  std::vector<std::pair<Round, std::uint64_t>> fragments;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, loss, tokens_per_second, utilization, bytes_sent, fragments);
  }
};

/// coordinator -> member: heard you.
struct HeartbeatReply {
  ViewNumber view = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view);
  }
};

/// member -> coordinator: this member's share of an evaluation of the global parameters.
struct EvalReport {
  std::uint64_t step = 0;
  double sum_nats = 0;
  std::uint64_t tokens = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, sum_nats, tokens);
  }
};

/// member -> coordinator -> every member: a line that all need before the first step (an address, say).
struct Announce {
  std::string text;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(text);
  }
};

/// member -> coordinator: please end the run; `reason` is for people.
struct StopRequest {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: begin no further step, and say which one you are in.
struct Hold {
  template <class Archive>
  void serialize(Archive&) {}
};

/// member -> coordinator: I hold when this step is done.
struct Held {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// coordinator -> member: go on to the end of this step and stop there; all members stop at the same one.
struct StopAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// member -> coordinator: finished; `summary` is a JSON object.
struct Done {
  std::string summary;
  Digest global_hash;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(summary, global_hash);
  }
};

/// coordinator -> member: all are done; `problem` is empty, or what is wrong with the run's result.
struct Finished {
  std::string problem;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(problem);
  }
};

/// member -> coordinator: I cannot go on.
struct Leave {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: the run cannot go on.
struct Abort {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// The order is the wire's tag: append only.
using ControlMessage =
    std::variant<Hello, Refused, Seal, Sealed, NewView, Heartbeat, HeartbeatReply, EvalReport, Announce,
                 StopRequest, Hold, Held, StopAt, Done, Finished, Leave, Abort>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
/// Throws Error(network) for an unknown tag or a malformed body.
[[nodiscard]] ControlMessage decode_control(std::span<const std::byte> bytes);

}  // namespace isthmus::outer_sync::protocol
