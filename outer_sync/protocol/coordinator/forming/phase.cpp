#include "isthmus/outer_sync/protocol/coordinator/forming/phase.h"

#include <cassert>
#include <utility>

namespace isthmus::outer_sync::protocol {
namespace {

template <class... Phases>
bool is_one_of(const Phase& phase) {
  return (std::holds_alternative<Phases>(phase) || ...);
}

}  // namespace

bool may_follow(const Phase& now, const Phase& next) {
  using phase::Changing, phase::Gathering, phase::Over, phase::Running;
  using Waiting = phase::Suspended;
  if (std::holds_alternative<Gathering>(now)) return is_one_of<Running, Waiting, Over>(next);
  if (std::holds_alternative<Changing>(now)) return is_one_of<Changing, Running, Waiting, Over>(next);
  if (std::holds_alternative<Running>(now)) return is_one_of<Changing, Waiting, Over>(next);
  if (std::holds_alternative<Waiting>(now)) return is_one_of<Gathering, Changing, Waiting, Over>(next);
  return false;
}

void enter(Phase& now, Phase next) {
  assert(may_follow(now, next));
  auto* const before = std::get_if<phase::Suspended>(&now);
  auto* const after = std::get_if<phase::Suspended>(&next);
  if (before != nullptr && after != nullptr) {
    before->because = std::move(after->because);
  } else {
    now = std::move(next);
  }
}

}  // namespace isthmus::outer_sync::protocol
