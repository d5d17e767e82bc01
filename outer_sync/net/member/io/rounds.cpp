#include "net/member/io/rounds.h"

#include <algorithm>
#include <asio/post.hpp>
#include <utility>

#include "net/member/io/state_server.h"

namespace isthmus::outer_sync::transport {

using namespace protocol;

void Rounds::begin(const InitialState& state) {
  member_.emplace(codecs_->layout, codecs_->codecs, codecs_.rules.closing, state.fragments, state.ledger,
                  state.settings);
  for (const auto& round : state.decided) member_->keep_restored(round);
  exchanges_.emplace(codecs_->layout, codecs_->codecs);
}

void Rounds::end() {
  end_receipts();
  member_.reset();
  exchanges_.reset();
  ids_.clear();
}

void Rounds::forget_residuals() {
  if (!codecs_.known()) return;
  for (ChunkId k = 0; k < codecs_->layout.chunk_count(); ++k)
    asio::post(codec_pool_, [this, k] { codecs_->reducer.forget(k); });
}

void Rounds::enter_view() {
  end_receipts();
  if (receipts_ != nullptr) count_owned();
  ids_.clear();
  for (const auto& member : member_->view().members) ids_.push_back(id_of(member));
  exchanges_->begin_view(member_->view(), member_->self());
}

/// After the reductions of the view.
void Rounds::end_receipts() {
  if (receipts_ != nullptr) asio::post(codec_pool_, [sink = receipts_] { sink->end_view(); });
}

void Rounds::count_owned() {
  const auto& owners = member_->view().owners;
  owned_.assign(codecs_->layout.fragment_count(), 0);
  for (ChunkId k = 0; k < owners.size(); ++k) {
    if (owners[k] == member_->self()) ++owned_[codecs_->layout.fragment_of(k)];
  }
}

void Rounds::go_on() {
  count_live();
  act();
}

bool Rounds::no_peer_is_up() const {
  return std::ranges::none_of(ids_, [this](ReplicaId id) { return mesh_.up(id); });
}

void Rounds::count_live() {
  Participation seen;
  for (std::size_t m = 0; m < ids_.size(); ++m) {
    if (!trains(member_->view().members[m])) continue;
    ++seen.participating;
    seen.live += m == member_->self() || mesh_.up(ids_[m]) ? 1 : 0;
  }
  shared_.update([&](IoView now) {
    now.run.participation.live = seen.live;
    now.run.participation.participating = seen.participating;
  });
}

/// Position in the current view.
std::optional<MemberIndex> Rounds::index_of(ReplicaId peer) const {
  const auto place = std::ranges::find(ids_, peer);
  if (place == ids_.end()) return std::nullopt;
  return static_cast<MemberIndex>(place - ids_.begin());
}

// ---- from the trainer ----

void Rounds::contribute(ChunkId chunk, Round round, const SharedBytes& bytes, const SharedBytes& packed,
                        std::uint64_t weight, double squares, const SampleSet& samples) {
  if (!member_) return;
  member_->contribute(chunk, round, bytes, weight, squares, samples, packed);
  act();
}

void Rounds::exchange(ChunkId chunk, std::uint64_t step, const SharedBytes& bytes, std::uint64_t weight,
                      const SharedBytes& packed) {
  if (!exchanges_) return;
  exchanges_->send(chunk, step, bytes, weight, packed);
  act();
}

void Rounds::end_exchange(FragmentId fragment, std::uint64_t step) {
  if (!exchanges_) return;
  exchanges_->end(fragment, step);
  act();
}

void Rounds::applied(FragmentId fragment, const FragmentState& state, std::vector<SampleRange> samples) {
  member_->applied(fragment, state.round, state.chain, std::move(samples));
  act();
}

// ---- from peers ----

std::optional<std::string> Rounds::on_chunk(ReplicaId from, Connection::Received chunk) {
  const auto index = index_of(from);
  if (!index) return std::nullopt;  // from a view that has not begun here or has ended
  if (auto problem = codecs_->unpacker.unpack(chunk.head, chunk.body)) return problem;
  const auto message = message_of(std::move(chunk));
  const bool in_pair = message.key.kind == ChunkKind::exchange;
  auto problem = in_pair ? exchanges_->receive(*index, message) : member_->receive(*index, message);
  act();
  return problem;
}

void Rounds::on_ack(ReplicaId from, ViewNumber view, const ChunkKey& key) {
  const auto index = index_of(from);
  if (!index) return;
  if (key.kind == ChunkKind::exchange)
    exchanges_->acknowledged(*index, view, key);
  else
    member_->acknowledged(*index, view, key);
}

void Rounds::on_begun(ReplicaId from, ViewNumber view) {
  const auto index = index_of(from);
  if (!index) return;
  member_->peer_begun(*index, view);
  exchanges_->peer_begun(*index, view);
  act();
}

void Rounds::on_peer_up(ReplicaId peer) {
  count_live();
  const auto index = index_of(peer);
  if (!index) return;
  const auto all = [](const ChunkKey&) { return true; };
  member_->repeat_to(*index, all);
  exchanges_->repeat_to(*index, all);
  act();
}

/// The mesh dials it again, and heartbeats report the loss.
void Rounds::on_peer_down(ReplicaId) { count_live(); }

void Rounds::on_broken_peer(ReplicaId peer, const std::string& why) {
  const auto index = index_of(peer);
  const auto name = index ? member_->view().members[*index].name : "a peer";
  shared_.fail(Error(ErrorKind::network, name + " breaks the protocol: " + why));
}

/// Fetchers beyond a bridge count like the fetchers of this member: they need it after the run, too.
void Rounds::on_bridge(bool begins) {
  shared_.update([&](IoView now) { begins ? ++now.run.serving.fetchers : --now.run.serving.fetchers; });
}

asio::awaitable<void> Rounds::on_fetcher(ReplicaId, ConnectionPtr connection) {
  if (giver_ == nullptr) throw Error(ErrorKind::network, "this member is a reducer and has no state to give");
  co_await giver_->serve(connection);
}

// ---- time, and queries ----

void Rounds::tick(Time now) {
  if (!member_) return;
  member_->tick(now);
  act();
}

std::vector<SharedBytes> Rounds::held(FragmentId fragment, Round round) const {
  return member_ ? member_->held(fragment, round) : std::vector<SharedBytes>();
}

FragmentLedger Rounds::ledger(FragmentId fragment) const {
  return member_ ? member_->ledger().at(fragment) : FragmentLedger();
}

// ---- the member's actions ----

void Rounds::act() {
  const auto each = [this](auto& action) { carry_out(action); };
  protocol::carry_out_actions(*member_, each);
  protocol::carry_out_actions(*exchanges_, each);
}

void Rounds::carry_out(SendChunk& action) {
  mesh_.send(ids_[action.peer], order_of_own(action.message.key), action.message, action.packed);
}

void Rounds::carry_out(const SendAck& action) {
  mesh_.acknowledge(ids_[action.peer], action.view, action.key);
}

void Rounds::carry_out(const SendBegun& action) { mesh_.say_begun(ids_[action.peer], action.view); }

void Rounds::carry_out(Reduce& action) {
  Receipt receipt;
  if (receipts_ != nullptr) receipt = begun_receipt(action);
  asio::post(codec_pool_, [this, job = std::move(action), receipt = std::move(receipt)]() mutable {
    reduce(job, std::move(receipt));
  });
}

void Rounds::carry_out(const ForgetResidual& action) {
  asio::post(codec_pool_, [this, chunk = action.chunk] { codecs_->reducer.forget(chunk); });
}

void Rounds::carry_out(Exchanged& action) {
  shared_.update([&](IoView now) { now.both.exchanged[action.fragment] = std::move(action); });
}

void Rounds::carry_out(const DropUnsent& action) {
  mesh_.drop_exchanges(member_->self(), codecs_->layout.chunks_of(action.fragment), action.before);
}

/// Rounds are due in the order in which they begin. A chunk that is resent later keeps its place. Exchanges
/// come after all rounds: nothing waits for them.
std::uint64_t Rounds::order_of_own(const ChunkKey& key) {
  if (key.kind == ChunkKind::exchange) return Outbox::after_all_rounds;
  const Place place{codecs_->layout.fragment_of(key.chunk), key.round};
  std::erase_if(orders_, [&](const auto& entry) {
    return entry.first.first == place.first && entry.first.second + Member::max_held < place.second;
  });
  return orders_.try_emplace(place, orders_begun_ + 1).second ? ++orders_begun_ : orders_.at(place);
}

/// For chunks relayed for others. A round that has not begun here is due after all that have.
std::uint64_t Rounds::order_of(const ChunkKey& key) const {
  if (key.kind == ChunkKind::exchange) return Outbox::after_all_rounds;
  if (!codecs_.known() || key.chunk >= codecs_->layout.chunk_count()) return orders_begun_ + 1;
  const auto place = orders_.find({codecs_->layout.fragment_of(key.chunk), key.round});
  return place == orders_.end() ? orders_begun_ + 1 : place->second;
}

void Rounds::carry_out(Deliver& round) {
  say_if_rejected(round);
  shared_.update([&](IoView now) {
    now.run.participation.contributed = round.contributed;
    now.both.rounds.deliver({round.fragment, round.round}, {.chunks = std::move(round.results),
                                                            .included = std::move(round.included),
                                                            .rejected = std::move(round.rejected),
                                                            .samples = std::move(round.samples)});
  });
}

/// A misbehaving replica is rejected repeatedly; log every 100th time.
void Rounds::say_if_rejected(const Deliver& round) {
  constexpr std::uint64_t say_every = 100;
  const auto chunks = std::ranges::count(round.rejected, true);
  if (chunks == 0 || rejected_++ % say_every != 0) return;
  say_("the others rejected this replica's contribution to " + std::to_string(chunks) + " of " +
       std::to_string(round.rejected.size()) + " chunks of fragment " + std::to_string(round.fragment) +
       ", round " + std::to_string(round.round) +
       ": its norm is more than outer.reject times the median; it is not sent again");
}

/// The part of a receipt that the io thread knows. Warm-up rounds have none: they are not in the round log.
Receipt Rounds::begun_receipt(const Reduce& job) const {
  if (job.round <= codecs_->codecs.warmup_rounds) return {};
  Receipt receipt{.fragment = codecs_->layout.fragment_of(job.chunk), .round = job.round, .chunk = job.chunk};
  receipt.of = owned_.at(receipt.fragment);
  const auto& view = member_->view();
  for (const auto member : job.members)
    receipt.contributions.push_back({.member = view.members.at(member).name});
  return receipt;
}

/// Runs on the codec thread.
void Rounds::reduce(const Reduce& job, Receipt receipt) {
  try {
    const Trace::Scope scope(
        trace_, Trace::Row::reduce, "reduce",
        "{\"chunk\":" + std::to_string(job.chunk) + ",\"round\":" + std::to_string(job.round) + "}");
    auto made = codecs_->reducer.reduce(job.chunk, job.round, job.contributions, job.weights, job.reject);
    const auto result = made.bytes;
    const auto squares = made.measured.squares;
    const bool alone = job.contributions.size() == 1;
    auto packed = alone ? nullptr : codecs_->result_packer.pack(job.chunk, job.round, *made.bytes);
    asio::post(io_, [this, view = job.view, chunk = job.chunk, round = job.round, made = std::move(made),
                     packed = std::move(packed)] {
      if (!member_) return;
      member_->reduced(view, chunk, round, made.bytes, made.measured, packed);
      act();
    });
    // The others wait for the result only.
    if (!receipt.contributions.empty()) give_receipt(job, std::move(receipt), *result, squares);
  } catch (const BadContribution& error) {
    asio::post(io_, [this, error, view = job.view, member = job.members.at(error.contribution)] {
      const bool known = member_ && member_->view().number == view;
      const auto name = known ? member_->view().members.at(member).name + ": " : std::string();
      shared_.fail(Error(error.kind(), name + error.what()));
    });
  } catch (const Error& error) {
    shared_.fail(error);
  }
}

/// Runs on the codec thread.
void Rounds::give_receipt(const Reduce& job, Receipt receipt, const Bytes& result,
                          const std::vector<double>& squares) const {
  receipt.result = hash_of(result);
  const auto stays = kept(job.reject, squares);
  for (std::size_t i = 0; i < receipt.contributions.size(); ++i) {
    auto received = codecs_->reducer.received(job.chunk, job.round, *job.contributions[i]);
    received.member = std::move(receipt.contributions[i].member);
    received.weight = job.weights[i];
    received.kept = stays[i];
    receipt.contributions[i] = std::move(received);
  }
  receipts_->take(receipt);
}

}  // namespace isthmus::outer_sync::transport
