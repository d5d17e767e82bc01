#pragma once
// Role of a process, in the OU of its certificate's subject. A certificate without one, from a build before
// roles, has the usual role of its name.

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
  reducer,   ///< only reduces
  observer,  ///< only follows the rounds
  steers,    ///< `operator`: sends commands to the coordinator
  coordinates,
};

[[nodiscard]] std::string to_string(Role role);
/// nullopt if the word is not a role.
[[nodiscard]] std::optional<Role> role_from(std::string_view word);
/// `coordinator`, `operator` and `operator-...` have the roles of these names; all others are trainers.
[[nodiscard]] Role usual_role(const std::string& name);
/// The role `asked` for a name; its usual role if empty. Throws Error(config) if it is not a role, or if the
/// name cannot have it: only these names have these roles.
[[nodiscard]] Role role_for(const std::string& name, const std::string& asked);

/// Whether a process with this role may join as this kind of member.
[[nodiscard]] bool entitles(Role role, protocol::MemberKind kind);
/// Whether members may dial a process with this role: it can be in a view and have the state.
[[nodiscard]] bool is_member(Role role);

}  // namespace isthmus::outer_sync::tls
