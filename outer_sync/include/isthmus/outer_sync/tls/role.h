#pragma once
// What a certificate entitles to, beside the name that it is of: OU in its subject. A certificate without
// one, of a build before roles, has the usual role of its name.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace isthmus::outer_sync::protocol {
enum class MemberKind : std::uint8_t;
}

namespace isthmus::outer_sync::tls {

enum class Role {
  trainer,   ///< a full member: it may also reduce or observe
  reducer,   ///< reduces, and trains nothing
  observer,  ///< follows the rounds, and is nobody in the run
  steers,    ///< `operator`: says commands to the coordinator
  coordinates,
};

[[nodiscard]] std::string to_string(Role role);
/// Nothing for a word that is no role.
[[nodiscard]] std::optional<Role> role_from(std::string_view word);
/// `coordinator` and `operator` (also `operator-...`) have the roles of these names, all others train.
[[nodiscard]] Role usual_role(const std::string& name);
/// What is asked for a name; usual if empty. Throws Error(config) for a word that is no role, and for one
/// that the name cannot have: these names and roles go together.
[[nodiscard]] Role role_for(const std::string& name, const std::string& asked);

/// Whether a process with this role may take part as that.
[[nodiscard]] bool entitles(Role role, protocol::MemberKind kind);
/// A member that others dial: one of a view, or who has the state.
[[nodiscard]] bool is_member(Role role);

}  // namespace isthmus::outer_sync::tls
