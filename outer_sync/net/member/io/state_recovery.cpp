#include "net/member/io/state_recovery.h"

#include <algorithm>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

StateRecovery::StateRecovery(asio::io_context& io, const CodecContext& codec_context, LinkOptions link,
                             WireCounters& counters, Trace& trace, StateParts parts, IoEnd shared, Say say,
                             Handler& handler)
    : io_(io),
      codec_context_(codec_context),
      link_(std::move(link)),
      counters_(counters),
      trace_(trace),
      parts_(parts),
      shared_(shared),
      say_(std::move(say)),
      handler_(handler) {}

void StateRecovery::take_from(const Admitted& admitted, ReplicaId self, bool observes) {
  std::vector<PeerInfo> donors;
  for (const auto& donor : admitted.donors) donors.push_back({id_of(donor), donor.name, donor.address});
  std::vector<PeerInfo> bridges;
  for (const auto& bridge : admitted.bridges) bridges.push_back({id_of(bridge), bridge.name, bridge.address});
  observes_ = observes;
  const bool goes_on = observes && fetcher_ && token_ == admitted.token;
  token_ = admitted.token;
  if (goes_on) return fetcher_->start(donors, bridges, self, token_, parts_);  // keeps the state it has
  say_("copying the state from " + std::to_string(donors.size()) + " members");
  const auto fragments = codec_context_.layout.fragment_count();
  learned_.assign(fragments, std::nullopt);
  ledger_.assign(fragments, {});
  newest_.clear();
  trainer_is_in_ = false;
  received_.assign(fragments, std::nullopt);
  shared_.update([&](IoView now) {
    if (!now.run.admission) now.run.admission = Admission{.how = Admission::How::joins, .step = 0};
    now.run.copying.behind.reset();
    now.run.copying.follows = true;
    now.both.state_events.clear();
    now.both.state_events.emplace_back(BeginAnew{++attempt_});
  });
  fetcher_.emplace(io_, codec_context_.layout, codec_context_.codecs, link_, counters_, trace_,
                   codec_context_.reducer.buffers(), *this);
  fetcher_->start(donors, bridges, self, token_, parts_);
}

void StateRecovery::stop() {
  fetcher_.reset();
  trainer_is_in_ = false;
}

void StateRecovery::on_newest(const std::vector<Round>& rounds) {
  if (!fetcher_ || rounds.size() != codec_context_.layout.fragment_count()) return;
  newest_ = rounds;
  fetcher_->newest(newest_);
  observes_ ? count_behind() : say_ready_if_so();
}

// ---- what arrives ----

void StateRecovery::on_fragment(FragmentSnapshot snapshot) {
  if (handler_.stands()) return handler_.on_rounds_gone();
  received_.at(snapshot.fragment) = snapshot.at.round;
  ledger_.at(snapshot.fragment) = snapshot.ledger;
  const auto part = [&](StatePart which) { return snapshot.values[static_cast<std::size_t>(which)]; };
  outer_sync::FragmentSnapshot state_event{.fragment = snapshot.fragment,
                                           .state = snapshot.at,
                                           .theta = part(StatePart::theta),
                                           .velocity = part(StatePart::velocity),
                                           .first_moment = part(StatePart::first_moment),
                                           .second_moment = part(StatePart::second_moment),
                                           .inner_steps = snapshot.inner_steps};
  shared_.update([&](IoView now) { now.both.state_events.emplace_back(std::move(state_event)); });
  count_behind();
}

void StateRecovery::on_round(FragmentId fragment, Round round, std::vector<SharedBytes> results) {
  received_.at(fragment) = round;
  shared_.update([&](IoView now) {
    now.both.state_events.emplace_back(FollowedRound{fragment, round, std::move(results)});
  });
  count_behind();
}

void StateRecovery::on_failed(const std::string& why) {
  const bool over =
      shared_.update([](IoView now) { return now.run.copying.nothing_comes = now.run.finished.has_value(); });
  if (over) return;
  say_("cannot copy the state: " + why + "; asking the coordinator again");
  if (!observes_) stop();
  handler_.on_no_donors();
}

/// Counts how many rounds an observer is behind the members, by the rounds that have arrived.
void StateRecovery::count_behind() {
  std::optional<Round> most;
  for (FragmentId p = 0; p < received_.size() && p < newest_.size(); ++p) {
    if (!received_[p]) return;
    most = std::max(most.value_or(0), newest_[p] - std::min(newest_[p], *received_[p]));
  }
  shared_.update([&](IoView now) { now.run.copying.behind = most; });
}

// ---- what the trainer has applied ----

void StateRecovery::begun(std::uint64_t attempt) { trainer_is_in_ = takes() && attempt == attempt_; }

void StateRecovery::learned(FragmentId fragment, const FragmentState& state) {
  if (!trainer_is_in_) return;
  learned_.at(fragment) = state;
  say_ready_if_so();
}

std::vector<FragmentState> StateRecovery::whole() const {
  std::vector<FragmentState> states;
  for (const auto& fragment : learned_) {
    if (!fragment) return {};
    states.push_back(*fragment);
  }
  return states;
}

/// Rounds followed since the snapshot arrive without their samples; the first view brings those.
Ledger StateRecovery::ledger_of(const std::vector<FragmentState>& states) const {
  auto ledger = ledger_;
  for (FragmentId p = 0; p < states.size(); ++p) {
    if (ledger[p].round() > states[p].round) ledger[p] = FragmentLedger(states[p].round);
    while (ledger[p].round() < states[p].round) ledger[p].skip();
  }
  return ledger;
}

void StateRecovery::say_ready_if_so() {
  if (observes_ || handler_.stands() || !fetcher_->caught_up()) return;
  const auto states = whole();
  if (states.empty()) return;
  for (FragmentId p = 0; p < states.size(); ++p) {
    if (!newest_.empty() && states[p].round + 1 < newest_[p]) return;
  }
  say_("has the state and is ready to take part");
  handler_.on_ready(states, ledger_of(states));
}

}  // namespace isthmus::outer_sync::transport
