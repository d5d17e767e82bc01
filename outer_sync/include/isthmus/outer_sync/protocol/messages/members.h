#pragma once
// Members of a run, the view that lists them, and the numbers by which messages name members and rounds.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "isthmus/base/hash.h"

namespace isthmus::outer_sync::protocol {

using Round = std::uint64_t;        ///< of one fragment, counted from 1; 0 is the initial state
using MemberIndex = std::uint16_t;  ///< position in the view's member list
using ViewNumber = std::uint64_t;
/// Identifies a replica across views. A replica that restarts after a crash gets another id.
using ReplicaId = std::uint64_t;
/// Stands for a contributor of unknown name.
inline constexpr ReplicaId unknown_replica = 0;

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
/// False too for a member that others reach through the mailbox only.
[[nodiscard]] bool has_port(const MemberInfo& member);
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

}  // namespace isthmus::outer_sync::protocol
