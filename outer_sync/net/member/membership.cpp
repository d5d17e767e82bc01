#include "net/member/membership.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <utility>

namespace isthmus::outer_sync::transport {

using namespace protocol;

namespace {

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
  hello_.fresh = is_fresh();
  return hello_;
}

/// A seal request is void once its connection is gone: a restarted coordinator may number its views from a
/// lower one.
void Membership::forget_seal() {
  blank_seal_ = 0;
  waiting_view_.reset();
  if (rounds_.stands()) rounds_.member().forget_seal();
  shared_.update([&] {
    if (shared_.seal) shared_.seal->view = 0;
  });
}

bool Membership::is_fresh() {
  const std::lock_guard lock(shared_.mutex);
  return !shared_.admitted && !shared_.view && !shared_.evicted;
}

void Membership::join_mesh(const Digest& token) {
  if (token_ == token) return;
  token_ = token;
  const auto& codec_context = rounds_.codec_context();
  mesh_.begin(id(), self().name, token, codec_context.largest_frame(), codec_context.reducer.buffers());
}

// ---- seals ----

void Membership::begin(const std::vector<FragmentState>& fragments, const Digest& parameters,
                       const Ledger& ledger, const Settings& settings) {
  parameters_ = parameters;
  rounds_.begin(fragments, ledger, settings);
  ViewNumber view = 0;
  shared_.update([&] { view = shared_.seal->view; });
  if (view > 0) answer_seal(view);  // otherwise the seal is still to arrive
}

void Membership::on_seal(const Seal& seal) {
  if (reduces() && !rounds_.stands()) return answer_seal_blankly(seal.view);
  // A replica restores only once, even if it lost a connection meanwhile.
  std::uint64_t restored = 0;
  shared_.update([&] { restored = shared_.seal ? shared_.seal->resume_step : 0; });
  if (restored > 0 && seal.resume_step > 0 && seal.resume_step != restored) {
    shared_.fail(
        Error(ErrorKind::network, "the run begins at another checkpoint now; start again, with --resume"));
    return control_.stop();
  }
  shared_.update([&] {
    if (!shared_.seal || !rounds_.stands()) shared_.seal = seal;
  });
  if (rounds_.stands()) answer_seal(seal.view);
}

void Membership::answer_seal(ViewNumber view) {
  auto sealed = rounds_.member().seal(view);
  if (!sealed) return;
  shared_.update([&] {
    sealed->step = shared_.report.step;
    shared_.view_forms = rounds_.in_a_view();
    if (reduces()) return;
    shared_.follows = false;
    shared_.order.seal(*sealed);
    sealed->reach = shared_.reach;
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
  handler_.on_layout(message);
  rounds_.begin(std::vector<FragmentState>(rounds_.codec_context().layout.fragment_count()));
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
  auto& member = rounds_.member();
  const auto place = place_of(id(), waiting_view_->view);
  const bool of_reference = member.is_of_reference(*waiting_view_, place);
  std::unique_lock lock(shared_.mutex);
  if (!of_reference && !shared_.taken.empty()) return;
  const auto message = *std::exchange(waiting_view_, std::nullopt);
  const auto entry = member.activate(message, place);
  if (entry == Member::Entry::begun) {
    // No result of this view has arrived yet, and the trainer needs one to get past the step where these
    // settings may matter.
    shared_.settings = std::make_shared<const Settings>(message.settings);
    if (!of_reference) shared_.reach = Settings::never;  // until the trainer reports its next step
  }
  if (entry == Member::Entry::begun && !reduces()) shared_.order.deal(message, place);
  if (entry == Member::Entry::begun && !of_reference) {
    for (const auto& round : member.take_retracted()) shared_.results.erase(round);
    assert(shared_.results.empty());
    shared_.state_events.clear();  // they arrive again as committed results
    if (reduces()) {
      shared_.followed = member.fragments();
      ++shared_.life;
    }
  }
  lock.unlock();
  if (entry == Member::Entry::evicted) {
    control_.send(
        protocol::Evicted{"its rounds are not those of view " + std::to_string(message.view.number)});
    return evict("this replica's rounds are not those of the run");
  }
  if (entry == Member::Entry::begun) on_view_begun(message, of_reference);
}

void Membership::on_view_begun(const NewView& message, bool of_reference) {
  const bool first = !rounds_.in_a_view();
  handler_.on_view_begun();
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
  shared_.update([&] {
    if (!of_reference) shared_.agreed_step = message.step;
    shared_.view = message;
    shared_.commits = true;
    shared_.view_forms = false;
  });
  rounds_.go_on();
}

void Membership::withdraw() {
  rounds_.end();
  waiting_view_.reset();
}

void Membership::evict(const std::string& reason) {
  say_((reduces() ? "rejoining: " : "evicted, must copy the state from other members: ") + reason);
  withdraw();
  mesh_.set_peers({});
  handler_.on_evicted();
  rounds_.forget_residuals();
  ++hello_.member.incarnation;
  hello_.sealed = hello_.activated = 0;
  hello_.settings = {};
  token_ = {};
  blank_seal_ = 0;
  shared_.update([&] {
    ++shared_.life;
    shared_.view_forms = false;
    if (!reduces()) shared_.evicted = reason;
    shared_.behind.reset();
    shared_.results.clear();
    shared_.view.reset();
    shared_.settings.reset();
    shared_.reach = Settings::never;
    shared_.state_events.clear();
  });
  control_.redial();
}

}  // namespace isthmus::outer_sync::transport
