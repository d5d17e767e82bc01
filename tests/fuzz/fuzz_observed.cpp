// Arbitrary control messages to a coordinator that is observed by the timeline of rounds and the planner. The
// observers must finish and throw nothing for any messages, and must never receive a step, round or setting
// that the run does not have.
//
// Input: a byte that selects the run (see `Case`), then messages (coordinator_talk.h).

#include <cmath>

#include "coordinator/records/round_timeline.h"
#include "coordinator/replan/replan_readings.h"
#include "coordinator_talk.h"
#include "isthmus/outer_sync/config/settings_timeline.h"

using namespace isthmus;
using namespace isthmus::outer_sync;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t steps = 1000;

struct Case {
  explicit Case(unsigned choice) {
    const auto methods = method_names();
    outer.method = method_of(methods[choice % methods.size()]);
    if (outer.data_parallel()) outer.method = Method::streaming_diloco;  // it has no outer loop
    outer.num_fragments = 2;
    outer.sync_every = 30;
    outer.sync_delay = 5;
    outer.resolve();
    options = {.run = "fuzz",
               .steps = steps,
               .judge =
                   [this](const auto& before, const auto& items) {
                     for (const auto& [key, value] : items) {
                       if (key == "network.rate") return protocol::ChangeVerdict{{}, true};
                       if (!key.starts_with("outer.")) return protocol::ChangeVerdict{"unknown key", false};
                     }
                     return protocol::ChangeVerdict{problem_of_change(outer, before, items), false};
                   },
               .replicas = 1 + (choice >> 2) % 2,
               .reducers = (choice >> 3) % 2,
               .config = {{"outer.codec", "int8"}},
               .token = {},
               .join_timeout = 60s,
               .detect_timeout = 5s,
               .topology = {},
               .leases = (choice >> 4) % 2 == 1,
               .last = {},
               .recover = {}};
    // A restarted coordinator: with its state on disk, or without.
    if ((choice >> 5) % 2 == 1)
      options.last = protocol::LastView{1, {{"a", 1, "a:7000"}, {"b", 1, "b:7000"}}, {}};
    else if ((choice >> 6) % 2 == 1)
      options.recover = 100;
  }

  OuterConfig outer;
  protocol::CoordinatorOptions options;
};

void check_settings(const Case& run, const protocol::Settings& settings) {
  protocol::Settings before;
  for (const auto& change : settings.changes) {
    require(run.options.judge(before, change.items).problem.empty(), "a change that must be refused");
    before.changes.push_back(change);
  }
  require(settings.pause_after == protocol::Settings::never || settings.pause_after <= steps,
          "a pause after the end");
}

void check_step(std::uint64_t step) { require(step <= steps, "a step that the run does not have"); }

class Observers {
 public:
  Observers(const Case& run, const protocol::Coordinator& coordinator)
      : run_(run), coordinator_(coordinator), replanner_({.min_seconds = 0}, run.outer) {}

  void look(protocol::Time now) {
    const double seconds = std::chrono::duration<double>(now).count();
    timeline_.look(seconds, coordinator_, run_.outer);
    require(timeline_.json(seconds, max_rounds).size() <= max_rounds, "more rounds than there may be");
    const auto lines = app::replan_readings(coordinator_, {});
    require(lines.ways.size() == lines.members.size() * lines.members.size(), "wrong number of paths");
    for (const auto& member : lines.members)
      require(std::isfinite(member.step_seconds) && member.step_seconds >= 0, "an invalid time");
    // Planning simulates the run, so it is limited to a few calls.
    const auto standing = app::replan_standing(coordinator_, run_.outer, steps);
    if (standing && planned_++ < max_planned) static_cast<void>(replanner_.look(seconds, lines, *standing));
  }
  void judged(protocol::Time now, const protocol::RoundJudged& round) {
    timeline_.committed(std::chrono::duration<double>(now).count(), round.fragment, round.round);
  }

 private:
  static constexpr std::size_t max_rounds = 16, max_planned = 2;
  const Case& run_;
  const protocol::Coordinator& coordinator_;
  app::RoundTimeline timeline_;
  plan::Replanner replanner_;
  std::size_t planned_ = 0;
};

void check_sent(const Case& run, const protocol::ControlMessage& message) {
  if (const auto* view = std::get_if<protocol::NewView>(&message)) {
    check_step(view->step);
    check_settings(run, view->settings);
    require(protocol::problem_of(*view, {.steps = steps}).empty(), "a view that members refuse");
  } else if (const auto* stop = std::get_if<protocol::StopAt>(&message)) {
    check_step(stop->step);
  } else if (const auto* seal = std::get_if<protocol::Seal>(&message)) {
    check_step(seal->resume_step);
  } else if (const auto* admitted = std::get_if<protocol::Admitted>(&message)) {
    check_settings(run, admitted->settings);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Case run(data[0]);
  protocol::Coordinator coordinator(run.options, 0s);
  Observers observers(run, coordinator);
  talk(coordinator, std::as_bytes(std::span(data, size).subspan(1)), [&](protocol::Time now) {
    for (const auto& action : coordinator.take_actions()) {
      if (const auto* send = std::get_if<protocol::SendControl>(&action)) check_sent(run, send->message);
      if (const auto* judged = std::get_if<protocol::RoundJudged>(&action)) observers.judged(now, *judged);
      if (std::holds_alternative<protocol::MembersChanged>(action)) observers.look(now);
    }
    for (const auto& [name, member] : coordinator.members()) check_step(member.heartbeat.step);
  });
  return 0;
}
