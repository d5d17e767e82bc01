#pragma once
// Changes of settings that operators have requested and that a view has to bring (docs/protocol.md,
// Steering), and whether a change is allowed. Owned by Steering, which answers the operators.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/messages/joining.h"
#include "isthmus/outer_sync/protocol/messages/members.h"
#include "isthmus/outer_sync/protocol/settings.h"

namespace isthmus::outer_sync::protocol {

struct ChangeRequest {
  enum class What { change, pause, resume } what;
  std::uint64_t from = 0;  ///< connection of the operator that waits for the answer; 0: none
  std::string by;
  Change change;           ///< its step is the earliest one allowed; 0: as soon as possible
  ViewNumber in = 0;       ///< announced with this view; 0: not yet
  std::uint64_t step = 0;  ///< announced step
};

/// The items as in a command: key=value, separated by commas.
[[nodiscard]] std::string text_of(const ConfigItems& items);

/// Judges changes by the rules of the run.
class SettingsJudge {
 public:
  using Rule = std::function<ChangeVerdict(const Settings& before, const ConfigItems& items)>;
  /// Without a rule the run accepts no changes.
  explicit SettingsJudge(Rule rule) : rule_(std::move(rule)) {}
  /// Judges a change that follows all of `before`.
  [[nodiscard]] ChangeVerdict judge(const Settings& before, const ConfigItems& items) const;
  /// Judges settings that a member reports: each change together with the changes before it, like an
  /// operator's command. Returns what is wrong; empty: nothing.
  [[nodiscard]] std::string problem_of(const Settings& settings) const;

 private:
  Rule rule_;
  mutable Settings sound_;  ///< last settings found valid; other members report the same
};

class ChangeRequests {
 public:
  /// A request that cannot be met.
  struct Refused {
    ChangeRequest request;
    std::string problem;
  };

  void add(ChangeRequest request) { requests_.push_back(std::move(request)); }
  [[nodiscard]] bool empty() const { return requests_.empty(); }
  /// Changes of settings that no view has announced yet.
  [[nodiscard]] std::vector<Change> pending_changes() const;
  /// Puts all requests into the `settings` with which view `number` is about to be announced. A request of
  /// an earlier view that began at no member is put in again. No member passes step `reach` before the view
  /// has begun for it, so no step that was already made is affected. `steps`: length of the run; 0: no limit.
  /// Removes and returns what is impossible.
  [[nodiscard]] std::vector<Refused> put_into(Settings& settings, ViewNumber number, std::uint64_t reach,
                                              std::uint64_t steps);
  /// A member has begun the view announced last. Removes and returns the requests that it brought.
  [[nodiscard]] std::vector<ChangeRequest> take_begun();
  /// Removes and returns the requests that no view has announced.
  [[nodiscard]] std::vector<ChangeRequest> take_pending();

 private:
  std::vector<ChangeRequest> requests_;
};

}  // namespace isthmus::outer_sync::protocol
