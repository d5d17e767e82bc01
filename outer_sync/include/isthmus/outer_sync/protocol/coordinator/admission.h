#pragma once
// Whether a process that says hello may take part: a pure function of its hello and the state of the run
// (docs/protocol.md, Joining and coming back). Called by Coordinator for every hello.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "isthmus/outer_sync/protocol/coordinator/roster/options.h"
#include "isthmus/outer_sync/protocol/coordinator/roster/roster.h"
#include "isthmus/outer_sync/protocol/coordinator/steering/change_requests.h"
#include "isthmus/outer_sync/protocol/received.h"

namespace isthmus::outer_sync::protocol {

/// The newest views announced, with their members and settings.
class AnnouncedViews {
 public:
  struct View {
    std::set<ReplicaId> members;
    Settings settings;
  };
  void add(const LastView& view);
  [[nodiscard]] bool empty() const { return views_.empty(); }
  /// Null if it was not announced, or too long ago.
  [[nodiscard]] const View* find(ViewNumber number) const;
  [[nodiscard]] ViewNumber oldest() const { return views_.begin()->first; }
  [[nodiscard]] ViewNumber newest() const { return views_.rbegin()->first; }

 private:
  std::map<ViewNumber, View> views_;
};

/// The state of the run on which admission depends.
struct RunAtHello {
  const CoordinatorOptions& options;
  const Roster& roster;
  const AnnouncedViews& announced;
  const SettingsJudge& judge;
  Bounds bounds;
  bool first_view_forms = true;
  std::size_t planned = 0;                   ///< trainers of the first view
  std::optional<CheckpointId> goes_back_to;  ///< checkpoint with which the new first view begins
  bool is_ending = false;
  bool token_is_known = true;  ///< false during a recovery until a member has shown it
  ViewNumber number = 0;       ///< the highest announced
  std::size_t observers = 0;
  bool is_observed_under_the_name = false;  ///< by another process than the sender of the hello
};

struct Verdict {
  enum class Answer {
    admit,
    refuse,      ///< it cannot take part; the reason is sent
    retry,       ///< not now: close the connection, and it comes again
    start_again  ///< its state is void; it must be started again
  };
  enum class Cause {
    none,
    other_version,
    other_run,
    broken_hello,
    operators_name,
    other_config,
    unknown_kind,
    name_is_taken,
    other_tokenizer,
    other_model,
    too_many,
    other_token,
    invalid_settings,
    no_use_for_reducers,
    resume_differs,
    no_late_joiners,
    run_is_ending,
    no_rounds_to_follow,
    forgotten_run,  ///< the coordinator does not remember the run that it is in
    left_behind,    ///< the run has gone back to its checkpoints without it
    unknown_view,   ///< it claims a view that was not announced to it
    not_of_first_view
  };
  Answer answer = Answer::admit;
  Cause cause = Cause::none;
  std::string text;  ///< the reason, or the line for the log; human-readable
};

/// Judges the hello of a trainer or reducer.
[[nodiscard]] Verdict admit(const Hello& hello, const RunAtHello& run);
/// Judges the hello of an observer.
[[nodiscard]] Verdict admit_observer(const Hello& hello, const RunAtHello& run);
/// Whether its model and tokenizer are those of the trainers here.
[[nodiscard]] Verdict compare_models(const Hello& hello, const Roster& roster);
/// Whether the replica is in the first view, which has the planned number of trainers. After a return to
/// checkpoints these must have the chosen checkpoint.
[[nodiscard]] bool is_of_first_view(const Hello& hello, const RunAtHello& run);
/// Whether view `view` may have begun for the sender of this hello. That may be after the connection on which
/// it was announced has ended.
[[nodiscard]] bool may_have_begun(const Hello& hello, ViewNumber view, const AnnouncedViews& announced);
/// Settings with which, by a member's report, a view began. Only operators change settings: those of a view
/// that this coordinator remembers must be equal, and others, which it learns from the members, are judged.
/// Returns what is wrong; empty: nothing.
[[nodiscard]] std::string problem_of_report(ViewNumber view, const Settings& settings,
                                            const AnnouncedViews& announced, const SettingsJudge& judge);
/// The run's token after it has gone back to its checkpoints: as hard to guess as the token before it.
[[nodiscard]] Digest token_after(const Digest& token);

/// Reason given to replicas that want to join while the run is ending.
inline constexpr auto too_late = "the run is ending; there is nothing left to join";

/// Observers follow the run from outside: views, counts, waits and stops ignore them.
inline constexpr std::size_t max_observers = 64;

}  // namespace isthmus::outer_sync::protocol
