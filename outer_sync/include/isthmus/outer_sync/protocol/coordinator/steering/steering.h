#pragma once
// Commands of operators, and the settings that they change (docs/protocol.md, Steering). Owned by
// Coordinator, which carries out the orders: a change of settings takes effect with the next view.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "isthmus/outer_sync/protocol/coordinator/roster/actions.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"
#include "isthmus/outer_sync/protocol/coordinator/steering/change_requests.h"

namespace isthmus::outer_sync::protocol {

/// Operators waiting for an answer at one time.
inline constexpr std::size_t max_operators = 16;

class Steering {
 public:
  explicit Steering(const CoordinatorOptions& options) : judge_(options.judge) {}

  /// The run, as far as a command depends on it.
  struct Situation {
    const CoordinatorOptions& options;
    const Roster& roster;
    std::string obstacle;  ///< why settings cannot change at present; empty: they can
  };
  /// An action that a command requires of the coordinator.
  struct Order {
    enum class What { nothing, change_view, checkpoint, stop } what = What::nothing;
    std::string why;  ///< for the log
  };
  /// Answers the command, or returns an order. The answers to `checkpoint` and to changes of settings follow
  /// later, by `answer`, `refuse` or `report`.
  [[nodiscard]] Order take(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out);
  /// A change requested by the coordinator's program `by`. Logs the reason if it is not possible. Does
  /// nothing while another change is pending.
  [[nodiscard]] Order propose(const ConfigItems& items, const std::string& by, const std::string& why,
                              const Situation& run, ActionQueue& out);
  void pause_by_coordinator();
  /// Whether an operator was on this connection. Its command is carried out anyway.
  bool closed(ConnectionId connection) { return operators_.erase(connection) > 0; }
  /// Answers with a JSON object of one key.
  void answer(ConnectionId to, const char* key, std::uint64_t value, ActionQueue& out);
  void refuse(ConnectionId to, const std::string& problem, ActionQueue& out);

  /// Settings of the newest known view.
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] bool paused() const { return settings_.pause_after != Settings::never; }
  [[nodiscard]] const SettingsJudge& judge() const { return judge_; }
  /// View `number`, which has begun, has these settings. Older views are ignored.
  void learn(ViewNumber number, const Settings& settings);
  /// Puts all requested changes into the settings with which view `number` is about to be announced. No
  /// member passes step `reach` before the view has begun for it. `steps`: length of the run.
  [[nodiscard]] Settings settings_of_view(Settings settings, ViewNumber number, std::uint64_t reach,
                                          std::uint64_t steps, ActionQueue& out);
  /// A member has begun the view announced last, so its settings are the run's: answers the operators.
  void report(ActionQueue& out);
  /// Drops changes that no view has announced.
  void drop(const std::string& why, ActionQueue& out);

 private:
  [[nodiscard]] Order set(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out);
  [[nodiscard]] Order request(ChangeRequest request, const std::string& why, const Situation& run,
                              ActionQueue& out);
  void adjust(ConnectionId from, const Command& command, const ConfigItems& items, const Situation& run,
              ActionQueue& out);
  void drain(ConnectionId from, const Command& command, const Situation& run, ActionQueue& out);
  [[nodiscard]] ChangeVerdict judge(const ConfigItems& items) const;
  void answer_text(ConnectionId to, std::string text, ActionQueue& out);

  SettingsJudge judge_;
  Settings settings_;
  ViewNumber settings_view_ = 0;
  ChangeRequests changes_;
  std::set<ConnectionId> operators_;  ///< waiting for an answer
};

}  // namespace isthmus::outer_sync::protocol
