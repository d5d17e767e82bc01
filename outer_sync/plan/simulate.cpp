#include "isthmus/outer_sync/plan/simulate.h"

#include <algorithm>
#include <cassert>

#include "plan/wires.h"

namespace isthmus::outer_sync::plan {

namespace {

/// Rounds sent and due at a step; the same for all replicas.
struct Step {
  struct Round {
    FragmentId fragment;
    std::uint64_t round;  ///< number within its fragment
  };
  std::vector<Round> sends, due;
};

std::vector<Step> steps_of(const Simulated& run) {
  std::vector<Step> steps(run.steps + 1);
  for (FragmentId p = 0; p < run.fragments.size(); ++p) {
    std::uint64_t sent = 0, due = 0;
    for (std::uint64_t s = 1; s <= run.steps; ++s) {
      for (const auto until = run.schedule.rounds_sent(p, s); sent < until;)
        steps[s].sends.push_back({p, ++sent});
      for (const auto until = run.schedule.rounds_due(p, s); due < until;) steps[s].due.push_back({p, ++due});
    }
  }
  return steps;
}

/// For each step, the next one at which something is sent or due, or at which the measured steps begin or
/// end.
std::vector<std::uint64_t> busy_after(const Simulated& run, const std::vector<Step>& steps) {
  std::vector<std::uint64_t> next(steps.size(), run.steps);
  for (auto s = run.steps; s-- > 0;) {
    const bool busy = !steps[s + 1].sends.empty() || !steps[s + 1].due.empty() || s + 1 == run.filling;
    next[s] = busy || s + 1 == run.steps ? s + 1 : next[s + 1];
  }
  return next;
}

class Simulation {
 public:
  explicit Simulation(const Simulated& run)
      : run_(run),
        steps_(steps_of(run)),
        next_busy_(busy_after(run, steps_)),
        wires_(run.network, events_),
        replicas_(run.network.replicas.size()),
        rounds_(run.fragments.size()) {}

  Timetable run() {
    for (std::uint32_t m = 0; m < replicas_.size(); ++m) begin_step(m, 0);
    while (!events_.empty() && running_ > 0) {
      const auto event = events_.take();
      switch (event.kind) {
        case Event::Kind::step_over:
          step_over(event.member, event.time);
          break;
        case Event::Kind::contributes:
          wires_.contributes(event);
          break;
        case Event::Kind::sent:
          wires_.sent(event);
          break;
        case Event::Kind::reduced:
          wires_.reduced(event);
          break;
        case Event::Kind::has_result:
          has_result(event);
          break;
      }
    }
    return timetable();
  }

 private:
  /// A round as the replicas see it.
  struct Round {
    FragmentId fragment = 0;
    std::uint64_t send_step = 0, apply_step = 0;
    double begun = 0, there = 0;
    double slack = unlimited;
    std::vector<double> came;  ///< arrival time by place; below 0: not yet
  };
  struct Trainer {
    std::uint64_t step = 0;    ///< last computed step
    std::size_t next_due = 0;  ///< index in that step's due results
    double asks_since = 0;     ///< when it asked for the next due result
    bool waits = false;
    double waited = 0;
    double begin = 0, end = 0;  ///< of the measured steps
    double waited_before = 0, sent_before = 0, received_before = 0;
  };

  /// Skips to the next step with something to do.
  void begin_step(std::uint32_t m, double now) {
    auto& trainer = replicas_[m];
    if (trainer.step == run_.filling) {
      trainer.begin = now;
      trainer.waited_before = trainer.waited;
      const auto traffic = wires_.traffic(m);
      trainer.sent_before = traffic.sent;
      trainer.received_before = traffic.received;
    }
    if (trainer.step == run_.steps) {
      trainer.end = now;
      --running_;
      return;
    }
    const double computes = run_.network.replicas[m].step_seconds;
    const auto next = next_busy_[trainer.step];
    const double begins = now + static_cast<double>(next - trainer.step - 1) * computes;
    trainer.step = next - 1;
    double encoded = 0;  // encoding time of the step's fragments so far
    for (const auto& [p, round] : steps_[next].sends) {
      const auto number = round_of(p, round, next);
      const auto& fragment = run_.fragments[p];
      for (std::uint32_t i = 0; i < fragment.pieces.size(); ++i) {
        const auto& piece = fragment.pieces[i];
        const double ready =
            begins + piece.in_step * computes + (piece.in_step < 1 ? 0 : encoded) + piece.seconds_after;
        if (i == 0) rounds_known_[number].begun = std::max(rounds_known_[number].begun, ready);
        events_.add(ready, Event::Kind::contributes, m, number, i);
      }
      encoded += fragment.encode_seconds;
    }
    events_.add(begins + computes + encoded, Event::Kind::step_over, m);
  }

  void step_over(std::uint32_t m, double now) {
    auto& trainer = replicas_[m];
    ++trainer.step;
    trainer.next_due = 0;
    trainer.asks_since = now;
    apply_due(m, now);
  }

  /// Applies results that have arrived; waits at the first that has not.
  void apply_due(std::uint32_t m, double now) {
    auto& trainer = replicas_[m];
    const auto& due = steps_[trainer.step].due;
    for (; trainer.next_due < due.size(); ++trainer.next_due) {
      const auto& [p, number] = due[trainer.next_due];
      auto& round = rounds_known_[rounds_[p].at(number - 1)];
      const double came = round.came[run_.network.place[m]];
      trainer.waits = came < 0;
      if (trainer.waits) return;
      round.apply_step = trainer.step;
      round.slack = std::min(round.slack, trainer.asks_since - came);
      trainer.waited += std::max(0.0, now - trainer.asks_since);
      now += run_.fragments[p].apply_seconds;
      trainer.asks_since = now;
    }
    begin_step(m, now);
  }

  void has_result(const Event& event) {
    const auto place = event.member;
    auto& round = rounds_known_[event.round];
    round.came[place] = event.time;
    round.there = std::max(round.there, event.time);
    for (const auto m : wires_.replicas_at(place)) {
      const auto& trainer = replicas_[m];
      if (!trainer.waits) continue;
      const auto& [p, number] = steps_[trainer.step].due[trainer.next_due];
      if (rounds_[p].at(number - 1) == event.round) apply_due(m, event.time);
    }
  }

  /// The round's number in the order of all rounds; begins the round if it is new.
  std::uint32_t round_of(FragmentId p, std::uint64_t round, std::uint64_t step) {
    auto& known = rounds_[p];
    if (round <= known.size()) return known[round - 1];
    const auto number = wires_.begin_round(run_.fragments[p]);
    known.push_back(number);
    rounds_known_.push_back({.fragment = p,
                             .send_step = step,
                             .apply_step = 0,
                             .begun = 0,
                             .there = 0,
                             .slack = unlimited,
                             .came = std::vector<double>(wires_.places(), -1)});
    return number;
  }

  Timetable timetable() {
    Timetable table;
    for (std::uint32_t m = 0; m < replicas_.size(); ++m) {
      const auto& trainer = replicas_[m];
      const auto& traffic = wires_.traffic(m);
      ReplicaTimes times;
      times.seconds = trainer.end - trainer.begin;
      const auto steps = static_cast<double>(run_.steps - run_.filling);
      times.utilization = steps * run_.network.replicas[m].step_seconds / times.seconds;
      times.waiting = trainer.waited - trainer.waited_before;
      times.sent = traffic.sent - trainer.sent_before;
      times.received = traffic.received - trainer.received_before;
      times.peak = traffic.peak;
      table.replicas.push_back(times);
    }
    for (const auto& round : rounds_known_) {
      if (round.send_step <= run_.filling || round.apply_step == 0) continue;
      table.rounds.push_back(
          {round.fragment, round.send_step, round.apply_step, round.there - round.begun, round.slack});
    }
    return table;
  }

  const Simulated& run_;
  const std::vector<Step> steps_;
  const std::vector<std::uint64_t> next_busy_;
  Events events_;
  Wires wires_;
  std::vector<Trainer> replicas_;
  std::size_t running_ = replicas_.size();
  std::vector<std::vector<std::uint32_t>> rounds_;  ///< by fragment: numbers of its rounds
  std::vector<Round> rounds_known_;                 ///< by number
};

}  // namespace

double Timetable::utilization() const {
  double least = 1;
  for (const auto& times : replicas) least = std::min(least, times.utilization);
  return least;
}

Timetable simulate(const Simulated& run) {
  assert(run.steps > run.filling && !run.network.replicas.empty());
  return Simulation(run).run();
}

}  // namespace isthmus::outer_sync::plan
