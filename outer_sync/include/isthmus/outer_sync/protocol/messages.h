#pragma once
// What members and the coordinator say to each other (docs/protocol.md). Control messages go through the
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

/// Grows whenever a message changes its form or meaning.
inline constexpr std::uint32_t protocol_version = 10;
/// The oldest one that this build still speaks. Two builds work together where each one's newest is no older
/// than the other's oldest; all others are refused by name. Builds that differ in no more are noted.
inline constexpr std::uint32_t oldest_protocol = 10;
/// Grows whenever encoded bytes or agreed arithmetic change their bits.
inline constexpr std::uint32_t numerics_version = 2;

using Round = std::uint64_t;        ///< of one fragment, from 1; 0 is the initial state
using MemberIndex = std::uint16_t;  ///< position in the view's member list
using ViewNumber = std::uint64_t;
using SharedBytes = std::shared_ptr<const Bytes>;
/// Who somebody is over all views: a replica that comes back after a crash is another one.
using ReplicaId = std::uint64_t;

// ---- views ----

/// What a process is to the run. The order is the wire's: append only.
enum class MemberKind : std::uint8_t {
  trainer,   ///< trains, and owns chunks
  reducer,   ///< owns chunks and trains nothing: it has no parameters
  observer,  ///< follows the rounds; never a member of a view
};

struct MemberInfo {
  std::string name;
  std::uint64_t incarnation = 0;  ///< grows at every start of this replica
  std::string address;            ///< HOST:PORT that peers dial; empty: it has no port, and dials them
  std::uint16_t slot = 0;         ///< its share of the training data; stays with the name for the whole run
  MemberKind kind = MemberKind::trainer;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, incarnation, address, slot, kind);
  }
};
[[nodiscard]] inline bool trains(const MemberInfo& member) { return member.kind == MemberKind::trainer; }
[[nodiscard]] inline bool can_be_dialled(const MemberInfo& member) { return !member.address.empty(); }
/// First 8 bytes of a digest, little-endian: enough to tell two apart that should be equal.
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

/// A view has no more members than this.
inline constexpr std::size_t max_members = 1024;
/// No view has a higher number; who claims one would leave none for those to come.
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

/// Of one contribution to a chunk: the sum of the squares of what it decodes to, infinity where it does not.
struct SquaredNorm {
  ReplicaId replica = 0;
  double value = 0;
  friend bool operator==(const SquaredNorm&, const SquaredNorm&) = default;
};

/// A replica was trained on these sequences for what it contributes.
struct TrainedOn {
  ReplicaId replica = 0;
  SampleRange samples;
  friend bool operator==(const TrainedOn&, const TrainedOn&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, samples);
  }
};
/// Ranges of one replica in one contribution; where there are more, the rest comes with the next one.
inline constexpr std::size_t max_trained_on = 16;
/// Whether rows from the network can be those of at most `replicas` replicas.
[[nodiscard]] bool are_sound(std::span<const TrainedOn> rows, std::size_t replicas);
/// Keeps of `in_all`, the contributors to all chunks so far, those who contributed to one more; of nothing,
/// all.
void keep_common(std::optional<std::vector<ReplicaId>>& in_all, const std::vector<ReplicaId>& contributors);
/// The samples that a round counts: those of the replicas that contributed to all of its chunks.
[[nodiscard]] std::vector<SampleRange> samples_of(std::span<const TrainedOn> rows,
                                                  std::span<const ReplicaId> in_all_chunks);

struct ChunkMessage {
  ViewNumber view = 0;
  ChunkKey key;
  SharedBytes bytes;
  std::uint64_t weight = 0;               ///< of a contribution: the tokens behind it
  std::vector<ReplicaId> contributors{};  ///< of a result; empty: all members of the view
  /// Of a result, where outer.reject is on: of all contributions that its owner had, in member order.
  std::vector<SquaredNorm> norms{};
  /// Of a fragment's first chunk: of a contribution what it was trained on since the fragment's last one; of
  /// a result that of all contributions its owner had, in member order.
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

/// Which chunks of a fragment: one bit for each, from the lowest.
class ChunkSet {
 public:
  ChunkSet() = default;
  explicit ChunkSet(std::size_t chunks) : bits_((chunks + 7) / 8, 0) {}
  void add(std::size_t i) { bits_.at(i / 8) |= static_cast<std::uint8_t>(1U << (i % 8)); }
  /// Also false for a chunk that the set, as it came from the network, has no bit for.
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

/// Results of one round that a member has. Of a round that it has not applied yet it also says what the round
/// was made of, as far as these chunks tell: the ledger of who has applied it does not have that yet.
struct HeldResults {
  FragmentId fragment = 0;
  Round round = 0;
  ChunkSet chunks;
  std::vector<TrainedOn> trained_on{};    ///< beside the result of the first chunk; empty without that chunk
  std::vector<ReplicaId> contributors{};  ///< to all of these chunks
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, chunks, trained_on, contributors);
  }
};

/// A complete checkpoint. Two of one step are the same only if they hold the same agreed state: a replica may
/// have written one on a branch of the history that the others then made anew.
struct CheckpointId {
  std::uint64_t step = 0;
  std::uint64_t content = 0;  ///< first 8 bytes of the digest of its agreed state
  friend auto operator<=>(const CheckpointId&, const CheckpointId&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step, content);
  }
};

/// A fragment's global parameters and momentum after an audited round (protocol/audits.h).
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

/// A heartbeat has no more of them.
inline constexpr std::size_t max_audits = 1024;

/// member -> coordinator, first message, and again on every new connection. Of one of a newer protocol the
/// first fields are read, which stay as they are for ever, so that it can be told what differs.
struct Hello {
  std::uint32_t protocol = protocol_version;
  std::uint32_t oldest = oldest_protocol;
  std::uint32_t numerics = numerics_version;
  std::string run;
  MemberInfo member;
  std::string build;
  ConfigItems config;
  Digest model;      ///< names, shapes and fragments of all tensors; of trainers alone, like the tokenizer
  Digest tokenizer;  ///< vocabulary
  bool resume = false;
  std::vector<CheckpointId> checkpoints;  ///< that this member could resume from; to resume without any is
                                          ///< to take the state from those who have
  ViewNumber sealed = 0;                  ///< highest view that this member has sealed
  ViewNumber activated = 0;               ///< highest view that has begun for it; 0: it is fresh
  Digest token;                           ///< of the run, where it has been in one
  bool done = false;  ///< it has reached the last step; its Done follows, also where it was said before
  std::uint64_t uplink = 0;  ///< bytes per second that its line carries outwards; 0: not known (yet)
  /// It has just been started: its parameters are those that a run begins with, and nothing of a run's state.
  bool fresh = true;
  std::string site;     ///< where it stands, for people; may be empty
  Settings settings{};  ///< of the view `activated`
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, oldest, numerics, run, member, build);
    ar(config, model, tokenizer, resume, checkpoints, sealed, activated, token, done, uplink, fresh, site,
       settings);
  }
};

/// Whether the protocols of this build and of whoever says that have one in common.
[[nodiscard]] bool speaks_with(const Hello& hello);

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

/// member -> coordinator: from here on I know no view before `view`. Where this member stands; one that only
/// reduces and has been in no view yet says nothing of it, since it does not know the layout.
struct Sealed {
  ViewNumber view = 0;
  ViewNumber activated = 0;   ///< highest view that has begun here; 0: none yet
  std::vector<Range> layout;  ///< fragments of the flat buffer
  std::uint64_t chunk_elements = 0;
  std::vector<FragmentState> fragments;
  /// By fragment: the rounds before the last applied one, oldest first, as far as they are remembered.
  std::vector<std::vector<FragmentState>> history;
  std::vector<HeldResults> held;
  std::uint64_t step = 0;  ///< agreed step
  Digest parameters;       ///< of the global parameters; before the first view only
  Ledger ledger{};         ///< up to `fragments`
  SampleSet taken{};       ///< that it was given to train on and that are not done
  SampleSet reserved{};    ///< that it may be given of its own track until the view begins
  Settings settings{};     ///< of the view that has begun here; before the first one, of its checkpoint
  /// Its agreed step goes no further than this until the view begins: there the result of a round is due
  /// that it sends after this. 0 of one that has no steps.
  std::uint64_t reach = 0;
  /// Of the view that has begun here: a coordinator without a memory learns from it who is missing.
  std::vector<MemberInfo> members{};
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, activated, layout, chunk_elements, fragments, history, held, step, parameters, ledger, taken,
       reserved, settings, reach, members);
  }
};

/// Results of one round that are decided, and who of the view's members has them.
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
  Digest token;               ///< what members of this run show each other on bulk connections
  std::vector<Range> layout;  ///< of the run, for those who have no parameters to know it from
  std::uint64_t chunk_elements = 0;
  ViewNumber reference = 0;  ///< the view whose members' chains are the run's history
  std::uint64_t step = 0;    ///< agreed step of the foremost of them
  /// By fragment: the newest round that any of them has applied, and rounds before it, oldest first.
  std::vector<std::vector<FragmentState>> chains;
  std::vector<FixedRound> fixed;
  /// By member, then fragment: last applied round, as it was when the member sealed.
  std::vector<std::vector<Round>> applied;
  Ledger ledger{};                    ///< up to the newest rounds of `chains`
  SampleSet taken{};                  ///< by any of the members, or decided and in no ledger yet
  std::vector<SampleSet> reserved{};  ///< by member
  std::uint64_t tracks = 0;  ///< of the training data that the run goes through: the planned replicas'
  Settings settings{};       ///< in force from now on, in place of all that was known
  template <class Archive>
  void serialize(Archive& ar) {
    ar(view, token, layout, chunk_elements, reference, step, chains, fixed, applied, ledger, taken, reserved,
       tracks, settings);
  }
};

/// A contributor's part of one round, over the chunks of one owner that it is in (health.h).
struct ContributorHealth {
  ReplicaId replica = 0;
  std::uint32_t chunks = 0;
  double squares = 0;  ///< of what it contributed; infinite where it does not decode
  double dot = 0;      ///< with the mean
  template <class Archive>
  void serialize(Archive& ar) {
    ar(replica, chunks, squares, dot);
  }
};
struct RoundHealth {
  FragmentId fragment = 0;
  Round round = 0;
  std::uint32_t chunks = 0;  ///< all of the fragment that the sender owns
  double mean_squares = 0;
  std::vector<ContributorHealth> contributors;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(fragment, round, chunks, mean_squares, contributors);
  }
};

/// A member's path to another one of its view, over all its lanes (paths.h).
struct PathReport {
  ReplicaId peer = 0;
  std::uint32_t round_trip = 0, shortest = 0;  ///< microseconds, by TCP: the mean at present; the shortest
  std::uint64_t bytes_per_second = 0;  ///< that it has delivered lately when it was full; 0: not known
  template <class Archive>
  void serialize(Archive& ar) {
    ar(peer, round_trip, shortest, bytes_per_second);
  }
};

/// The largest magnitude of a gain (step_figures.h): a small gradient after large ones has any.
inline constexpr double max_abs_gain = 1e6;

/// member -> coordinator, every `network.heartbeat` from its hello on, so that silence is noticed while
/// members join and load too.
struct Heartbeat {
  std::uint64_t number = 0;           ///< comes back in the reply
  ViewNumber view = 0;                ///< highest that has begun here
  std::uint64_t step = 0;             ///< agreed step
  std::uint16_t contributed = 0;      ///< members that are in the round applied last
  std::vector<ReplicaId> lost;        ///< members of the view who cannot be reached, by a relay neither
  double loss = 0;                    ///< nats per token, last step
  double tokens_per_second = 0;       ///< since the last heartbeat
  double utilization = 0;             ///< 0..1 since the start
  std::uint64_t bytes_sent = 0;       ///< since the start, headers and control included
  std::uint64_t uplink = 0;           ///< as in the hello, or as it was measured meanwhile
  double inner_steps_per_second = 0;  ///< without what was waited for; 0: not known yet
  /// Last applied round, first 8 bytes of its chain hash; empty before Sealed.
  std::vector<std::pair<Round, std::uint64_t>> fragments;
  std::vector<RoundHealth> health{};  ///< at most one round of each fragment, each once
  std::vector<PathReport> paths{};    ///< to the members of the view that are connected, each once
  std::uint64_t relays = 0;           ///< Relays::number of those in force here
  std::vector<ReplicaId>
      relayed{};  ///< members to whom there is no connection, and for whom there is a relay
  std::vector<CheckpointId> checkpoints{};  ///< the newest that are complete here
  std::uint64_t disk_free = 0;              ///< bytes, where its run folder is; 0: not known
  std::vector<Audit> audits{};              ///< made since the last heartbeat
  /// Of the newest outer steps (step_figures.h), means over the fragments; a gain of 0: not known.
  double outer_gain = 0, outer_correlation = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, view, step, contributed, lost, loss, tokens_per_second, utilization, bytes_sent, uplink,
       inner_steps_per_second, fragments, health, paths, relays, relayed, checkpoints, disk_free, audits,
       outer_gain, outer_correlation);
  }
};

/// coordinator -> member: heard you. If `view` is the one that the member is in, it holds a lease, counted
/// from when it sent that heartbeat: until that ends no other view begins without it. How long that is the
/// coordinator alone says, since it is what waits for the end.
struct HeartbeatReply {
  ViewNumber view = 0;  ///< 0: none is in force
  std::uint64_t number = 0;
  std::vector<Round> lowest;          ///< by fragment: applied by all members of the view
  std::vector<Round> newest;          ///< by fragment: applied by any of them
  std::uint64_t lease = 0;            ///< in microseconds; 0: none
  double inner_steps_per_second = 0;  ///< the median of the view's members; 0: not known
  std::uint64_t checkpoint = 0;  ///< newest step of which all trainers of the view have one; 0: none known
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

/// member -> coordinator: let all write a checkpoint soon: I have to leave, or was past the step of the last
/// one. What an operator's `checkpoint` does, unless one is to come.
struct CheckpointRequest {
  std::string reason;  ///< for people
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

/// coordinator -> member: go on to the end of this step and stop there; all trainers stop at the same one.
/// To one that only reduces: all of them are done, say so too.
struct StopAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// member -> coordinator: finished; `summary` is a JSON object. The hash is a trainer's: who only reduces has
/// no parameters.
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
  Digest global_hash{};  ///< that all have ended with
  template <class Archive>
  void serialize(Archive& ar) {
    ar(problem, global_hash);
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

/// coordinator -> one that has no state of this run: take it from these members; say Ready when you have it
/// (an observer never does, and is told anew who they are whenever a view begins).
struct Admitted {
  Digest token;
  std::vector<MemberInfo> donors;
  Settings settings{};  ///< that the run's rounds are made under
  template <class Archive>
  void serialize(Archive& ar) {
    ar(token, donors, settings);
  }
};

/// member -> coordinator: I am within one round of the others everywhere.
struct Ready {
  template <class Archive>
  void serialize(Archive&) {}
};

/// coordinator -> member: your rounds are not this run's, or too far behind: take the state from others.
/// member -> coordinator: I found that out myself.
struct Evicted {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// coordinator -> member: rounds do not commit for now, and why.
struct Suspended {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

/// Two members that cannot connect to each other, and a third one that carries what they send each other.
struct Relay {
  ReplicaId a = 0, b = 0, by = 0;
  friend bool operator==(const Relay&, const Relay&) = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(a, b, by);
  }
};

/// coordinator -> member: all relays that there are, in place of those that it was told of before.
struct Relays {
  std::uint64_t number = 0;  ///< grows; heartbeats say which one is in force
  std::vector<Relay> relays;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(number, relays);
  }
};

// ---- steering ----

/// Who steers a run has this name, or one that begins with it and a '-'. No member may have it.
inline constexpr const char* operator_name = "operator";
[[nodiscard]] bool is_operator(const std::string& name);

/// operator -> coordinator, in place of a hello: one thing to do. The answer ends the connection.
struct Command {
  std::uint32_t protocol = protocol_version;
  std::string run;   ///< that is meant; empty: whichever the coordinator has
  std::string by;    ///< name of who asks, for people
  std::string verb;  ///< status, set, pause, resume, checkpoint, drain, stop
  /// Of `set` KEY=VALUE each, of `drain` the names of workers or sites.
  std::vector<std::string> arguments;
  std::uint64_t at = 0;  ///< of `set`: from the step after this one on; 0: as soon as all can
  std::string member;    ///< of `set`, for keys that are each member's own: whose; empty: all
  template <class Archive>
  void serialize(Archive& ar) {
    ar(protocol, run, by, verb, arguments, at, member);
  }
};

/// coordinator -> operator.
struct Answer {
  std::string problem;  ///< why nothing was done; empty: it was
  std::string text;     ///< a JSON object
  template <class Archive>
  void serialize(Archive& ar) {
    ar(problem, text);
  }
};

/// coordinator -> member: these keys of its own have these values from now on.
struct Adjust {
  ConfigItems items;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(items);
  }
};

/// coordinator -> one that follows the rounds and is in no view: what these are made under. Said before any
/// HeartbeatReply that has a round to be followed for which it matters.
struct Steered {
  Settings settings;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(settings);
  }
};

/// coordinator -> trainer: write a checkpoint when this agreed step is done, as all do. One that is past it
/// has none of it. It changes nothing that is agreed.
struct CheckpointAt {
  std::uint64_t step = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(step);
  }
};

/// coordinator -> member: write a checkpoint and leave, soon.
struct Drain {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

// ---- what members write for people ----

/// Where a line belongs. The order is the wire's: append only.
enum class RecordKind : std::uint8_t {
  log,      ///< what the member has said
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
/// A longer line is cut by whoever sends it, and nobody's who receives it.
inline constexpr std::size_t longest_record = 16 * 1024;
/// No member writes more of them.
inline constexpr std::uint64_t max_records = std::uint64_t{1} << 48;
/// In RecordsTaken: the coordinator has them in another way, or nobody wants them, and none are to be sent
/// any more. No line has this number.
inline constexpr std::uint64_t no_records_wanted = max_records + 1;

/// member -> coordinator: lines in the order in which they were written, counted from 0 since this member
/// was started. What is not acknowledged is said again on the next connection.
struct Records {
  std::uint64_t first = 0;  ///< the number of the first; those before it that were never sent are left out
  std::vector<Record> records;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(first, records);
  }
};

/// coordinator -> member: all records before this number are where they belong.
struct RecordsTaken {
  std::uint64_t next = 0;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(next);
  }
};

/// The order is the wire's tag: append only.
using ControlMessage =
    std::variant<Hello, Refused, Seal, Sealed, NewView, Heartbeat, HeartbeatReply, EvalReport, Announce,
                 StopRequest, Hold, Held, StopAt, Done, Finished, Leave, Abort, Admitted, Ready, Evicted,
                 Suspended, Relays, Command, Answer, Adjust, Steered, Drain, Records, RecordsTaken,
                 CheckpointRequest, CheckpointAt>;

[[nodiscard]] Bytes encode(const ControlMessage& message);
/// Throws Error(network) for an unknown tag or a malformed body.
[[nodiscard]] ControlMessage decode_control(std::span<const std::byte> bytes);

}  // namespace isthmus::outer_sync::protocol
