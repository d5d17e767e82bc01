#include "isthmus/outer_sync/tls/role.h"

#include <algorithm>
#include <array>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/protocol/messages/commands.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/tls/authority.h"

namespace isthmus::outer_sync::tls {

namespace {

constexpr std::array<std::pair<Role, std::string_view>, 5> words = {{{Role::trainer, "trainer"},
                                                                     {Role::reducer, "reducer"},
                                                                     {Role::observer, "observer"},
                                                                     {Role::steers, "operator"},
                                                                     {Role::coordinates, "coordinator"}}};

}  // namespace

std::string to_string(Role role) {
  return std::string(std::ranges::find(words, role, &std::pair<Role, std::string_view>::first)->second);
}

std::optional<Role> role_from(std::string_view word) {
  const auto* found = std::ranges::find(words, word, &std::pair<Role, std::string_view>::second);
  return found == words.end() ? std::nullopt : std::optional(found->first);
}

Role usual_role(const std::string& name) {
  if (name == coordinator_name) return Role::coordinates;
  return protocol::is_operator(name) ? Role::steers : Role::trainer;
}

Role role_for(const std::string& name, const std::string& asked) {
  const auto usual = usual_role(name);
  if (asked.empty()) return usual;
  const auto role = role_from(asked);
  if (!role)
    throw Error(ErrorKind::config,
                "--role is '" + asked + "'; expected trainer, reducer, observer, operator or coordinator");
  const auto is_members = [](Role one) { return one != Role::steers && one != Role::coordinates; };
  if (*role == usual || (is_members(*role) && is_members(usual))) return *role;
  throw Error(ErrorKind::config, "'" + name + "' cannot have role " + asked +
                                     ": only the names 'coordinator', 'operator' and names beginning with "
                                     "'operator-' have the roles coordinator and operator, and no others");
}

bool entitles(Role role, protocol::MemberKind kind) {
  using protocol::MemberKind;
  return role == Role::trainer || (role == Role::reducer && kind == MemberKind::reducer) ||
         (role == Role::observer && kind == MemberKind::observer);
}

bool is_member(Role role) { return role == Role::trainer || role == Role::reducer; }

}  // namespace isthmus::outer_sync::tls
