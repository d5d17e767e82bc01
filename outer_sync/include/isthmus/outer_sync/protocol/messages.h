#pragma once
// Messages between members and the coordinator (docs/protocol.md). Control messages are serialized by the
// bounded archive; chunk messages are a fixed header and codec bytes.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "isthmus/base/archive.h"
#include "isthmus/base/config.h"
#include "isthmus/base/hash.h"
#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/ledger.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync::protocol {

/// Raise it whenever a message changes its form or meaning.
inline constexpr std::uint32_t protocol_version = 10;
/// The oldest protocol that this build still speaks. Two builds work together if the protocol of each is no
/// older than the other's oldest; others are refused by version and build.
inline constexpr std::uint32_t oldest_protocol = 10;
/// Raise it whenever encoded bytes or agreed arithmetic change their bits.
inline constexpr std::uint32_t numerics_version = 2;

using Round = std::uint64_t;        ///< of one fragment, counted from 1; 0 is the initial state
using MemberIndex = std::uint16_t;  ///< position in the view's member list
using ViewNumber = std::uint64_t;
using SharedBytes = std::shared_ptr<const Bytes>;
/// Identifies a replica across views. A replica that restarts after a crash gets another id.
using ReplicaId = std::uint64_t;

// ---- views ----

/// Role of a process in the run. The order is that of the wire format: append only.
enum class MemberKind : std::uint8_t {
  trainer,   ///< trains, and owns chunks
  reducer,   ///< owns chunks; has no parameters
  observer,  ///< follows the rounds; never in a view
};

struct MemberInfo {
  std::string name;
  std::uint64_t incarnation = 0;  ///< rises with every start of this replica
  std::string address;            ///< HOST:PORT that peers dial; empty: it opens no port, and dials its peers
  std::uint16_t slot = 0;         ///< its share of the training data; belongs to the name for the whole run
  MemberKind kind = MemberKind::trainer;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, incarnation, address, slot, kind);
  }
};
[[nodiscard]] inline bool trains(const MemberInfo& member) { return member.kind == MemberKind::trainer; }
[[nodiscard]] inline bool can_be_dialled(const MemberInfo& member) { return !member.address.empty(); }
/// First 8 bytes of a digest, little-endian: enough to detect that two digests differ.
[[nodiscard]] std::uint64_t prefix_of(const Digest& digest);
/// The prefix of SHA-256(name, a zero byte, incarnation).
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

/// Maximum number of members of a view.
inline constexpr std::size_t max_members = 1024;
/// Highest view number. A member that claimed a higher one would leave no numbers for later views.
inline constexpr ViewNumber highest_view = ViewNumber{1} << 62;

// ---- bulk ----

enum class ChunkKind : std::uint8_t { contribution = 1, result = 2 };

struct ChunkKey {
  Round round = 0;
  ChunkId chunk = 0;
  MemberIndex sender = 0;
  ChunkKind kind = ChunkKind::contribution;
  friend auto operator<=>(const ChunkKey&, const ChunkKey&) = default;
};

/// One contribution to a chunk: the sum of squares of its decoded values, infinity if it does not decode.
struct SquaredNorm {
  ReplicaId replica = 0;
  double value = 0;
  friend bool operator==(const SquaredNorm&, const SquaredNorm&) = default;
};

/// Training sequences behind one replica's contribution.
struct TrainedOn {
  ReplicaId replica = 0;
  SampleRange samples;
  friend bool operator==(const TrainedOn&, const TrainedOn&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, samples);
  }
};
/// Ranges of one replica in one contribution; further ranges are sent with the next one.
inline constexpr std::size_t max_trained_on = 16;
/// Whether rows received from the network are valid for at most `replicas` replicas.
[[nodiscard]] bool are_sound(std::span<const TrainedOn> rows, std::size_t replicas);
/// Removes from `in_all`, the contributors to all chunks so far, the replicas that did not contribute to one
/// more chunk. An empty optional becomes `contributors`.
void keep_common(std::optional<std::vector<ReplicaId>>& in_all, const std::vector<ReplicaId>& contributors);
/// The samples of the replicas that contributed to all chunks of a round: these count for the ledger.
[[nodiscard]] std::vector<SampleRange> samples_of(std::span<const TrainedOn> rows,
                                                  std::span<const ReplicaId> in_all_chunks);

struct ChunkMessage {
  ViewNumber view = 0;
  ChunkKey key;
  SharedBytes bytes;
  std::uint64_t weight = 0;               ///< of a contribution: its tokens
  std::vector<ReplicaId> contributors{};  ///< of a result; empty: all trainers of the view
  /// Result, if outer.reject is on: norms of all contributions that its owner received, in member order.
  std::vector<SquaredNorm> norms{};
  /// With a fragment's first chunk. Contribution: samples since the fragment's last one. Result: samples of
  /// all contributions that its owner received, in member order.
  std::vector<TrainedOn> trained_on{};
};

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

/// A set of a fragment's chunks: one bit each, lowest first.
class ChunkSet {
 public:
  ChunkSet() = default;
  explicit ChunkSet(std::size_t chunks) : bits_((chunks + 7) / 8, 0) {}
  void add(std::size_t i) { bits_.at(i / 8) |= static_cast<std::uint8_t>(1U << (i % 8)); }
  /// False also for a chunk outside the received bits.
  [[nodiscard]] bool has(std::size_t i) const {
    return i / 8 < bits_.size() && ((bits_[i / 8] >> (i % 8)) & 1U) != 0;
  }
  [[nodiscard]] bool fits(std::size_t chunks) const { return bits_.size() == (chunks + 7) / 8; }
  template <class Archive>
  void serialize(Archive& ar) {
    ar(bits_);
  }

 private:
  std::vector<std::uint8_t> bits_;
};

/// Results of one round that a member holds. For a round that is not applied yet they include its contents,
/// as far as these chunks show them, because no ledger has that round.
struct HeldResults {
  FragmentId fragment = 0;
  Round round = 0;
  ChunkSet chunks;
  std::vector<TrainedOn> trained_on{};    ///< from the result of the first chunk; empty without that chunk
  std::vector<ReplicaId> contributors{};  ///< replicas that contributed to all of these chunks
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, chunks, trained_on, contributors);
  }
};

/// A complete checkpoint. Two checkpoints of one step are equal only if they hold the same agreed state: a
/// replica may have written one on rounds that were later repeated.
struct CheckpointId {
  std::uint64_t step = 0;
  std::uint64_t content = 0;  ///< first 8 bytes of the digest of its agreed state
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, content);
  }
};

/// Digest of a fragment's global parameters and momentum after an audited round (protocol/audits.h).
struct Audit {
  FragmentId fragment = 0;
  Round round = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const Audit&, const Audit&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, digest);
  }
};

/// Maximum number of audits in a heartbeat.
inline constexpr std::size_t max_audits = 1024;

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
  /// Checkpoints from which this member could resume. A member that resumes without any copies the state.
  std::vector<CheckpointId> checkpoints;
  ViewNumber sealed = 0;     ///< highest view that this member has sealed
  ViewNumber activated = 0;  ///< highest view that has begun for it; 0: none
  Digest token;              ///< of the run; empty if it was in none
  bool done = false;         ///< it has reached the last step; its Done follows, even if it was sent before
  std::uint64_t uplink = 0;  ///< bytes per second, outgoing; 0: not known (yet)
  /// Just started: it has the run's initial parameters and none of the run's state.
  bool fresh = true;
  std::string site;     ///< where it runs; human-readable, may be empty
  Settings settings{};  ///< of the view `activated`
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, oldest, numerics, run, member, build);
    ar(config, model, tokenizer, resume, checkpoints, sealed, activated, token, done, uplink, fresh, site,
       settings);
  }
};

/// Whether this build and the sender's have a protocol in common.
[[nodiscard]] bool speaks_with(const Hello& hello);

/// coordinator -> member: you cannot take part in this run. `reason` is human-readable.
struct Refused {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: accept nothing of older views; start from the checkpoint of `resume_step` (0: from
/// the beginning).
struct Seal {
  ViewNumber view = 0;
  std::uint64_t resume_step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, resume_step);
  }
};

/// member -> coordinator: from now on I accept nothing of views before `view`; this is my state. A reducer
/// that has been in no view sends none, since it does not know the layout.
struct Sealed {
  ViewNumber view = 0;
  ViewNumber activated = 0;   ///< highest view that has begun here; 0: none yet
  std::vector<Range> layout;  ///< fragments of the flat buffer
  std::uint64_t chunk_elements = 0;
  std::vector<FragmentState> fragments;
  /// By fragment: the remembered rounds before the last applied one, oldest first.
  std::vector<std::vector<FragmentState>> history;
  std::vector<HeldResults> held;
  std::uint64_t step = 0;  ///< agreed step
  Digest parameters;       ///< of the global parameters; only before the first view
  Ledger ledger{};         ///< up to `fragments`
  SampleSet taken{};       ///< training samples that it was given and that are not done
  SampleSet reserved{};    ///< samples of its own track that it may be given until the view begins
  Settings settings{};     ///< of the view that has begun here; before the first view, of its checkpoint
  /// The agreed step does not pass this one until the view begins: at this step the result of a round is due
  /// that will be sent after this message. 0 for a reducer, which has no steps.
  std::uint64_t reach = 0;
  /// Members of the view that has begun here. A recovering coordinator learns from it which members are
  /// missing.
  std::vector<MemberInfo> members{};
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, activated, layout, chunk_elements, fragments, history, held, step, parameters, ledger, taken,
       reserved, settings, reach, members);
  }
};

/// Decided results of one round, and the view's members that hold them.
struct FixedRound {
  FragmentId fragment = 0;
  Round round = 0;
  std::vector<std::pair<MemberIndex, ChunkSet>> holders;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, holders);
  }
};

/// coordinator -> member: the view begins.
struct NewView {
  View view;
  Digest token;               ///< members present it to each other on bulk connections
  std::vector<Range> layout;  ///< of the run, for members without parameters
  std::uint64_t chunk_elements = 0;
  ViewNumber reference = 0;  ///< the view that this one continues: its members' chains are the run's history
  std::uint64_t step = 0;    ///< agreed step of the foremost of these members
  /// By fragment: the newest round that any of these members has applied, and the rounds before it, oldest
  /// first.
  std::vector<std::vector<FragmentState>> chains;
  std::vector<FixedRound> fixed;
  /// By member, then fragment: the last round applied when the member sealed.
  std::vector<std::vector<Round>> applied;
  Ledger ledger{};                    ///< up to the newest rounds of `chains`
  SampleSet taken{};                  ///< by any member, or decided and in no ledger yet
  std::vector<SampleSet> reserved{};  ///< by member
  std::uint64_t tracks = 0;           ///< of the training data: the number of planned replicas
  Settings settings{};                ///< in force from now on; replace all earlier settings
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, token, layout, chunk_elements, reference, step, chains, fixed, applied, ledger, taken, reserved,
       tracks, settings);
  }
};

/// One contributor's share of a round, over the chunks of one owner that include it (health.h).
struct ContributorHealth {
  ReplicaId replica = 0;
  std::uint32_t chunks = 0;
  double squares = 0;  ///< of its contributions; infinite if one does not decode
  double dot = 0;      ///< with the mean
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, chunks, squares, dot);
  }
};
struct RoundHealth {
  FragmentId fragment = 0;
  Round round = 0;
  std::uint32_t chunks = 0;  ///< of the fragment, all that the sender owns
  double mean_squares = 0;
  std::vector<ContributorHealth> contributors;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, chunks, mean_squares, contributors);
  }
};

/// A member's path to another member of its view, over all its lanes (paths.h).
struct PathReport {
  ReplicaId peer = 0;
  std::uint32_t round_trip = 0,
                shortest = 0;          ///< microseconds by TCP: present mean; shortest
  std::uint64_t bytes_per_second = 0;  ///< recently delivered while it was full; 0: not known
  template <class Archive>
  void serialize(Archive& ar) {
    ar(peer, round_trip, shortest, bytes_per_second);
  }
};

/// Largest magnitude of a gain (step_figures.h). A small gradient after large ones would make it arbitrarily
/// large.
inline constexpr double max_abs_gain = 1e6;

/// member -> coordinator: every `network.heartbeat` from the hello on, so that silence is noticed while
/// members join and load, too. Large because all that changes in training travels in this one message.
struct Heartbeat {
  std::uint64_t number = 0;           ///< returned in the reply
  ViewNumber view = 0;                ///< highest view that has begun here
  std::uint64_t step = 0;             ///< agreed step
  std::uint16_t contributed = 0;      ///< trainers in the round applied last
  std::vector<ReplicaId> lost;        ///< members of the view that it cannot reach, not even through a relay
  double loss = 0;                    ///< nats per token, last step
  double tokens_per_second = 0;       ///< since the last heartbeat
  double utilization = 0;             ///< 0 to 1, since the start
  std::uint64_t bytes_sent = 0;       ///< since the start, headers and control included
  std::uint64_t uplink = 0;           ///< bytes per second: from the hello, or measured since; 0: not known
  double inner_steps_per_second = 0;  ///< without waits; 0: not known yet
  /// Last applied round and first 8 bytes of its chain hash; empty before Sealed.
  std::vector<std::pair<Round, std::uint64_t>> fragments;
  std::vector<RoundHealth> health{};        ///< at most one round of each fragment
  std::vector<PathReport> paths{};          ///< to the connected members of the view, each once
  std::uint64_t relays = 0;                 ///< Relays::number of the list in force here
  std::vector<ReplicaId> relayed{};         ///< members that it reaches only through a relay
  std::vector<CheckpointId> checkpoints{};  ///< the newest complete ones here
  std::uint64_t disk_free = 0;              ///< bytes, in its run folder; 0: not known
  std::vector<Audit> audits{};              ///< since the last heartbeat
  /// Newest outer steps (step_figures.h), mean over the fragments; a gain of 0: not known.
  double outer_gain = 0, outer_correlation = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, view, step, contributed, lost, loss, tokens_per_second, utilization, bytes_sent, uplink,
       inner_steps_per_second, fragments, health, paths, relays, relayed, checkpoints, disk_free, audits,
       outer_gain, outer_correlation);
  }
};

/// coordinator -> member: heartbeat received. If `view` is the member's view, this grants a lease, counted
/// from when the heartbeat was sent: until it ends, no other view begins without this member. The coordinator
/// sets its length, because the coordinator waits for its end.
struct HeartbeatReply {
  ViewNumber view = 0;  ///< 0: no view is in force
  std::uint64_t number = 0;
  std::vector<Round> lowest;          ///< by fragment: applied by all members of the view
  std::vector<Round> newest;          ///< by fragment: applied by any of them
  std::uint64_t lease = 0;            ///< microseconds; 0: no lease
  double inner_steps_per_second = 0;  ///< the median of the view's members; 0: not known
  std::uint64_t checkpoint = 0;       ///< newest step checkpointed by all its trainers; 0: none
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, number, lowest, newest, lease, inner_steps_per_second, checkpoint);
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

/// member -> coordinator -> all members: a line that all need before the first step, such as an address.
struct Announce {
  std::string text;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(text);
  }
};

/// member -> coordinator: end the run. `reason` is human-readable.
struct StopRequest {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// member -> coordinator: order a checkpoint of all trainers, because I have to leave or was past the step of
/// the last one. Ignored while one is pending.
struct CheckpointRequest {
  std::string reason;  ///< human-readable
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

/// coordinator -> joining member: copy the state from these donors, then send Ready. Observers never send
/// Ready; they get the donors again whenever a view begins.
struct Admitted {
  Digest token;
  std::vector<MemberInfo> donors;
  Settings settings{};  ///< under which the run's rounds are made
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, donors, settings);
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

/// coordinator -> member: rounds do not commit at present.
struct Suspended {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// Two members that cannot connect to each other, and the member that forwards their messages.
struct Relay {
  ReplicaId a = 0, b = 0, by = 0;
  friend bool operator==(const Relay&, const Relay&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(a, b, by);
  }
};

/// coordinator -> member: all relays. Replaces the earlier list.
struct Relays {
  std::uint64_t number = 0;  ///< rises; heartbeats report the number in force
  std::vector<Relay> relays;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, relays);
  }
};

// ---- operators ----

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

/// coordinator -> trainer: write a checkpoint after this agreed step. A trainer past it writes none. Changes
/// no agreed state.
struct CheckpointAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
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

// ---- records of members: log and metrics ----

/// Destination of a record. The order is that of the wire format: append only.
enum class RecordKind : std::uint8_t {
  log,      ///< a line of the member's log
  metrics,  ///< a JSON object
};
struct Record {
  RecordKind kind = RecordKind::log;
  std::string line;  ///< without a line break
  template <class Archive>
  void serialize(Archive& ar) {
    ar(kind, line);
  }
};
/// The sender cuts longer log lines and drops longer metrics; receivers refuse them.
inline constexpr std::size_t longest_record = 16 * 1024;
/// Maximum number of records of a member.
inline constexpr std::uint64_t max_records = std::uint64_t{1} << 48;
/// In RecordsTaken: send no records, because the coordinator gets them in another way or does not need them.
/// No record has this number.
inline constexpr std::uint64_t no_records_wanted = max_records + 1;

/// member -> coordinator: records in the order in which they were written, counted from 0 at the member's
/// start. Records that are not acknowledged are sent again on the next connection.
struct Records {
  std::uint64_t first = 0;  ///< number of the first record; earlier ones that were never sent are lost
  std::vector<Record> records;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(first, records);
  }
};

/// coordinator -> member: all records before this number are stored.
struct RecordsTaken {
  std::uint64_t next = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(next);
  }
};

/// The order is that of the wire tags: append only.
using ControlMessage =
    std::variant<Hello, Refused, Seal, Sealed, NewView, Heartbeat, HeartbeatReply, EvalReport, Announce,
                 StopRequest, Hold, Held, StopAt, Done, Finished, Leave, Abort, Admitted, Ready, Evicted,
                 Suspended, Relays, Command, Answer, Adjust, Steered, Drain, Records, RecordsTaken,
                 CheckpointRequest, CheckpointAt>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
/// Throws Error(network) for an unknown tag or a malformed body.
[[nodiscard]] ControlMessage decode_control(std::span<const std::byte> bytes);

}  // namespace isthmus::outer_sync::protocol
