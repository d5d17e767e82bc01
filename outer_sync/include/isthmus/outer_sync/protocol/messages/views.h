#pragma once
// A change of the view: all members seal, and the next view begins (docs/protocol.md).

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/ledger.h"
#include "isthmus/outer_sync/protocol/messages/chunks.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/messages/state.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync::protocol {

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

/// coordinator -> member: rounds do not commit at present.
struct Suspended {
  std::string reason;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(reason);
  }
};

}  // namespace isthmus::outer_sync::protocol
