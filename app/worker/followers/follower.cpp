#include "worker/followers/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "isthmus/base/error.h"
#include "isthmus/outer_sync/config/codec_plan.h"

namespace isthmus::app {

using outer_sync::protocol::Round;

namespace {

/// A follower accepts no connections, so it opens no port.
outer_sync::NetworkConfig unknown_to_others(outer_sync::NetworkConfig network) {
  network.listen = outer_sync::NetworkConfig::no_port;
  network.advertise.clear();
  return network;
}

/// Steps between two evaluations of the run; it always evaluates the last step.
std::uint64_t evaluation_interval(const RunConfig& run) {
  return static_cast<std::uint64_t>(run.eval_every > 0 ? run.eval_every : run.steps);
}

}  // namespace

Follower::Follower(const Experiment& experiment, const outer_sync::FragmentLayout& layout,
                   std::function<void()> while_waiting, std::uint64_t every)
    : config_(experiment),
      layout_(layout),
      every_(every > 0 ? every : evaluation_interval(experiment.run)),
      local_(layout.buffer_size()),
      node_(unknown_to_others(experiment.network), layout,
            outer_sync::codec_plan(experiment.outer, static_cast<std::uint64_t>(experiment.run.seed)),
            closing_rule(experiment), trace_,
            {.lossless = experiment.outer.lossless_stage(),
             .mailbox = mailbox_place(experiment),
             .while_waiting = std::move(while_waiting)}),
      loop_(experiment.outer, layout, local_, node_, trace_) {}

void Follower::join(outer_sync::protocol::Hello hello) {
  hello.member.kind = outer_sync::protocol::MemberKind::observer;
  static_cast<void>(node_.join(std::move(hello)));
}

bool Follower::follow(const Rounds& until) {
  seen_ = node_.follow(loop_, until);
  ++arrived_;
  return seen_.goes_on;
}

Follower::Rounds Follower::all() const {
  return Rounds(layout_.fragment_count(), std::numeric_limits<Round>::max());
}

Follower::Rounds Follower::rounds() const {
  Rounds out;
  for (const auto& fragment : loop_.fragments()) out.push_back(fragment.round);
  return out;
}

/// How far each fragment may advance. Fragments that are ahead wait, so that there is a moment at which the
/// global parameters are those of one step.
Follower::Rounds Follower::limits() const {
  if (!target_ || is_over()) return all();
  Rounds out;
  for (outer_sync::FragmentId p = 0; p < layout_.fragment_count(); ++p)
    out.push_back(loop_.schedule().rounds_due(p, *target_));
  return out;
}

/// Whether no further moment falls on a step: the run evaluates its last step after the final sync, which
/// belongs to no step.
bool Follower::is_over() const {
  const auto last = static_cast<std::uint64_t>(config_.run.steps);
  return *target_ > last || (*target_ == last && config_.outer.final_sync);
}

bool Follower::is_at_target() const { return target_ && has_state() && !is_over() && rounds() == limits(); }

std::optional<Follower::Moment> Follower::next() {
  for (;;) {
    if (is_at_target()) return Moment{std::exchange(target_, *target_ + every_)};
    if (!follow(limits())) break;
    if (!has_state()) {
      target_.reset();
      continue;
    }
    const bool begins = !target_;
    // A fragment that was copied again may be past the target.
    const auto at = rounds(), due = limits();
    if (begins || !std::ranges::equal(at, due, std::less_equal<>()))
      target_ = loop_.schedule().step_with(at, every_);
    if (begins && !is_at_target()) return Moment{};
  }
  drain();
  return {};
}

bool Follower::catch_up() {
  while (follow(all()))
    if (has_state() && seen_.is_current) return true;
  return false;
}

/// Applies rounds that arrived for fragments that had to wait.
void Follower::drain() {
  while (follow(all())) {
  }
}

std::string Follower::verdict() {
  const auto hash = loop_.global_hash();
  const auto finished = node_.status().finished.value_or(outer_sync::protocol::Finished{});
  if (!finished.problem.empty()) throw Error(ErrorKind::divergence, finished.problem);
  if (hash == finished.global_hash) return fmt::format("the run has ended: global hash {}", hash.hex());
  if (seen_.is_current) {
    throw Error(ErrorKind::divergence,
                fmt::format("the run has ended with global hash {}, but its rounds give {} here",
                            finished.global_hash.hex(), hash.hex()));
  }
  return fmt::format(
      "the run has ended with global hash {}; its last rounds did not arrive here, where the hash is {}",
      finished.global_hash.hex(), hash.hex());
}

}  // namespace isthmus::app
