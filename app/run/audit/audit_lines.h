#pragma once
// audit.jsonl: what a member did and received, for `isthmus audit` (docs/how-to/audit.md). One JSON object a
// line. A trainer writes its own doings in their order: a start, then inner steps, rounds applied and
// snapshots for checkpoints. Owners write receipts.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "isthmus/base/hash.h"
#include "isthmus/base/samples.h"
#include "isthmus/outer_sync/core/layout.h"
#include "isthmus/outer_sync/protocol/receipts.h"

namespace isthmus::app {

inline constexpr int audit_version = 3;
inline constexpr const char* audit_file = "audit.jsonl";

/// The first eight bytes of a SHA-256, in their order. To pass for the contribution that a member should have
/// made, another one must be found with the same eight bytes: some 2^64 attempts.
using ShortDigest = std::uint64_t;
[[nodiscard]] ShortDigest short_digest(const Digest& digest);

/// By name: everything that decides whether two machines compute the same bits.
using MachineTraits = std::map<std::string, std::string>;

/// A process begins to train from the state at this agreed step.
struct AuditStart {
  enum class State { initial, checkpoint, others };  ///< where the state came from
  std::string member = {};
  State state = State::initial;
  std::uint64_t step = 0;
  std::int64_t time = 0;  ///< milliseconds since 1970
  MachineTraits machine = {};
  friend bool operator==(const AuditStart&, const AuditStart&) = default;
};
/// An inner step, made while the agreed step was `step`.
struct AuditTrained {
  std::uint64_t step = 0;
  std::vector<SampleRange> samples = {};
  std::uint64_t others = 0;  ///< after an absence: the others' agreed step, at which it continues
  friend bool operator==(const AuditTrained&, const AuditTrained&) = default;
};
struct AuditApplied {
  outer_sync::FragmentId fragment = 0;
  std::uint64_t round = 0;
  /// After the inner step was counted: its result was not there in time.
  bool between_steps = false;
  ShortDigest chain = 0;                  ///< the fragment's chain hash after the round
  std::vector<SampleRange> samples = {};  ///< that the ledger has for the round, of all replicas
  friend bool operator==(const AuditApplied&, const AuditApplied&) = default;
};
/// With outer.pace time: the speeds given to the outer loop after an inner step, in inner steps per second.
struct AuditSpeeds {
  double own = 0, reference = 0;
  friend bool operator==(const AuditSpeeds&, const AuditSpeeds&) = default;
};
/// The state at this agreed step was copied for a checkpoint.
struct AuditSnapshot {
  std::uint64_t step = 0;
  friend bool operator==(const AuditSnapshot&, const AuditSnapshot&) = default;
};
/// The checkpoint is on disk. Its sections cannot be exchanged later, because the coordinator has their
/// digests.
struct AuditCheckpoint {
  std::uint64_t step = 0;
  std::map<std::string, Digest> sections = {};
  friend bool operator==(const AuditCheckpoint&, const AuditCheckpoint&) = default;
};

/// One member's contributions to the chunks of an AuditReceipts.
struct AuditReceived {
  std::string member = {};
  std::uint64_t weight = 0;               ///< its tokens
  bool kept = true;                       ///< false: rejected for its norm (outer.reject)
  std::vector<ShortDigest> bytes = {};    ///< of each encoded chunk
  outer_sync::protocol::Sketch sketch{};  ///< sum over the chunks
  friend bool operator==(const AuditReceived&, const AuditReceived&) = default;
};
/// An owner's receipts of a round, for chunks to which the same members contributed.
struct AuditReceipts {
  outer_sync::FragmentId fragment = 0;
  std::uint64_t round = 0;
  std::vector<outer_sync::ChunkId> chunks = {};
  std::vector<ShortDigest> results = {};  ///< what the owner made of each chunk
  std::vector<AuditReceived> contributions = {};
  friend bool operator==(const AuditReceipts&, const AuditReceipts&) = default;
};

using AuditLine = std::variant<AuditStart, AuditTrained, AuditApplied, AuditSpeeds, AuditSnapshot,
                               AuditCheckpoint, AuditReceipts>;

[[nodiscard]] nlohmann::ordered_json audit_json(const AuditLine& line);
/// nullopt for anything that `audit_json` does not make: files come from other members.
[[nodiscard]] std::optional<AuditLine> audit_line(const std::string& text);

}  // namespace isthmus::app
