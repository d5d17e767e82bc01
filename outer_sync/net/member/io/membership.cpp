#include "net/member/io/membership.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

namespace {

constexpr auto begun_without_it = "the run has begun without this replica";

std::string describe(const View& view) {
  std::string names;
  for (const auto& member : view.members) names += (names.empty() ? "" : ", ") + member.name;
  const auto trainers = std::ranges::count_if(view.members, trains);
  const auto reducers = static_cast<std::ptrdiff_t>(view.members.size()) - trainers;
  return "view " + std::to_string(view.number) + " begins with " + std::to_string(trainers) + " replicas" +
         (reducers == 0 ? "" : " and " + std::to_string(reducers) + " reducer(s)") + ": " + names;
}

/// Index of member `id` in the view; the number of members if it is not in it.
MemberIndex place_of(ReplicaId id, const View& view) {
  return static_cast<MemberIndex>(std::ranges::find(view.members, id, id_of) - view.members.begin());
}

}  // namespace

// ---- identity ----

Hello Membership::hello(bool done) {
  if (rounds_.in_a_view()) {
    hello_.sealed = rounds_.member().sealed();
    hello_.activated = rounds_.member().view().number;
    hello_.settings = rounds_.member().settings();
    hello_.token = token_;
    say_("reconnected to the coordinator");
  } else {
    forget_seal();
  }
  hello_.done = done;
  hello_.fresh = reduces() ? !rounds_.in_a_view() : !has_entered_;
  return hello_;
}

/// A seal request is void once its connection is gone: a restarted coordinator may number its views from a
/// lower one.
void Membership::forget_seal() {
  blank_seal_ = 0;
  waiting_view_.reset();
  if (rounds_.stands()) rounds_.member().forget_seal();
  if (seal_) seal_->view = 0;
}

/// Uses this run's token for connections to members from now on.
void Membership::join_mesh(const Digest& token) {
  if (token_ == token) return;
  token_ = token;
  mesh_.begin(id(), self().name, token, codecs_->largest_frame(), codecs_->reducer.buffers());
}

// ---- copying the state ----

void Membership::on_admitted(const Admitted& admitted) {
  if (!recovery_) throw Error(ErrorKind::network, "it sent a message that only members may send");
  if (rounds_.in_a_view()) return;
  if (rounds_.stands()) shared_.update([](IoView now) { now.both.evicted = begun_without_it; });
  withdraw();
  join_mesh(admitted.token);
  has_entered_ = true;
  recovery_->take_from(admitted, id(), observes());
  on_steered(admitted.settings);
}

/// Passes the settings on to a trainer that follows the rounds.
void Membership::on_steered(const Settings& settings) {
  steered_ = settings;
  if (!recovery_ || !recovery_->takes()) return;
  shared_.update([&](IoView now) { now.both.state_events.emplace_back(settings); });
}

/// The donors may have changed by the time of the next connection.
void Membership::on_disconnected() {
  if (!recovery_ || !recovery_->takes() || observes()) return;
  recovery_->stop();
  withdraw();
}

void Membership::on_ready(const std::vector<FragmentState>& states, const Ledger& ledger) {
  rounds_.begin({.fragments = states, .ledger = ledger, .settings = steered_});
  control_.send(Ready{});
}

void Membership::on_rounds_gone() {
  evict("its donors dropped rounds that it needs before it was in a view");
}

void Membership::on_no_donors() {
  if (!observes()) withdraw();
  control_.redial();
}

void Membership::stop_copying() {
  if (recovery_) recovery_->stop();
}

// ---- seals ----

void Membership::begin(const InitialState& state) {
  // Its connection was lost while it restored, and the run began without it.
  if (recovery_->takes()) return shared_.update([](IoView now) { now.both.evicted = begun_without_it; });
  parameters_ = state.parameters;
  rounds_.begin(state);
  if (seal_ && seal_->view > 0) answer_seal(seal_->view);  // otherwise the seal is still to arrive
}

void Membership::on_seal(const Seal& seal) {
  if (reduces() && !rounds_.stands()) return answer_seal_blankly(seal.view);
  // A replica restores only once, even if it lost a connection meanwhile.
  const auto restored = seal_ ? seal_->resume_step : 0;
  if (restored > 0 && seal.resume_step > 0 && seal.resume_step != restored) {
    shared_.fail(
        Error(ErrorKind::network, "the run begins at another checkpoint now; start again, with --resume"));
    return control_.stop();
  }
  if (!seal_ || !rounds_.stands()) {
    seal_ = seal;
    const auto how = seal.resume_step > 0 ? Admission::How::resumes : Admission::How::begins;
    shared_.update([&](IoView now) { now.run.admission = Admission{.how = how, .step = seal.resume_step}; });
  }
  if (rounds_.stands()) answer_seal(seal.view);
}

void Membership::answer_seal(ViewNumber view) {
  auto sealed = rounds_.member().seal(view);
  if (!sealed) return;
  shared_.update([&](IoView now) {
    sealed->step = now.trainer.report.step;
    now.run.view_forms = rounds_.in_a_view();
    if (reduces()) return;
    now.run.copying.follows = false;
    now.both.order.seal(*sealed);
    sealed->reach = now.both.reach;
  });
  sealed->parameters = parameters_;
  control_.send(std::move(*sealed));
}

/// A reducer before its first view has nothing to report, but promises to enter no older view.
void Membership::answer_seal_blankly(ViewNumber view) {
  if (view < blank_seal_) return;
  blank_seal_ = view;
  Sealed sealed;
  sealed.view = view;
  control_.send(std::move(sealed));
}

// ---- views ----

/// The view message contains all that a reducer needs.
void Membership::begin_reducing(const NewView& message) {
  codecs_.learn(message);
  mesh_.queue_at_most(codecs_.max_bytes_queued());
  rounds_.begin({.fragments = std::vector<FragmentState>(codecs_->layout.fragment_count())});
  static_cast<void>(rounds_.member().seal(blank_seal_));
}

void Membership::on_new_view(NewView message) {
  if (reduces() && !rounds_.stands()) begin_reducing(message);
  const auto place = place_of(id(), message.view);
  if (place == message.view.members.size() || !rounds_.stands() || !rounds_.member().fits(message, place))
    throw Error(ErrorKind::network, "it announced a view that does not fit this member");
  waiting_view_ = std::move(message);
  begin_waiting_view();
}

/// A view may void results that are not applied yet, so it cannot begin while one is being applied.
void Membership::begin_waiting_view() {
  if (!waiting_view_) return;
  const auto place = place_of(id(), waiting_view_->view);
  const bool of_reference = rounds_.member().is_of_reference(*waiting_view_, place);
  NewView message;
  const auto entry = shared_.update([&](IoView now) -> std::optional<Member::Entry> {
    if (!now.both.rounds.may_begin_view(of_reference)) return std::nullopt;
    message = *std::exchange(waiting_view_, std::nullopt);
    return enter(now, message, place, of_reference);
  });
  if (!entry) return;
  if (*entry == Member::Entry::evicted) {
    control_.send(
        protocol::Evicted{"its rounds are not those of view " + std::to_string(message.view.number)});
    return evict("this replica's rounds are not those of the run");
  }
  if (*entry == Member::Entry::begun) on_view_begun(message, of_reference);
}

/// Changes the member and all that the trainer may know of the view together.
Member::Entry Membership::enter(IoView& now, const NewView& message, MemberIndex place, bool of_reference) {
  auto& member = rounds_.member();
  const auto entry = member.activate(message, place);
  if (entry != Member::Entry::begun) return entry;
  // No result of this view has arrived yet, and the trainer needs one to get past the step where these
  // settings may matter.
  now.run.settings = std::make_shared<const Settings>(message.settings);
  if (!reduces()) now.both.order.deal(message, place);
  now.both.exchanged.clear();
  if (of_reference) return entry;
  now.both.reach = Settings::never;  // until the trainer reports its next step
  now.both.rounds.withdraw(member.take_retracted());
  assert(now.both.rounds.complete().empty());
  now.both.state_events.clear();  // they arrive again as committed results
  if (reduces()) {
    now.both.followed = member.fragments();
    ++now.both.life;
  }
  return entry;
}

void Membership::on_view_begun(const NewView& message, bool of_reference) {
  const bool first = !rounds_.in_a_view();
  stop_copying();
  heartbeats_.view_begun();
  has_entered_ = true;
  hello_.member = message.view.members[rounds_.member().self()];
  rounds_.enter_view();
  std::vector<PeerInfo> peers;
  for (const auto& member : message.view.members) {
    if (id_of(member) != id()) peers.push_back({id_of(member), member.name, member.address});
  }
  join_mesh(message.token);
  mesh_.set_peers(peers);
  mesh_.view_begun(message.view.number);
  if (!first) say_(describe(message.view));
  shared_.update([&](IoView now) {
    if (!of_reference) now.run.agreed_step = message.step;
    now.run.view = std::make_shared<const View>(message.view);
    now.run.self = rounds_.member().self();
    now.run.commits = true;
    now.run.view_forms = false;
  });
  rounds_.go_on();
}

/// Drops this replica's state and any view that waits to begin.
void Membership::withdraw() {
  rounds_.end();
  waiting_view_.reset();
}

void Membership::evict(const std::string& reason) {
  say_((reduces() ? "rejoining: " : "evicted, must copy the state from other members: ") + reason);
  withdraw();
  mesh_.set_peers({});
  heartbeats_.evicted();
  stop_copying();
  rounds_.forget_residuals();
  ++hello_.member.incarnation;
  hello_.sealed = hello_.activated = 0;
  hello_.settings = {};
  token_ = {};
  blank_seal_ = 0;
  has_entered_ = true;
  shared_.update([&](IoView now) {
    ++now.both.life;
    now.run.view_forms = false;
    if (!reduces()) now.both.evicted = reason;
    now.run.copying.behind.reset();
    now.both.rounds.clear();
    now.both.exchanged.clear();
    now.run.view = std::make_shared<const View>();
    now.run.self = 0;
    now.run.settings.reset();
    now.both.reach = Settings::never;
    now.both.state_events.clear();
  });
  control_.redial();
}

}  // namespace isthmus::outer_sync::transport
